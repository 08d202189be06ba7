"""What must hold after a run, whatever was killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from accordion_service.store.tables.models import EventRow, OverrideRow
from tests.chaos.history import History
from tests.chaos.owners import PLANS, OwnedJob, Plan
from tests.chaos.shared_laws import check_queue, check_quotas
from tests.history_laws import came_in_last_epoch, find_repeated_epochs, list_epochs_told

_IS_ORDER: Mapping[Plan, Callable[[EventRow], bool]] = {
    "finish": lambda _: False,
    "cancel": lambda event: event.data.get("desired") == "CANCEL",
    "pause": lambda event: event.data.get("desired") == "PAUSE",
    "pause and resume": lambda event: event.data.get("desired") == "PAUSE",
    "override": lambda event: event.type == "override",
    "resize": lambda event: event.data.get("what") == "allowed",
}
"""Whether an event of its owner is the order that a plan is about."""
_WAS_CARRIED_OUT: Mapping[Plan, Callable[[History], bool]] = {
    "finish": lambda found: found.row.status == "SUCCEEDED",
    "cancel": lambda found: found.row.status == "CANCELLED",
    "pause": lambda found: found.row.status == "PAUSED",
    "pause and resume": lambda found: (
        found.find_status("PAUSED") is not None and found.row.status == "SUCCEEDED"
    ),
    "override": lambda found: any(_list_levels_after(row, found) for row in found.overrides),
    "resize": lambda found: {row.record["world_size"] for row in found.epochs} == {1, 2},
}
"""Whether the history of a job shows what its plan is about."""
_MUST_HAPPEN = ("PREEMPTED", "WAITING_FOR_QUOTA")
"""Reasons that some job must have had, as its owners compete for the cluster."""


def find_violations(jobs: Sequence[OwnedJob], histories: Mapping[str, History]) -> list[str]:
    """Return a sentence for each law that was broken; the histories are by job ID."""
    broken = [
        f"{job.owner}-{job.number} ({job.plan}): {sentence}"
        for job in jobs
        for check in (_check_status, _check_order, _check_epochs, _check_events)
        for sentence in check(job, histories[job.id])
    ]
    together = (check_quotas, check_queue, _check_coverage)
    return [*broken, *(sentence for check in together for sentence in check(jobs, histories))]


def _check_coverage(jobs: Sequence[OwnedJob], histories: Mapping[str, History]) -> Iterable[str]:
    """Check that the run had what its laws are about."""
    for plan in PLANS:
        if not any(job.plan == plan and _WAS_CARRIED_OUT[plan](histories[job.id]) for job in jobs):
            yield f"no job shows that the plan {plan!r} was carried out"
    for reason in _MUST_HAPPEN:
        if not any(history.has_reason(reason) for history in histories.values()):
            yield f"no job was ever {reason}"


def _check_status(job: OwnedJob, history: History) -> Iterable[str]:
    """Check that the job is where its owner wants it. It may finish instead, if the order came in
    its last epoch or after its end.
    """
    row, order = history.row, _find_order(job, history)
    is_too_late = came_in_last_epoch(order.time, history.epochs) if order else bool(job.refused)
    if row.status != job.expected and not (row.status == "SUCCEEDED" and is_too_late):
        yield f"is {row.status} ({row.reason}: {row.message}), not {job.expected}"
    had_ended = row.ended_at is not None and row.ended_at <= job.refused_at
    if job.refused and not (had_ended and f"is {row.status} and cannot be" in job.refused):
        yield f"had not ended when its owner was told: {job.refused}"


def _check_order(job: OwnedJob, history: History) -> Iterable[str]:
    """Check that the order of the owner was stored, and took effect if epochs began after it."""
    order = _find_order(job, history)
    if order is None:
        if job.plan != "finish" and not job.refused:
            yield "has no event of the order that the service accepted"
        return
    is_too_late = came_in_last_epoch(order.time, history.epochs)
    match job.plan:
        case "pause and resume":
            if history.find_status("PAUSED") is None and not is_too_late:
                yield "was never paused"
        case "resize":
            yield from _check_resize(order, history, is_too_late=is_too_late)
        case "override":
            yield from _check_override(history, is_too_late=is_too_late)


def _find_order(job: OwnedJob, history: History) -> EventRow | None:
    is_order = _IS_ORDER[job.plan]
    by_owner = (event for event in history.events if event.data.get("by") == job.owner)
    return next((event for event in by_owner if is_order(event)), None)


def _check_resize(order: EventRow, history: History, *, is_too_late: bool) -> Iterable[str]:
    """Check a resize to one worker, which neither a quota nor other jobs can prevent."""
    sizes = [row.record["world_size"] for row in history.epochs if row.time > order.time]
    if sizes != sorted(sizes, reverse=True):
        yield f"grew after it was resized to one worker: {sizes}"
    if not is_too_late and sizes[-1] != 1:
        yield f"was resized to one worker, and {sizes[-1]} trained its last epoch"


def _check_override(history: History, *, is_too_late: bool) -> Iterable[str]:
    if len(history.overrides) != 1:
        yield f"has {len(history.overrides)} overrides of one that was requested"
    for row in history.overrides:
        levels = _list_levels_after(row, history)
        # The end of a job ends its overrides, applied or not.
        if row.state not in {"APPLIED", "EXPIRED"} or (row.epoch is None and not is_too_late):
            applied = "never" if row.epoch is None else f"in epoch {row.epoch}"
            yield f"its override was applied {applied} and is {row.state}: {row.message}"
        elif levels - {"low"}:
            yield f"trained at the levels {sorted(levels)} after the override to low"


def _list_levels_after(override: OverrideRow, history: History) -> set[str]:
    """List the levels of the epochs that began after an override was applied."""
    return {
        level
        for row in history.epochs
        if override.epoch is not None and row.epoch > override.epoch
        for level in row.record["level_by_layer"].values()
    }


def _check_epochs(job: OwnedJob, history: History) -> Iterable[str]:
    """Check that the job trained each epoch once, except for work that was lost."""
    epochs = [row.epoch for row in history.epochs]
    if epochs != list(range(len(epochs))):
        yield f"has the epochs {epochs}"
    finished = (history.row.progress or {"epoch": 0})["epoch"]
    if len(epochs) != finished:
        yield f"has {len(epochs)} epochs, and its progress says {finished}"
    if history.row.status == "SUCCEEDED" and len(epochs) != job.epochs:
        yield f"has {len(epochs)} epochs of {job.epochs}"
    back = [later.epoch for row, later in pairwise(history.epochs) if later.time <= row.time]
    if back:
        yield f"finished the epochs {back} before the ones ahead of them"
    samples = Counter(row.record["samples"] for row in history.epochs)
    if len(samples) > 1:
        yield f"trained epochs of different lengths: {dict(samples)}"
    repeated = find_repeated_epochs(history.events)
    if repeated:
        yield f"has several events of the epochs (attempt, generation, epoch) {repeated}"
    kept = {(row.attempt, row.generation, row.epoch) for row in history.epochs}
    untold = sorted(kept - set(list_epochs_told(history.events)))
    if untold:
        yield f"has no event of the epochs (attempt, generation, epoch) {untold}"


def _check_events(job: OwnedJob, history: History) -> Iterable[str]:
    """Check that the events are complete, and that the watcher received each of them once."""
    stored = [(event.seq, event.type) for event in history.events]
    if [number for number, _ in stored] != list(range(1, history.row.event_seq + 1)):
        yield f"its {history.row.event_seq} events have the numbers {[n for n, _ in stored]}"
    if job.watcher_error:
        yield f"its watcher failed: {job.watcher_error}"
    seen = [(event.seq, event.type) for event in job.seen]
    if seen != stored:
        numbers = [number for number, _ in seen]
        yield f"its watcher received the events {numbers}, and {len(stored)} are stored"
