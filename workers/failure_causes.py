"""What the errors of a worker group mean: whose fault it was, told in one sentence with rank and step; pure."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Literal

from workers.context import RankProgress
from workers.contract import EndReason, FailureRecord
from workers.errors import LossNotFinite, ProcessCrashed, StorageError, TaskRaised, WorkerError
from workers.symptoms import death_of, died_alone, is_collateral, is_dead, sentence_of

_STORAGE_AWAY = frozenset({
    errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENODEV, errno.ENOENT, errno.ENOSPC, errno.ENOTCONN, errno.EROFS,
    errno.ESTALE, errno.ETIMEDOUT,
})  # fmt: skip
"""What a directory that is full or not mounted answers: it is waited for."""
_MOST_RANKS = 4
"""Ranks of a group that hangs that are told one by one."""
CONTROLLER = -1
"""The rank under which a failure of no rank stands: of what starts and leads the group."""


def failure_of(
    by_rank: Mapping[int, BaseException], progress: Mapping[int, RankProgress] | None = None
) -> FailureRecord:
    """The failure that explains the others; `progress` says how far each rank was, as far as that is known.

    A worker whose process died takes its peers' collectives down with it, so what they raise says nothing; and a
    collective that broke says only that some peer is gone. What a rank raised itself explains the rest.
    """
    known = progress or {}
    if CONTROLLER in by_rank:
        return _of_controller(by_rank[CONTROLLER])
    if dead := {rank: by_rank[rank] for rank in sorted(by_rank) if is_dead(by_rank[rank])}:
        return _of_dead(dead, known)
    own = {rank: error for rank, error in by_rank.items() if not is_collateral(error)}
    if raised := {rank: error for rank, error in own.items() if isinstance(error, WorkerError)}:
        return _of_own(raised, known)
    if disagreement := _disagreement(known):
        return disagreement
    away = next((rank for rank, error in own.items() if isinstance(error, OSError)), None)
    if away is not None and all(_is_storage(error) for error in own.values()):
        # what the task raises is a TaskRaised: this is the storage.
        is_storage = is_storage_outage(own[away])
        return FailureRecord(cause="infrastructure", rank=away, message=sentence_of(own[away]), is_storage=is_storage)
    return _of_own(own, known) if own else _of_collectives(by_rank, known)


def fatal_reason(by_rank: Mapping[int, BaseException]) -> EndReason | None:
    """The end that an error means at once, where every process lived."""
    if any(isinstance(error, LossNotFinite) for error in by_rank.values()):
        return "LOSS_NOT_FINITE"
    if any(isinstance(error, StorageError) for error in by_rank.values()):
        return "START_FAILED"
    built = (error for error in by_rank.values() if isinstance(error, TaskRaised))
    return "TASK_RAISED" if any(error.step is None for error in built) else None


def is_storage_outage(error: BaseException) -> bool:
    """Whether an error says that a directory is full or not reachable now."""
    return isinstance(error, OSError) and getattr(error, "errno", None) in _STORAGE_AWAY


def hang_of(progress: Mapping[int, RankProgress], places: Mapping[int, str], limit_s: float) -> FailureRecord:
    """No rank gets on; `places` are the lines of code where they are, by rank, as far as that is known."""
    first = min(progress, default=0)
    ranks = [f"rank {rank} is {_at(rank, progress, places)}" for rank in sorted(progress)[:_MOST_RANKS]]
    seen = "; ".join(ranks) or "none of them answers"
    message = f"no rank has given a sign of training for {limit_s:g} s: {seen}; where that is right, raise limits."
    is_starting = all(one.doing == "starting" for one in progress.values())
    return FailureRecord(
        cause="job",
        rank=first,
        epoch=progress[first].epoch if progress else None,
        step=_step(first, progress),
        message=message + ("start_seconds" if is_starting else "step_seconds"),
    )


def _at(rank: int, progress: Mapping[int, RankProgress], places: Mapping[int, str]) -> str:
    return f"{progress[rank]} ({places[rank]})" if places.get(rank) else str(progress[rank])


def _of_controller(error: BaseException) -> FailureRecord:
    if isinstance(error, ProcessCrashed):
        return FailureRecord(cause="job", rank=None, message=f"a worker process did not start: {sentence_of(error)}")
    if is_storage_outage(error):
        message = f"a worker process cannot reach the directory of this job: {sentence_of(error)}"
        return FailureRecord(cause="infrastructure", rank=None, message=message, is_storage=True)
    cause: Literal["job", "infrastructure"] = "infrastructure" if is_dead(error) else "job"
    message = f"the worker group did not run: {sentence_of(error)}"
    return FailureRecord(cause=cause, rank=None, message=message, process_died=died_alone(error))


def _of_dead(dead: Mapping[int, BaseException], known: Mapping[int, RankProgress]) -> FailureRecord:
    """A process that its own code ended is the job's failure; who ended the others is not known."""
    # what the dead said last may be a second old, and ranks make every step together.
    furthest = max(known.values(), key=lambda progress: progress.step, default=None)
    known = dict.fromkeys(dead, furthest) if furthest is not None else {}
    crashed = {rank: error for rank, error in dead.items() if isinstance(error, ProcessCrashed)}
    if crashed:
        return _of_own(crashed, known)
    first = next(iter(dead))
    listed, place = ", ".join(map(str, dead)), _place(first, known)
    message = f"the process of rank {listed} is gone{place}{death_of(dead[first])}"
    died = any(map(died_alone, dead.values()))
    step = _step(first, known)
    return FailureRecord(cause="infrastructure", rank=first, step=step, message=message, process_died=died)


