"""State held by a checkpoint: everything that the rest of the run depends on.

The shared state is rank 0's and equal on all ranks; each rank's own state holds what differs. Model
and optimizer are shared too, or in parts where workers shard the model.
Sample order, learning rate and the seeds of dropout are functions of the position, and records are
in the journal, so none of them is saved here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from torch import Tensor

from accordion.hook.sharded_module import local_part
from accordion.session.saved_states import MeanState
from accordion_workers.records.contract import Bytes, Position
from accordion_workers.training.data_checks import check_equal_to_saved, count_samples
from accordion_workers.training.generators import read_generators, restore_generators
from accordion_workers.training.objective import ObjectiveProgress
from accordion_workers.training.pretrained import read_configs
from accordion_workers.training.schedule import BatchChange
from accordion_workers.training.sharded_state import load_kept, load_model
from accordion_workers.training.train_state import EpochBaseline, TrainState


def load_state(state: TrainState, shared: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Continue from a saved state: the shared state, and this rank's part or the merged parts.

    Raises:
        TaskRaised: it was saved with another number of samples.
    """
    load_model(state.model, shared["model"])
    load_kept(state.optimizer, shared["optimizer"])
    state.position = Position(**shared["position"])
    state.overrides = None
    state.skipped_in_a_row = shared["skipped_in_a_row"]
    state.batch_change = BatchChange(**shared["batch_change"])
    state.objective = ObjectiveProgress(**shared["objective"])
    if state.scaler is not None and shared["scaler"]:
        state.scaler.load_state_dict(shared["scaler"])
    # Merged parts serve every rank.
    ranks = {"rank": state.context.rank, "world_size": state.context.world_size}
    state.session.load_state_dict({**own["session"], **ranks, "controller": shared["controller"]})
    _restore_own(state, own)
    check_equal_to_saved(state, shared["num_samples"])


class MergedParts:
    """Merges the parts of a group of `size` workers, in rank order, for a group of another size.

    Residuals and open windows are averaged (`accordion.session.saved_states.MeanState`), the loss
    of the open epoch is summed, and the rest is rank 0's. Parts are not kept.
    """

    def __init__(self, size: int) -> None:
        self._session = MeanState(size)
        self._first: Mapping[str, Any] = {}
        self._loss: dict[str, Any] = {}

    @property
    def count(self) -> int:
        """Number of parts added so far."""
        return self._session.count

    def add(self, part: Mapping[str, Any]) -> None:
        """Add the part of the next rank.

        Raises:
            StateError: the part does not fit those before; nothing is added then.
        """
        self._session.add(part["session"])
        self._first = self._first or {key: value for key, value in part.items() if key != "session"}
        self._loss = {key: self._loss.get(key, 0) + value for key, value in part["loss"].items()}

    def result(self) -> dict[str, Any]:
        """Return the merged part, once all parts were added."""
        return {**self._first, "session": self._session.result(), "loss": self._loss}


def model_state(state: TrainState) -> dict[str, Any]:
    """Collect what this rank holds of the model and its optimizer, without copying tensors."""
    return {"model": state.model.state_dict(), "optimizer": state.optimizer.state_dict()}


def shared_state(state: TrainState) -> dict[str, Any]:
    """Collect the rest of the state that is equal on all ranks, without copying tensors."""
    return {
        "controller": state.session.controller.state_dict(),
        "scaler": state.scaler.state_dict() if state.scaler is not None else None,
        "position": asdict(state.position),
        "skipped_in_a_row": state.skipped_in_a_row,
        "batch_change": asdict(state.batch_change),
        "objective": asdict(state.objective),
        "num_samples": count_samples(state),
        "configs": read_configs(state.model),
    }


def rank_state(state: TrainState) -> dict[str, Any]:
    """Collect the state that differs from rank to rank, without copying tensors."""
    statistic = state.decider.statistic
    return {
        "session": {**state.session.state_dict(), "controller": None},
        **read_generators(state.context.device),
        "loss": {"total": float(state.epoch_loss.total), "samples": state.epoch_loss.samples},
        "seconds": dict(state.phases.seconds),
        "mark": {
            "bytes": state.epoch_baseline.bytes.model_dump(),
            "seconds": dict(state.epoch_baseline.seconds),
            "skipped_steps": state.epoch_baseline.skipped_steps,
        },
        "statistic": None if statistic is None else dict(statistic),
        "agreement": state.decider.agreement,
    }


def _restore_own(state: TrainState, own: Mapping[str, Any]) -> None:
    state.epoch_loss.total += own["loss"]["total"]
    state.epoch_loss.samples += own["loss"]["samples"]
    state.phases.seconds.update(own["seconds"])
    mark = own["mark"]
    state.epoch_baseline = EpochBaseline(
        bytes=Bytes(**mark["bytes"]),
        seconds=mark["seconds"],
        skipped_steps=mark["skipped_steps"],
    )
    state.decider.statistic = own["statistic"]
    # Checkpoints of earlier releases have none.
    state.decider.agreement = own.get("agreement")
    restore_generators(own, state.context.device)


def copy_to_cpu(state: Any) -> Any:
    """Copy a state with its tensors, as far as this worker holds them, into CPU memory of its
    own.
    """
    return map_tensors(state, lambda tensor: local_part(tensor).detach().to("cpu", copy=True))


def map_tensors(state: Any, change: Callable[[Tensor], Any]) -> Any:
    """Copy a state with its tensors changed, and with numpy's scalars as Python's numbers, because
    a checkpoint loads no types of numpy.
    """
    if isinstance(state, Tensor):
        return change(state)
    if isinstance(state, np.generic):
        return state.item()
    if isinstance(state, dict):
        # a copy keeps what is attached to it, such as the versions of a model's modules.
        copied = copy.copy(state)
        copied.update((key, map_tensors(value, change)) for key, value in state.items())
        return copied
    if isinstance(state, list | tuple):
        return type(state)(map_tensors(value, change) for value in state)
    return state


__all__ = [
    "MergedParts",
    "copy_to_cpu",
    "load_state",
    "map_tensors",
    "model_state",
    "rank_state",
    "shared_state",
]
