"""What holds a job up: the largest avoidable part of its steps, and the best change; pure.

The parts of a step come from rank 0's phases. What rank 0 waits for in its exchanges is split in
two: until the slowest worker has computed, it waits for that worker, and afterwards for the link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median

MIN_SHARE = 0.1
"""Smallest share of a step that is worth a change; without such a part, computing is the answer."""
SLOW_LINK_FACTOR, SLOW_LINK_S = 3.0, 0.005
"""A link is slow if a message takes this many times as long as on the fastest link, and this many
seconds longer: busy hosts delay messages by some milliseconds.
"""
MIN_SAVING = 0.05
"""Smallest saving, as a share of the step, for which another level is suggested."""
_MAX_SPEEDUP = 100.0


class Cause(StrEnum):
    """Part of a step."""

    COMPUTE = "compute"
    LINK = "link"
    SLOW_LINK = "slow_link"
    SLOW_WORKER = "slow_worker"
    ENCODING = "encoding"
    DATA_LOADING = "data_loading"
    EVALUATION = "evaluation"
    CHECKPOINTS = "checkpoints"
    DECISIONS = "decisions"
    PACING = "pacing"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One row of the table of parts; texts have fields for the share and for the slow worker."""

    phases: tuple[str, ...]
    """Phases of rank 0 that make up the part."""
    text: str
    change: str = ""
    """Change that needs no prediction."""


