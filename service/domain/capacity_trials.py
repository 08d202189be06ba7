"""Finds out which waiting jobs Ray's autoscaler can serve; pure.

Version 2 of it drops a request if any part is impossible, and reports no more than that. So all new
jobs are tried at once and, if that is impossible, one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from service.domain.resources import Resources

RETRY_S = 600.0
"""Seconds until groups that were refused are tried again. While they are tried, the autoscaler
drops the whole request for some seconds, and may remove nodes that have been idle for long.
"""
Group = tuple[Resources, ...]
"""Workers of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """What the autoscaler has shown that it can serve."""

    accepted: frozenset[str] = frozenset()
    """IDs of waiting jobs in the last request that was possible."""
    refused: frozenset[Group] = frozenset()
    """Groups that made a request impossible."""
    is_cautious: bool = False
    """Whether one new job is tried after the other, because several at once were impossible."""
    leaves_out_use: bool = False
    """Whether capacity in use is left out, because it made the request impossible by itself."""
    refused_at: float = 0.0
    """Time of the last refusal, in seconds since 1970."""


NO_TRIALS = Trials()


def judge_request(
    trials: Trials,
    asked: Mapping[str, Group],
    *,
    is_complete: bool,
    is_possible: bool,
    now: float,
) -> Trials:
    """Return the trials after the autoscaler has judged a request for these groups, by job id, in
    the order of the queue: whether all of it is possible. It is not complete if other jobs are
    tried after these.
    """
    new = [job_id for job_id in asked if job_id not in trials.accepted]
    if is_possible:
        return replace(
            trials,
            accepted=frozenset(asked),
            is_cautious=trials.is_cautious and not is_complete,
        )
    if len(new) > 1:
        return replace(trials, is_cautious=True)
    if new:
        return replace(trials, refused=trials.refused | {asked[new[0]]}, refused_at=now)
    if asked:  # fewer nodes are possible than before
        return replace(trials, accepted=frozenset(), is_cautious=True)
    return Trials(leaves_out_use=True, refused_at=now)


def renew_trials(trials: Trials, now: float) -> Trials:
    """Return the trials with what was refused long ago to be tried again, one after the other."""
    is_recent = 0.0 <= now - trials.refused_at < RETRY_S
    if is_recent or not (trials.refused or trials.leaves_out_use):
        return trials
    return Trials(accepted=trials.accepted, is_cautious=True)
