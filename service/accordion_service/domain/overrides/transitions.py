"""State changes of an override: pure functions from the known state and an event to the new state.

PENDING -> DELIVERED -> APPLIED   back to DELIVERED if a rank does not confirm the plan in force
REJECTED, CANCELLED               no longer part of the orders
EXPIRED, SUPERSEDED               its interval is over, or newer overrides hold its layers; active
                                  again if that work is rolled back
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from accordion.base.messages import Decision, OverrideTarget
from accordion.decide.overrides import matching_layers
from accordion_service.domain.overrides.states import LIVE, ORDERED, OverrideStatus, SwitchReport

_HELD: Mapping[OverrideTarget, str] = {
    "compression": "all its layers are",
    "batch": "the batch is",
    "local_steps": "local steps are",
    "lr": "the learning rate is",
    "weight_decay": "the weight decay is",
    "clip_norm": "clip_norm is",
}
"""What of an override newer ones hold when they supersede it."""


def deliver(status: OverrideStatus, orders_version: int) -> OverrideStatus:
    """Mark an override as delivered: the Accordion actor confirmed these orders."""
    if status.state != "PENDING" or status.orders_version > orders_version:
        return status
    return replace(status, state="DELIVERED", message="waits for the workers to switch")


def acknowledge(status: OverrideStatus, report: SwitchReport) -> OverrideStatus:
    """Mark an override as applied if every rank confirmed the announced plan that contains it."""
    if status.id not in report.override_ids or status.state not in ORDERED:
        return status
    fault = _ack_fault(report)
    if fault:
        return replace(status, state="DELIVERED", message=fault, acks=report.acks)
    # At the boundary after an epoch's last step, the first report names the epoch that ends.
    begun = report if status.step in (None, report.step) else status
    return replace(
        status,
        state="APPLIED",
        message="",
        epoch=begun.epoch,
        step=begun.step,
        world_size=report.world_size,
        acks=report.acks,
    )


def _ack_fault(report: SwitchReport) -> str:
    """Describe which ranks have not acknowledged the plan; empty if all have."""
    ranks = [ack.rank for ack in report.acks]
    missing = sorted(set(range(report.world_size)) - set(ranks))
    differing = sorted({ack.rank for ack in report.acks if ack.digest != report.digest})
    unexpected = sorted(
        {rank for rank in ranks if not 0 <= rank < report.world_size or ranks.count(rank) > 1}
    )
    found = {
        "not switched yet": missing,
        "running another plan": differing,
        "unexpected or twice": unexpected,
    }
    faults = [
        f"{what}: rank {', '.join(map(str, ranks))}" for what, ranks in found.items() if ranks
    ]
    return f"{'; '.join(faults)} (of {report.world_size} workers)" if faults else ""


def reject(status: OverrideStatus, reason: str) -> OverrideStatus:
    """Reject an override that the workers cannot apply."""
    return replace(status, state="REJECTED", message=reason) if status.state in ORDERED else status


def cancel(status: OverrideStatus, *, by: str, reason: str = "") -> OverrideStatus:
    """Cancel one override on request of a user."""
    if status.state not in LIVE:
        return status
    why = f": {words}" if (words := " ".join(reason.split())) else ""
    return replace(status, state="CANCELLED", message=f"cancelled by {by}{why}")


def cancel_with_superseded(
    statuses: Sequence[OverrideStatus],
    cancelled: OverrideStatus,
    layer_names: Iterable[str],
    *,
    by: str,
    reason: str = "",
) -> list[OverrideStatus]:
    """Cancel an override and the older ones that it superseded, on request of a user: its layers
    return to the policy.

    The message of an older one still tells what held its layers instead.
    """
    names = tuple(layer_names)
    held = _held_parts(cancelled, names)

    def change(status: OverrideStatus) -> OverrideStatus:
        if status.id == cancelled.id:
            return cancel(status, by=by, reason=reason)
        older = status.state == "SUPERSEDED" and status.number < cancelled.number
        if not older or not held & _held_parts(status, names):
            return status
        message = f"{status.message}; cancelled with #{cancelled.number} by {by}"
        return replace(status, state="CANCELLED", message=message)

    return [change(status) for status in statuses]


def expire(status: OverrideStatus, epoch: int) -> OverrideStatus:
    """Expire an override that ends at or before `epoch`."""
    if status.state not in LIVE or status.until is None or epoch < status.until:
        return status
    message = f"it held until epoch {status.until}"
    if status.step is None:
        message = f"epoch {status.until} began before all workers had switched to it"
    return replace(status, state="EXPIRED", message=message)


def restart(status: OverrideStatus, epoch: int, step: int) -> OverrideStatus:
    """Reset an override for a new worker group, which has to acknowledge the plan again.

    The step at which an override was applied is kept unless it was rolled back.
    """
    if status.state not in {"APPLIED", "EXPIRED", "DELIVERED"}:
        return status
    if status.until is not None and epoch >= status.until:
        return expire(status, epoch)
    message = "a new worker group began; waits for it to switch"
    again = replace(status, state="DELIVERED", message=message, acks=(), world_size=None)
    return (
        again
        if status.step is not None and status.step <= step
        else replace(again, epoch=None, step=None)
    )


def end(status: OverrideStatus) -> OverrideStatus:
    """Expire an override of an ended job."""
    return (
        replace(status, state="EXPIRED", message="the job ended")
        if status.state in LIVE
        else status
    )


def name_requesters(decision: Decision, users: Mapping[str, str | None]) -> dict[str, str]:
    """Return who requested the overrides in force, by the ID of the override; those from before
    users existed are left out.

    Args:
        decision: decision of the workers.
        users: users who requested the job's overrides, by the ID of the override.
    """
    found = {override_id: users.get(override_id) for override_id in decision.override_ids}
    return {override_id: user for override_id, user in found.items() if user is not None}


def supersede(
    statuses: Sequence[OverrideStatus], layer_names: Iterable[str]
) -> list[OverrideStatus]:
    """Supersede overrides of which newer applied ones hold everything to the end: all layers, the
    batch or the local steps.
    """
    names = tuple(layer_names)
    return [_mark_superseded(status, statuses, names) for status in statuses]


def _mark_superseded(
    status: OverrideStatus, statuses: Sequence[OverrideStatus], names: Sequence[str]
) -> OverrideStatus:
    held = _held_parts(status, names)
    if status.state not in LIVE or not held:
        return status
    newer = [
        other
        for other in statuses
        if other.number > status.number
        and other.state == "APPLIED"
        and _lasts_as_long(other, status)
    ]
    taken = {part for other in newer for part in _held_parts(other, names)}
    if not held <= taken:
        return status
    numbers = [f"#{other.number}" for other in newer if _held_parts(other, names) & held]
    holders = f"newer override{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
    message = f"{_HELD[status.target]} held by {holders}"
    return replace(status, state="SUPERSEDED", message=message)


def _lasts_as_long(newer: OverrideStatus, older: OverrideStatus) -> bool:
    return newer.until is None or (older.until is not None and newer.until >= older.until)


def _held_parts(status: OverrideStatus, names: Sequence[str]) -> set[tuple[OverrideTarget, str]]:
    """Return what an override changes: its target, with each layer, or with "" for all of it."""
    layers = matching_layers(status.layers, names) if status.target == "compression" else ("",)
    return {(status.target, layer) for layer in layers}