def _of_own(own: Mapping[int, BaseException], known: Mapping[int, RankProgress]) -> FailureRecord:
    rank, error = min(own.items(), key=lambda item: (not isinstance(item[1], WorkerError), item[0]))
    placed = isinstance(error, TaskRaised | LossNotFinite)
    epoch = getattr(error, "epoch", None) if placed or rank not in known else known[rank].epoch
    step = getattr(error, "step", None) if placed else _step(rank, known)
    place = "" if placed else _place(rank, known)
    return FailureRecord(
        cause="job", rank=rank, epoch=epoch, step=step, message=f"rank {rank}{place}: {sentence_of(error)}"
    )


def _of_collectives(by_rank: Mapping[int, BaseException], known: Mapping[int, RankProgress]) -> FailureRecord:
    """All that came back lost their peers; who did not come back may be why."""
    rank = min(by_rank, default=None)
    message = f"rank {rank} lost its peers in a collective"
    silent = [other for other in known if other not in by_rank and known[other].doing != "finished"]
    if silent:
        message += f"; rank {silent[0]} did not come back from it: it stayed {known[silent[0]]}"
    step = _step(rank, known) if rank is not None else None
    return FailureRecord(cause="infrastructure", rank=rank, step=step, message=message)


def _disagreement(known: Mapping[int, RankProgress]) -> FailureRecord | None:
    """Whether a rank left its loop after as many steps as another one, in the same epoch, goes on to make more.

    Ranks make every step together, so this is no race: the scripts, or the data, of these ranks differ.
    """
    for rank, here in known.items():
        waiting = [
            other
            for other, there in known.items()
            if there.doing == "training" and (there.epoch, there.step) == (here.epoch, here.step)
        ]
        if here.doing in {"epoch end", "finished"} and waiting:
            message = (
                f"rank {rank} left its loop after step {here.step - 1} (epoch {here.epoch}), and rank {waiting[0]} "
                f"waits for it in step {here.step}; give all ranks the same number of batches, and let them leave the "
                "loop together"
            )
            return FailureRecord(cause="job", rank=rank, epoch=here.epoch, step=here.step, message=message)
    return None


def _is_storage(error: BaseException) -> bool:
    """Whether an error is of the storage: a descriptor that the process itself closed is not."""
    return isinstance(error, OSError) and error.errno != errno.EBADF


def _place(rank: int, known: Mapping[int, RankProgress]) -> str:
    return f", {known[rank]}" if rank in known else ""


def _step(rank: int, known: Mapping[int, RankProgress]) -> int | None:
    return known[rank].step if rank in known and known[rank].doing != "starting" else None
