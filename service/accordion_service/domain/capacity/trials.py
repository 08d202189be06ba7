"""Finds out for which waiting jobs Ray's autoscaler can add nodes; pure.

Version 2 of it drops a request if any part is infeasible, and reports no more than that. So all new
jobs are requested for at once and, if that is infeasible, in smaller batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from accordion_service.domain.capacity.resources import Resources

RETRY_S = 600.0
"""Seconds until groups that were infeasible are tried again. While they are tried, the autoscaler
drops the whole request for some seconds, and may remove nodes that have been idle for long.
"""
MAX_BATCH = 4096
"""Number of new jobs in the first request, and at most in any."""
Group = tuple[Resources, ...]
"""Workers of a job, or other parts of a request."""
Amounts = tuple[tuple[str, float], ...]
"""Amount of each resource, sorted by name."""
_TOLERANCE = 1e-6
"""Largest difference of two equal sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """What the autoscaler has shown that it can serve."""

    accepted: frozenset[str] = frozenset()
    """IDs of waiting jobs in the last request that was feasible."""
    infeasible: frozenset[Group] = frozenset()
    """Groups that made a request infeasible."""
    num_tried: int = MAX_BATCH
    """Maximum number of new jobs in the next request: halved if one was infeasible, doubled if it
    was feasible.
    """
    restores_accepted: bool = False
    """Whether the next request has no new job, because the autoscaler has dropped an infeasible
    one, and the accepted jobs with it.
    """
    leaves_out_use: bool = False
    """Whether capacity in use is left out, because it made the request infeasible by itself."""
    infeasible_at: float = 0.0
    """Time of the last infeasible request, in seconds since 1970."""
    beside: Amounts = ()
    """Largest amount of each resource that was requested beside an infeasible group: in use, and
    for accepted jobs.
    """


NO_TRIALS = Trials()


def judge_request(
    trials: Trials,
    groups: Mapping[str, Group],
    *,
    used: Group,
    is_feasible: bool,
    now: float,
) -> Trials:
    """Return the trials after the autoscaler has judged a request for these groups, by job id, in
    the order of the queue, and for the capacity in use: whether all of it is feasible.
    """
    new = [job_id for job_id in groups if job_id not in trials.accepted]
    if is_feasible:
        num_tried = min(MAX_BATCH, 2 * trials.num_tried) if new else trials.num_tried
        return replace(
            trials, accepted=frozenset(groups), num_tried=num_tried, restores_accepted=False
        )
    accepted = [groups[job_id] for job_id in groups if job_id in trials.accepted]
    has_accepted = bool(accepted)
    if len(new) > 1:
        return replace(trials, num_tried=len(new) // 2, restores_accepted=has_accepted)
    if new:
        return replace(
            trials,
            infeasible=trials.infeasible | {groups[new[0]]},
            num_tried=1,
            restores_accepted=has_accepted,
            infeasible_at=now,
            beside=_take_larger(trials.beside, _add_up([*used, *chain(*accepted)])),
        )
    if groups:  # fewer nodes are feasible than before
        num_tried = max(1, len(groups) // 2)
        return replace(trials, accepted=frozenset(), num_tried=num_tried, restores_accepted=False)
    return Trials(leaves_out_use=True, infeasible_at=now)


def renew_trials(trials: Trials, groups: Mapping[str, Group], *, used: Group, now: float) -> Trials:
    """Return the trials with what was infeasible to be tried again, at first one job: long ago, or
    when less is in use now than was requested beside it. The latter only if the last request, for
    these groups and the capacity in use, has no accepted job, for which nodes may be starting.
    """
    is_recent = 0.0 <= now - trials.infeasible_at < RETRY_S
    may_fit_now = trials.accepted.isdisjoint(groups) and _is_less(_add_up(used), trials.beside)
    is_kept = is_recent and not may_fit_now
    if is_kept or not (trials.infeasible or trials.leaves_out_use):
        return trials
    return Trials(accepted=trials.accepted, num_tried=1)


def _add_up(parts: Iterable[Resources]) -> Amounts:
    """Return the amount of each resource, by name."""
    totals: dict[str, float] = {}
    for part in parts:
        amounts = (("CPU", part.cpus), ("GPU", part.gpus), ("memory", part.memory), *part.custom)
        for name, amount in amounts:
            totals[name] = totals.get(name, 0.0) + amount
    return tuple(sorted(totals.items()))


def _take_larger(one: Amounts, other: Amounts) -> Amounts:
    """Return the larger amount of each resource."""
    amounts = dict(one)
    return tuple(sorted({**amounts, **{k: max(v, amounts.get(k, 0.0)) for k, v in other}}.items()))


def _is_less(now: Amounts, before: Amounts) -> bool:
    """Return whether there is less of any resource."""
    amounts = dict(now)
    return any(amounts.get(name, 0.0) < amount - _TOLERANCE for name, amount in before)
