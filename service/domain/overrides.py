"""How far an override got: pure functions from what is known of it and what happened to what is
known now.

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
"""Stands for the batch among names of layers: no layer has an empty name."""


def deliver(standing: OverrideStatus, orders_version: int) -> OverrideStatus:
    """The workers' side confirmed that it holds these orders."""
    if standing.state != "PENDING" or standing.orders_version > orders_version:
        return standing
    return replace(standing, state="DELIVERED", message="waits for the workers to switch")


def acknowledge(standing: OverrideStatus, report: SwitchReport) -> OverrideStatus:
    """A plan that holds the override is in force: applied exactly when every rank says that it runs
    this plan.
    """
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
    """Why the acknowledgements do not hold for every rank; empty where they do."""
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
    """The workers' side cannot apply it."""
    return (
        replace(standing, state="REJECTED", message=reason)
        if standing.state in ORDERED
        else standing
    )


def cancel(standing: OverrideStatus) -> OverrideStatus:
    """A person handed back what it held."""
    return (
        replace(standing, state="CANCELLED", message="handed back")
        if standing.state in LIVE
        else standing
    )


def hand_back(
    standings: Sequence[OverrideStatus], cancelled: OverrideStatus, layer_names: Iterable[str]
) -> list[OverrideStatus]:
    """A person cancels one: what it held goes to the policy, and to none of the older ones that it
    had superseded.
    """
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
    """The job has reached `epoch`."""
    if standing.state not in LIVE or standing.until is None or epoch < standing.until:
        return standing
    return replace(standing, state="EXPIRED", message=f"it held until epoch {standing.until}")


def restart(standing: OverrideStatus, epoch: int, step: int) -> OverrideStatus:
    """A new worker group begins there: what is in force has to be acknowledged anew.

    Where it came into force stays as it was, unless that was rolled back.
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
    """The job is over."""
    return (
        replace(standing, state="EXPIRED", message="the job ended")
        if standing.state in LIVE
        else standing
    )


def supersede(
    standings: Sequence[OverrideStatus], layer_names: Iterable[str]
) -> list[OverrideStatus]:
    """Take those out of which every layer, or the batch, is held to the end by newer ones that are
    applied.
    """
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
    """What it is about: layers by name, or the batch."""
    return {_BATCH} if standing.target == "batch" else set(matching_layers(standing.layers, names))
