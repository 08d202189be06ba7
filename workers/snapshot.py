"""What a checkpoint holds: everything that the rest of the run depends on.

The shared state is rank 0's and the same for all; each rank's own state holds what differs. Order of samples, learning
rate and the seeds of dropout are functions of the position and need no place here; records live in the journal.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from workers.contract import Bytes
from workers.run import Mark, Run
from workers.sampler import Position
from workers.schedule import BatchChange


def load_state(run: Run, shared: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> None:
    """Go on from a saved state: what all ranks share, and the parts of all ranks of the group that saved it."""
    run.ddp.module.load_state_dict(shared["model"])
    run.optimizer.load_state_dict(shared["optimizer"])
    run.position = Position(**shared["position"])
    run.overrides = None
    run.skipped_in_a_row = shared["skipped_in_a_row"]
    run.batch_change = BatchChange(**shared["batch_change"])
    if run.scaler is not None and shared.get("scaler"):
        run.scaler.load_state_dict(shared["scaler"])
    run.session.load_state_dict(_session_states(run, shared, parts))
    _restore_own(run, parts)


def _session_states(run: Run, shared: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """This rank's own alone where the group is as large as the saved one, else those of all its workers."""
    size = len(parts)
    ranks = [run.context.rank] if size == run.context.world_size else range(size)
    whole = {"controller": shared["controller"], "world_size": size}
    # rank and size are the manifest's: older checkpoints do not hold them.
    return [{**parts[rank]["session"], **whole, "rank": rank} for rank in ranks]


def shared_state(run: Run) -> dict[str, Any]:
    """Collect what is the same on all ranks; tensors are the run's own."""
    return {
        "model": run.ddp.module.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "controller": run.session.controller.state_dict(),
        "scaler": run.scaler.state_dict() if run.scaler is not None else None,
        "position": asdict(run.position),
        "skipped_in_a_row": run.skipped_in_a_row,
        "batch_change": asdict(run.batch_change),
    }


def own_state(run: Run) -> dict[str, Any]:
    """Collect what differs from rank to rank; tensors are the run's own."""
    statistic = run.adviser.statistic
    return {
        "session": {**run.session.state_dict(), "controller": None},
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state(run.context.device) if run.context.device.startswith("cuda") else None,
        "loss": {"total": float(run.epoch_loss.total), "samples": run.epoch_loss.samples},
        "seconds": dict(run.phases.seconds),
        "mark": {
            "bytes": run.epoch_mark.bytes.model_dump(),
            "seconds": dict(run.epoch_mark.seconds),
            "skipped_steps": run.epoch_mark.skipped_steps,
        },
        "statistic": None if statistic is None else dict(statistic),
    }


def _restore_own(run: Run, parts: Sequence[Mapping[str, Any]]) -> None:
    """Restore this rank's part; in a group of another size rank 0 takes over the sums of all, the others begin at 0."""
    rank = run.context.rank
    same_size = len(parts) == run.context.world_size
    owned = [parts[rank]] if same_size else list(parts) if rank == 0 else []
    run.epoch_loss.total += sum(part["loss"]["total"] for part in owned)
    run.epoch_loss.samples += sum(part["loss"]["samples"] for part in owned)
    own = parts[rank if same_size else 0]
    run.phases.seconds.update(own["seconds"])
    mark = own["mark"]
    run.epoch_mark = Mark(bytes=Bytes(**mark["bytes"]), seconds=mark["seconds"], skipped_steps=mark["skipped_steps"])
    run.adviser.statistic = own["statistic"]
    torch.set_rng_state(own["rng"])
    if own["cuda_rng"] is not None and run.context.device.startswith("cuda"):
        torch.cuda.set_rng_state(own["cuda_rng"], run.context.device)


def copy_to_cpu(state: Any) -> Any:
    """Copy a state, with its tensors, into memory of the CPU that nobody else holds."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        # a copy keeps what is attached to it, such as the versions of a model's modules.
        copied = copy.copy(state)
        copied.update((key, copy_to_cpu(value)) for key, value in state.items())
        return copied
    if isinstance(state, list | tuple):
        return type(state)(map(copy_to_cpu, state))
    return state


__all__ = ["copy_to_cpu", "load_state", "own_state", "shared_state"]
