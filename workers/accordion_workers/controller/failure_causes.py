"""Attributes the errors of a worker group to the job or the cluster, with rank and step; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from accordion.base.errors import ConfigError
from accordion_workers.common.error_kinds import (
    describe_death,
    is_lone_process_death,
    is_peer_loss,
    is_process_death,
    is_storage_error,
    is_storage_outage,
)
from accordion_workers.common.error_text import format_error
from accordion_workers.common.errors import (
    LossNotFinite,
    ProcessCrashed,
    ScriptMistaken,
    StorageError,
    TaskRaised,
    WorkerError,
)
from accordion_workers.records.contract import EndReason, FailureRecord
from accordion_workers.training.context import RankProgress


def find_cause(
    by_rank: Mapping[int, BaseException], progress: Mapping[int, RankProgress] | None = None
) -> FailureRecord:
    """Return the failure that caused the others; `progress` is the last known progress by rank.

    A dead process breaks its peers' collectives, so their errors carry no information, and a broken
    collective alone only shows that some peer is gone. An error that a rank itself raised explains
    the rest.
    """
    known = progress or {}
    if dead := {rank: by_rank[rank] for rank in sorted(by_rank) if is_process_death(by_rank[rank])}:
        return _classify_deaths(dead, known)
    own = {rank: error for rank, error in by_rank.items() if not is_peer_loss(error)}
    if raised := {rank: error for rank, error in own.items() if isinstance(error, WorkerError)}:
        return _classify_own(raised, known)
    if disagreement := find_disagreement(known):
        return disagreement
    away = next((rank for rank, error in own.items() if isinstance(error, OSError)), None)
    if away is not None and all(is_storage_error(error) for error in own.values()):
        # Errors of the task are TaskRaised, so the storage raised this one.
        is_storage = is_storage_outage(own[away])
        return FailureRecord(
            cause="infrastructure",
            rank=away,
            message=format_error(own[away]),
            is_storage=is_storage,
        )
    return _classify_own(own, known) if own else _classify_collectives(by_rank, known)


def find_fatal_reason(
    by_rank: Mapping[int, BaseException], *, has_trained: bool = False
) -> EndReason | None:
    """Return why the job must end at once; None if a retry may help. No process may have died."""
    if any(isinstance(error, LossNotFinite) for error in by_rank.values()):
        return "LOSS_NOT_FINITE"
    if any(isinstance(error, ScriptMistaken) for error in by_rank.values()):
        return "TASK_RAISED"
    if has_trained:
        return None  # The task was built before, so what is missing now may come back.
    # Settings that were refused, such as a budget that no rounds keep to, are refused again.
    if any(isinstance(error, StorageError | ConfigError) for error in by_rank.values()):
        return "START_FAILED"
    built = (error for error in by_rank.values() if isinstance(error, TaskRaised))
    return "TASK_RAISED" if any(error.step is None for error in built) else None


def find_disagreement(progress: Mapping[int, RankProgress]) -> FailureRecord | None:
    """Find a rank that left its loop while a peer waits for it in the next step of the same epoch.

    Ranks make every step together, so this is no race: their scripts or their data differ.
    """
    for rank, here in progress.items():
        waiting = [
            other
            for other, there in progress.items()
            if there.doing == "training" and (there.epoch, there.step) == (here.epoch, here.step)
        ]
        if here.doing in {"epoch end", "finished"} and waiting:
            message = (
                f"rank {rank} left its loop after step {here.step - 1} (epoch {here.epoch}), and"
                f" rank {waiting[0]} waits for it in step {here.step}; give all ranks the same"
                " number of batches, and let them leave the loop together"
            )
            return FailureRecord(
                cause="job", rank=rank, epoch=here.epoch, step=here.step, message=message
            )
    return None


def classify_start_failure(error: BaseException) -> FailureRecord:
    """Return the failure of a process or group that did not start; it belongs to no rank."""
    if isinstance(error, ProcessCrashed):
        return FailureRecord(
            cause="job", rank=None, message=f"a worker process did not start: {format_error(error)}"
        )
    if is_storage_outage(error):
        message = f"a worker process cannot reach the directory of this job: {format_error(error)}"
        return FailureRecord(cause="infrastructure", rank=None, message=message, is_storage=True)
    cause: Literal["job", "infrastructure"] = "infrastructure" if is_process_death(error) else "job"
    message = f"the worker group did not run: {format_error(error)}"
    return FailureRecord(
        cause=cause, rank=None, message=message, process_died=is_lone_process_death(error)
    )


def _classify_deaths(
    dead: Mapping[int, BaseException], known: Mapping[int, RankProgress]
) -> FailureRecord:
    """Blame the job if its own code ended the process; otherwise the cause is unknown."""
    # The last heartbeat of a dead rank may be a second old, and ranks make every step together.
    furthest = max(known.values(), key=lambda progress: progress.step, default=None)
    seen = "" if known.keys() - dead.keys() else "last seen "
    known = dict.fromkeys(dead, furthest) if furthest is not None else {}
    crashed = {rank: error for rank, error in dead.items() if isinstance(error, ProcessCrashed)}
    if crashed:
        return _classify_own(crashed, known, seen=seen)
    first = next(iter(dead))
    listed, place = ", ".join(map(str, dead)), _describe_place(first, known, seen)
    message = f"the process of rank {listed} is gone{place}{describe_death(dead[first])}"
    died = any(map(is_lone_process_death, dead.values()))
    step = _find_step(first, known)
    return FailureRecord(
        cause="infrastructure", rank=first, step=step, message=message, process_died=died
    )


def _classify_own(
    own: Mapping[int, BaseException], known: Mapping[int, RankProgress], *, seen: str = ""
) -> FailureRecord:
    rank, error = min(own.items(), key=lambda item: (not isinstance(item[1], WorkerError), item[0]))
    placed = isinstance(error, TaskRaised | LossNotFinite)
    epoch = getattr(error, "epoch", None) if placed or rank not in known else known[rank].epoch
    step = getattr(error, "step", None) if placed else _find_step(rank, known)
    place = "" if placed else _describe_place(rank, known, seen)
    return FailureRecord(
        cause="job",
        rank=rank,
        epoch=epoch,
        step=step,
        message=f"rank {rank}{place}: {format_error(error)}",
    )


def _classify_collectives(
    by_rank: Mapping[int, BaseException], known: Mapping[int, RankProgress]
) -> FailureRecord:
    """Every rank that returned lost its peers; one that did not return may be the cause."""
    rank = min(by_rank, default=None)
    message = f"rank {rank} lost its peers in a collective"
    silent = [other for other in known if other not in by_rank and known[other].doing != "finished"]
    if silent:
        message += f"; rank {silent[0]} did not come back from it: it stayed {known[silent[0]]}"
    step = _find_step(rank, known) if rank is not None else None
    return FailureRecord(cause="infrastructure", rank=rank, step=step, message=message)


def _describe_place(rank: int, known: Mapping[int, RankProgress], seen: str) -> str:
    return f", {seen}{known[rank]}" if rank in known else ""


def _find_step(rank: int, known: Mapping[int, RankProgress]) -> int | None:
    return known[rank].step if rank in known and known[rank].doing != "starting" else None
