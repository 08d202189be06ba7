"""State changes of an override: pure functions from the known state and an event to the new state.

PENDING -> DELIVERED -> APPLIED, and back to DELIVERED where a rank does not confirm the plan in
force REJECTED, CANCELLED: it is no part of the orders any more EXPIRED, SUPERSEDED: its interval is
over, or newer ones hold what it held; work that is rolled back before that brings it back
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from accordion.overrides import matching_layers
from service.domain.override_status import LIVE, ORDERED, OverrideStatus, SwitchReport

_BATCH = ""
"""Represents the batch among layer names: no layer has an empty name."""


def deliver(standing: OverrideStatus, orders_version: int) -> OverrideStatus:
    """Mark an override as delivered: the Accordion actor confirmed these orders."""
    if standing.state != "PENDING" or standing.orders_version > orders_version:
        return standing
    return replace(standing, state="DELIVERED", message="waits for the workers to switch")


def acknowledge(standing: OverrideStatus, report: SwitchReport) -> OverrideStatus:
    """Mark an override as applied if every rank confirmed the announced plan that contains it."""
    if standing.id not in report.override_ids or standing.state not in ORDERED:
        return standing
    fault = _ack_fault(report)
    if fault:
        return replace(standing, state="DELIVERED", message=fault, acks=report.acks)
    begun = standing if standing.step is not None else report
    return replace(
        standing,
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


def reject(standing: OverrideStatus, reason: str) -> OverrideStatus:
    """Reject an override that the workers cannot apply."""
    return (
        replace(standing, state="REJECTED", message=reason)
        if standing.state in ORDERED
        else standing
    )


def cancel(standing: OverrideStatus) -> OverrideStatus:
    """Cancel one override."""
    return (
        replace(standing, state="CANCELLED", message="handed back")
        if standing.state in LIVE
        else standing
    )


def hand_back(
    standings: Sequence[OverrideStatus], cancelled: OverrideStatus, layer_names: Iterable[str]
) -> list[OverrideStatus]:
    """Cancel an override and the older ones that it superseded: its layers return to the policy."""
    names = tuple(layer_names)
    handed = _held(cancelled, names)

    def change(standing: OverrideStatus) -> OverrideStatus:
        if standing.id == cancelled.id:
            return cancel(standing)
        older = standing.state == "SUPERSEDED" and standing.number < cancelled.number
        if not older or not handed & _held(standing, names):
            return standing
        return replace(standing, state="CANCELLED", message=f"handed back with #{cancelled.number}")

    return [change(standing) for standing in standings]


def expire(standing: OverrideStatus, epoch: int) -> OverrideStatus:
    """Expire an override that ends at or before `epoch`."""
    if standing.state not in LIVE or standing.until is None or epoch < standing.until:
        return standing
    return replace(standing, state="EXPIRED", message=f"it held until epoch {standing.until}")


def restart(standing: OverrideStatus, epoch: int, step: int) -> OverrideStatus:
    """Reset an override for a new worker group, which has to acknowledge the plan again.

    The step at which an override was applied is kept unless it was rolled back.
    """
    if standing.state not in {"APPLIED", "EXPIRED", "DELIVERED"}:
        return standing
    if standing.until is not None and epoch >= standing.until:
        return expire(standing, epoch)
    message = "a new worker group began; waits for it to switch"
    again = replace(standing, state="DELIVERED", message=message, acks=(), world_size=None)
    return (
        again
        if standing.step is not None and standing.step <= step
        else replace(again, epoch=None, step=None)
    )


def end(standing: OverrideStatus) -> OverrideStatus:
    """Expire an override of an ended job."""
    return (
        replace(standing, state="EXPIRED", message="the job ended")
        if standing.state in LIVE
        else standing
    )


def supersede(
    standings: Sequence[OverrideStatus], layer_names: Iterable[str]
) -> list[OverrideStatus]:
    """Supersede overrides whose layers, or batch, are all held to the end by newer applied ones."""
    names = tuple(layer_names)
    return [_superseded(standing, standings, names) for standing in standings]


def _superseded(
    standing: OverrideStatus, standings: Sequence[OverrideStatus], names: Sequence[str]
) -> OverrideStatus:
    held = _held(standing, names)
    if standing.state not in LIVE or not held:
        return standing
    newer = [
        other
        for other in standings
        if other.number > standing.number
        and other.state == "APPLIED"
        and _lasts_as_long(other, standing)
    ]
    taken = {name for other in newer for name in _held(other, names)}
    if not held <= taken:
        return standing
    numbers = [f"#{other.number}" for other in newer if _held(other, names) & held]
    holders = f"newer override{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
    what = "the batch is" if standing.target == "batch" else "all its layers are"
    return replace(standing, state="SUPERSEDED", message=f"{what} held by {holders}")


def _lasts_as_long(newer: OverrideStatus, older: OverrideStatus) -> bool:
    return newer.until is None or (older.until is not None and newer.until >= older.until)


def _held(standing: OverrideStatus, names: Sequence[str]) -> set[str]:
    """Return what an override changes: layers by name, or the batch."""
    return {_BATCH} if standing.target == "batch" else set(matching_layers(standing.layers, names))
