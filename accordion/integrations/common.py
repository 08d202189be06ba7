"""Parts shared by the integrations: checks of the model, saved states, epochs and metrics."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from accordion.base.errors import HookError, StateError
from accordion.config import Config
from accordion.hook.module_checks import has_peers
from accordion.session.saved_states import state_file
from accordion.session.session import Session
from accordion.session.training_warnings import TrainingWarning


class EpochReports:
    """Ends a session's epochs for a framework that announces the start of each epoch."""

    def __init__(
        self, session: Session, config: Config, optimizer: Optimizer, *, epoch: int
    ) -> None:
        self._session = session
        self._optimizer = optimizer
        has_rate = optimizer.param_groups[0].get("lr") is not None
        self._by_steps = has_rate and config.detector.window_in_force.steps is not None
        session.epoch = epoch
        # Windows counted in steps read the optimizer's rate at each window instead, if it has one.
        session.lr = None if self._by_steps else self._rate()

    def begin(self, epoch: int) -> None:
        """End the session's epoch if a later one begins; every worker calls this."""
        session, rate = self._session, self._rate()
        if session.epoch >= epoch:
            return
        session.end_epoch(lr=rate if session.lr is None else session.lr, next_lr=rate)
        session.epoch = epoch
        if self._by_steps:
            session.lr = None

    def _rate(self) -> float:
        return float(self._optimizer.param_groups[0].get("lr") or 0.0)  # None in some Adafactors


def distributed_module(model: torch.nn.Module, *, way_out: str) -> torch.nn.Module:
    """Return the module for `attach`: the DistributedDataParallel in a compiled module, or itself.

    Raises:
        HookError: the process has peers and the model is not wrapped; `way_out` ends the sentence.
    """
    inner = getattr(model, "_orig_mod", model)
    if isinstance(inner, DistributedDataParallel):
        return inner
    if has_peers():
        raise HookError(
            f"Accordion got a {type(model).__name__} that DistributedDataParallel does not wrap;"
            f" {way_out}"
        )
    return model


def training_metrics(session: Session) -> dict[str, float]:
    """Return metrics of a session for loggers: this worker's bytes on the wire, and counts of its
    decision.

    Their names begin with `accordion/`, or with `accordion/NAME/` if the session has a name.
    """
    total, regimes = session.ledger.total, session.decision.regime_by_layer.values()
    prefix = f"accordion/{session.name}/" if session.name else "accordion/"
    return {
        f"{prefix}sent_bytes": float(total.wire),
        f"{prefix}control_bytes": float(session.ledger.control_wire),
        f"{prefix}dense_bytes": float(total.dense_wire),
        f"{prefix}critical_layers": float(sum(regime == "critical" for regime in regimes)),
        f"{prefix}skipped_steps": float(session.skipped_steps),
    }


def save_state(session: Session, folder: Path) -> None:
    """Write the states of all workers into a checkpoint folder; every worker calls this."""
    state = session.gather_state_dict()
    if state is None or not folder.is_dir():  # the framework may have rotated the checkpoint away
        return
    file = folder / state_file(session.name)
    unfinished = file.with_suffix(".pt.tmp")
    torch.save(state, unfinished)
    unfinished.replace(file)


def load_state(session: Session, folder: Path, *, way_out: str = "") -> None:
    """Load the states of all workers from a checkpoint folder; every worker calls this.

    If the checkpoint has none, a warning says that residuals and decisions start from the
    beginning; `way_out` ends its sentence.

    Raises:
        StateError: only some workers find the file, or the states are not of this model.
    """
    path = folder / state_file(session.name)
    found = _gather_flags(flag=path.is_file())
    missing = [rank for rank, flag in enumerate(found) if not flag]
    if len(missing) == len(found):
        warnings.warn(
            f"{path} does not exist: residuals and decisions of Accordion start from the"
            f" beginning{way_out}",
            TrainingWarning,
            stacklevel=3,
        )
    elif missing:
        raise StateError(
            f"{path} does not exist on ranks {missing}, but on others; copy it to all nodes"
        )
    else:
        # Mapped into memory, since the file contains the residuals of all workers, of which this
        # reads one.
        session.load_state_dict(torch.load(path, map_location="cpu", weights_only=True, mmap=True))


def _gather_flags(*, flag: bool) -> list[bool]:
    if not dist.is_initialized():
        return [flag]
    flags: list[bool] = [False] * dist.get_world_size()
    dist.all_gather_object(flags, flag)
    return flags