_PARTS = {
    Cause.COMPUTE: _Part(
        phases=("compute", "optimize"),
        text="Nothing holds this job up: computing takes {share}",
    ),
    Cause.LINK: _Part(
        phases=("communicate",),
        text="The network holds this job up: exchanging gradients takes {share}",
        change=(
            "Submit the job with policy.name cost_aware, which takes the fastest level for this"
            " link, or override the layers to high"
        ),
    ),
    Cause.SLOW_LINK: _Part(
        phases=(),
        text="One slow link holds this job up: exchanging gradients takes {share}",
        change="Run worker {rank} where its network is as fast as that of the others",
    ),
    Cause.ENCODING: _Part(
        phases=("encode",),
        text="Compression holds this job up: encoding and decoding gradients takes {share}",
        change="Override the layers to a level that encodes faster, such as none",
    ),
    Cause.DATA_LOADING: _Part(
        phases=("load",),
        text="Loading data holds this job up: it takes {share}",
        change=(
            "Read samples in parallel with training, for example with the num_workers of a"
            " DataLoader, or keep them in memory"
        ),
    ),
    Cause.SLOW_WORKER: _Part(
        phases=(),
        text="Worker {rank} holds this job up: waiting for it takes {share}",
        change="Run worker {rank} on a machine as fast as the others",
    ),
    Cause.EVALUATION: _Part(
        phases=("evaluate",),
        text="Evaluation holds this job up: spread over the steps, it takes {share}",
        change="Evaluate on fewer samples or less often",
    ),
    Cause.CHECKPOINTS: _Part(
        phases=("checkpoint",),
        text="Saving checkpoints holds this job up: spread over the steps, it takes {share}",
        change=(
            "Save less often (checkpoint.every_epochs, every_steps, every_seconds), or to a faster"
            " storage"
        ),
    ),
    Cause.DECISIONS: _Part(
        phases=("decide",),
        text="Deciding on levels holds this job up: spread over the steps, it takes {share}",
        change="Decide less often, with a longer policy.window",
    ),
    Cause.PACING: _Part(
        phases=("wait",),
        text="The task's option min_step_s holds this job up: waiting takes {share}",
        change="Leave out min_step_s",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    """Where the time of a job's steps goes, as last reported."""

    step_s_by_phase: Mapping[str, float]
    """Mean seconds per step of each of rank 0's phases; empty before they are known."""
    compute_s_by_rank: Sequence[float] = ()
    """Mean seconds per step that each rank loads data and computes; empty if they are unknown."""
    receive_s_by_rank: Sequence[float] = ()
    """Seconds in which each rank received a message from the rank before it; empty if unknown."""
    link_text: str = ""
    """Measured bandwidth and latency; empty if they are unknown."""
    wait_s_by_level: Mapping[str, float] = field(default_factory=dict)
    """Predicted seconds for which a step waits at each level; empty if the policy asks for none."""
    levels: frozenset[str] = frozenset()
    """Names of the levels in force."""
    times_exchanges: bool = True
    """Whether waiting for exchanges is told apart from computing; false on GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The best change of a job and what it should bring."""

    text: str
    speedup: float
    """Predicted factor of the samples per second."""
    is_upper_bound: bool
    """Whether the factor assumes that the whole part goes away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """What holds a job up."""

    cause: Cause
    seconds_by_cause: Mapping[Cause, float]
    """Mean seconds of a step by part."""
    rank: int | None
    """The slow worker, or the one with the slow link."""
    sentence: str
    change: Change | None

    @property
    def step_s(self) -> float:
        """Mean seconds of a step."""
        return sum(self.seconds_by_cause.values())

    @property
    def share(self) -> float:
        """Share of the step, from 0 to 1."""
        return self.seconds_by_cause[self.cause] / self.step_s


def find_bottleneck(profile: StepProfile) -> Bottleneck | None:
    """Find the largest part of a step besides computing; None if the parts are not known yet."""
    seconds = {
        cause: sum(profile.step_s_by_phase.get(phase, 0.0) for phase in part.phases)
        for cause, part in _PARTS.items()
    }
    step_s = sum(seconds.values())
    if step_s <= 0.0:
        return None
    if not profile.times_exchanges:
        for cause in (Cause.LINK, Cause.ENCODING):
            seconds[Cause.COMPUTE] += seconds.pop(cause)
    ranks = {
        Cause.SLOW_WORKER: _split_slow_worker(seconds, profile.compute_s_by_rank),
        Cause.SLOW_LINK: find_slow_link(profile.receive_s_by_rank),
    }
    if ranks[Cause.SLOW_LINK] is not None and Cause.LINK in seconds:
        seconds[Cause.SLOW_LINK], seconds[Cause.LINK] = seconds[Cause.LINK], 0.0
    cause = max(seconds, key=lambda name: seconds[name] if name != Cause.COMPUTE else 0.0)
    if seconds[cause] < MIN_SHARE * step_s:
        cause = Cause.COMPUTE
    found = Bottleneck(
        cause=cause,
        seconds_by_cause=seconds,
        rank=ranks.get(cause),
        sentence="",
        change=None,
    )
    return replace(found, sentence=_describe(found, profile), change=_choose_change(found, profile))


def _split_slow_worker(
    seconds: dict[Cause, float], compute_s_by_rank: Sequence[float]
) -> int | None:
    """Move the time that all lose to the slowest worker into a part of its own; return its rank.

    On rank 0 it is part of what rank 0 computes and loads, on another rank of rank 0's exchanges.
    """
    if not _are_known(compute_s_by_rank):
        return None
    rank = max(range(len(compute_s_by_rank)), key=compute_s_by_rank.__getitem__)
    others_s = _median_of_others(compute_s_by_rank, rank)
    if rank == 0:
        excess_s = compute_s_by_rank[0] - others_s
        sources = [Cause.COMPUTE, Cause.DATA_LOADING]
    else:
        excess_s = compute_s_by_rank[rank] - max(others_s, compute_s_by_rank[0])
        sources = [Cause.LINK if Cause.LINK in seconds else Cause.COMPUTE]
    for cause in sources:
        moved = min(seconds[cause], max(0.0, excess_s - seconds[Cause.SLOW_WORKER]))
        seconds[cause] -= moved
        seconds[Cause.SLOW_WORKER] += moved
    return rank


def find_slow_link(receive_s_by_rank: Sequence[float]) -> int | None:
    """Return the rank whose links to both neighbors in the ring are the only slow ones.

    If only one link is slow, it is the rank that receives from it. The result is None if no link is
    slow, or several that do not share a worker.
    """
    if len(receive_s_by_rank) < 3:
        return None
    fastest_s = min(receive_s_by_rank)
    limit_s = max(SLOW_LINK_FACTOR * fastest_s, fastest_s + SLOW_LINK_S)
    slow = [rank for rank, seconds in enumerate(receive_s_by_rank) if seconds > limit_s]
    if len(slow) == 1:
        return slow[0]
    for rank in slow:
        if set(slow) == {rank, (rank + 1) % len(receive_s_by_rank)}:
            return rank
    return None


def _are_known(compute_s_by_rank: Sequence[float]) -> bool:
    return len(compute_s_by_rank) > 1 and min(compute_s_by_rank) > 0.0


def _median_of_others(compute_s_by_rank: Sequence[float], rank: int) -> float:
    return median(value for one, value in enumerate(compute_s_by_rank) if one != rank)


def _describe(found: Bottleneck, profile: StepProfile) -> str:
    seconds = found.seconds_by_cause[found.cause]
    share = f"{found.share:.0%} of each step ({_format_s(seconds)} of {_format_s(found.step_s)})"
    text = _PARTS[found.cause].text.format(share=share, rank=found.rank)
    if found.cause in (Cause.LINK, Cause.SLOW_LINK):
        text += f", at {profile.link_text}" if profile.link_text else ""
        if not _are_known(profile.compute_s_by_rank):
            text += "; this may include waiting for a slower worker"
    if found.cause == Cause.SLOW_LINK and found.rank is not None:
        own_s, fastest_s = profile.receive_s_by_rank[found.rank], min(profile.receive_s_by_rank)
        text += (
            f"; worker {found.rank} receives a message of 64 KiB in {_format_s(own_s)}, the fastest"
            f" in {_format_s(fastest_s)}"
        )
    if found.cause == Cause.SLOW_WORKER and found.rank is not None:
        own_s = profile.compute_s_by_rank[found.rank]
        others_s = _median_of_others(profile.compute_s_by_rank, found.rank)
        text += f"; it computes for {_format_s(own_s)}, the others for {_format_s(others_s)}"
    if found.cause == Cause.COMPUTE and not profile.times_exchanges:
        text += "; on GPUs this includes exchanging gradients"
    return f"{text}."


def _choose_change(found: Bottleneck, profile: StepProfile) -> Change | None:
    if found.cause == Cause.COMPUTE:
        return None
    if found.cause in (Cause.LINK, Cause.ENCODING) and profile.wait_s_by_level:
        return _change_level(found, profile) or _double_batch(found)
    if found.cause == Cause.LINK and profile.levels == {"high"}:
        return _double_batch(found)
    return Change(
        text=_PARTS[found.cause].change.format(rank=found.rank),
        speedup=_ratio(found.step_s, found.step_s - found.seconds_by_cause[found.cause]),
        is_upper_bound=True,
    )


def _change_level(found: Bottleneck, profile: StepProfile) -> Change | None:
    """Return the change to the level with the shortest predicted wait, if it saves enough."""
    waits = profile.wait_s_by_level
    in_force = [waits[level] for level in profile.levels if level in waits]
    best = min(waits, key=lambda name: waits[name])
    if not in_force or max(in_force) - waits[best] < MIN_SAVING * found.step_s:
        return None
    then_s = found.step_s - max(in_force) + waits[best]
    return Change(
        text=f"Override the layers to {best}, where a step waits {_format_s(waits[best])}",
        speedup=_ratio(found.step_s, then_s),
        is_upper_bound=len(in_force) > 1,
    )


def _double_batch(found: Bottleneck) -> Change:
    """Return the change to twice the batch, which needs half of the exchanges."""
    seconds = found.seconds_by_cause
    exchange_s = seconds.get(Cause.LINK, 0.0) + seconds.get(Cause.ENCODING, 0.0)
    return Change(
        text=(
            "The layers are at the fastest level known for this link; a global batch twice as"
            " large needs half of the exchanges"
        ),
        speedup=_ratio(2.0 * found.step_s, 2.0 * found.step_s - exchange_s),
        is_upper_bound=False,
    )


def _ratio(before_s: float, after_s: float) -> float:
    return before_s / max(after_s, before_s / _MAX_SPEEDUP)


def _format_s(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds >= 0.1 else f"{1e3 * seconds:.2g} ms"
