"""The change of compression that should speed a job up most; pure.

What a level costs is measured with the policy `cost_aware` alone. Without it, a gain is what the
part in force takes, less what is known of the other level, so it is no more than an upper bound.
"""

from __future__ import annotations

from collections.abc import Mapping

from accordion_service.domain.performance.step_profile import (
    MIN_SPEEDUP,
    Cause,
    Change,
    StepProfile,
    format_s,
    predict_speedup,
)

_UNCOMPRESSED = frozenset({"none", "half"})
_LIGHTEST = "low"
_COST_AWARE = "cost_aware"
_MEASURES_OTHERS = "start the job with policy.name cost_aware, which measures what each level costs"


def change_levels(
    cause: Cause, seconds: Mapping[Cause, float], profile: StepProfile
) -> Change | None:
    """Return the best change of a job that its link or encoding holds up; None without one.

    `seconds` are those of a step by part, with a part for the link and for encoding.
    """
    step_s = sum(seconds.values())
    if profile.num_workers == 1:
        return None if profile.methods == {"none"} else _leave_out_compression(seconds, profile)
    if profile.wait_s_by_level:
        return _change_by_costs(seconds, profile)
    if profile.settings.policy == _COST_AWARE:
        text = _get_costs(profile)
    elif cause == Cause.ENCODING:
        return None if profile.methods == {"none"} else _lighten(seconds, profile)
    elif profile.settings.method in _UNCOMPRESSED:
        text = (
            "Start the job with compression.method powersgd and policy.name cost_aware, which"
            " measures whether that is faster"
        )
        text += "" if profile.is_guest else " ('accordion clone' with --set)"
    elif _is_strongest(profile):
        return _double_batch(seconds, "The layers are at their strongest level")
    else:
        text = _strengthen(profile)
    if not text:
        return None
    return _upper_bound(text, step_s, saved_s=seconds[cause])


def _leave_out_compression(seconds: Mapping[Cause, float], profile: StepProfile) -> Change:
    text = f"{_take_level('none', profile)}: one worker exchanges no gradients"
    return _upper_bound(text, sum(seconds.values()), saved_s=seconds[Cause.ENCODING])


def _change_by_costs(seconds: Mapping[Cause, float], profile: StepProfile) -> Change | None:
    """Return the change to the level with the shortest predicted wait, or to a larger batch if no
    level is better; None if the levels in force have no prediction.
    """
    waits, step_s = profile.wait_s_by_level, sum(seconds.values())
    in_force = [waits[level] for level in profile.levels if level in waits]
    if not in_force:
        return None
    candidates = _candidates(profile)
    best = min(candidates, key=lambda name: waits[name], default="")
    speedup = predict_speedup(step_s, step_s - max(in_force) + waits[best]) if best else 1.0
    if speedup < MIN_SPEEDUP:
        return _double_batch(seconds, "No level is known to be faster on this link")
    return Change(
        text=f"{_take_level(best, profile)}, where a step waits {format_s(waits[best])}",
        speedup=speedup,
        is_upper_bound=len(in_force) > 1,
    )


def _candidates(profile: StepProfile) -> set[str]:
    """Return the levels that may be better than those in force.

    The policy `cost_aware` also knows which levels slow the rest of a step down. So only what it
    may not choose is left: the stronger levels while layers are critical, or all under an override.
    """
    names = set(profile.wait_s_by_level)
    if profile.settings.policy != _COST_AWARE or profile.is_overridden:
        return names
    return names - _UNCOMPRESSED - {_LIGHTEST} if profile.is_critical else set()


def _take_level(level: str, profile: StepProfile) -> str:
    if profile.has_ended:
        return _start_at(level)
    text = f"Override the layers to {_name_level(level)}"
    if profile.is_critical and level not in _UNCOMPRESSED | {_LIGHTEST}:
        text += " although some are critical, so that accuracy may fall"
    return text


def _get_costs(profile: StepProfile) -> str:
    """Return how the policy `cost_aware` gets the costs that it has not measured yet."""
    if not profile.settings.is_plan_measured:
        return (
            "Start the job with compression.buckets_per_exchange auto, without which the policy"
            " cost_aware measures no costs"
        )
    if profile.has_ended:
        return ""
    return (
        "Wait for the next decision, at which the policy cost_aware takes the fastest level for"
        " this link"
    )


def _lighten(seconds: Mapping[Cause, float], profile: StepProfile) -> Change | None:
    """Return the change to a level that encodes faster.

    Without compression the link takes longer. What exceeds the time of computing, which can hide an
    exchange, comes on top of a step.
    """
    longer_s = profile.uncompressed_s - seconds[Cause.COMPUTE] - seconds[Cause.LINK]
    text = _try_level("method=none", profile)
    return _upper_bound(
        text, sum(seconds.values()), saved_s=seconds[Cause.ENCODING] - max(0.0, longer_s)
    )


def _strengthen(profile: StepProfile) -> str:
    """Return the text of a change to the strongest level, which the policy did not choose."""
    least = profile.settings.least_share
    if least is None:
        return _try_level("high", profile)
    rejected = "sends" if profile.levels & _UNCOMPRESSED else "may send"
    trade = f"{rejected} less of a gradient than the {least:.0%} of policy.options.least"
    if profile.has_ended:
        return f"Start the job with policy.name fixed: its level high {trade}, so accuracy may fall"
    return f"Override the layers to high, which {trade}, so accuracy may fall"


def _try_level(level: str, profile: StepProfile) -> str:
    if profile.has_ended:
        return f"{_MEASURES_OTHERS[0].upper()}{_MEASURES_OTHERS[1:]}"
    return f"Override the layers to {level} to see whether it is faster, or {_MEASURES_OTHERS}"


def _is_strongest(profile: StepProfile) -> bool:
    if profile.methods & _UNCOMPRESSED:
        return False
    return profile.levels == {"high"} or not profile.settings.has_levels


def _name_level(level: str) -> str:
    """Return a level as `accordion override --level` takes it."""
    return f"method={level}" if level in _UNCOMPRESSED else level


def _start_at(level: str) -> str:
    if level in _UNCOMPRESSED:
        return f"Start the job with compression.method {level}"
    return f"Start the job with policy.name fixed and policy.options.level {level}"


def _double_batch(seconds: Mapping[Cause, float], reason: str) -> Change:
    """Return the change to twice the batch, which needs half of the exchanges."""
    step_s = sum(seconds.values())
    exchange_s = seconds.get(Cause.LINK, 0.0) + seconds.get(Cause.ENCODING, 0.0)
    return Change(
        text=f"{reason}; a global batch twice as large needs half of the exchanges",
        speedup=predict_speedup(2.0 * step_s, 2.0 * step_s - exchange_s),
        is_upper_bound=False,
    )


def _upper_bound(text: str, step_s: float, *, saved_s: float) -> Change:
    return Change(text=text, speedup=predict_speedup(step_s, step_s - saved_s), is_upper_bound=True)
