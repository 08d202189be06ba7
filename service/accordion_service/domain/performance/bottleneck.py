"""What holds a job up: the largest avoidable part of its steps, and the best change; pure.

The parts of a step come from rank 0's phases. What rank 0 waits for in its exchanges is split in
two: until the slowest worker has computed, it waits for that worker, and afterwards for the link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from accordion_service.domain.performance.level_changes import change_levels
from accordion_service.domain.performance.step_profile import (
    MIN_SPEEDUP,
    Cause,
    Change,
    StepProfile,
    format_s,
    predict_speedup,
)

MIN_SHARE = 0.1
"""Smallest share of a step that is worth a change; without such a part, computing is the answer."""
SLOW_LINK_FACTOR, SLOW_LINK_S = 3.0, 0.005
"""A link is slow if a message takes this many times as long as on the fastest link, and this many
seconds longer: busy hosts delay messages by some milliseconds.
"""
_ALIKE = 0.9
"""Ratio of two workers' times from which both count as slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One row of the table of parts."""

    phases: tuple[str, ...]
    """Phases of rank 0 that make up the part."""
    text: str
    """Sentence without its end; its fields are given by `_describe`."""
    change: str = ""
    """Change that needs no prediction."""
    guest_change: str = ""
    """Change for a guest run, whose script has no job file; empty if it is the same."""


_PARTS = {
    Cause.COMPUTE: _Part(
        phases=("compute", "optimize"),
        text="Nothing holds this job up: computing takes {share}",
    ),
    Cause.LINK: _Part(
        phases=("communicate",),
        text="The network holds this job up: exchanging gradients takes {share}",
    ),
    Cause.SLOW_LINK: _Part(
        phases=(),
        text="One slow link holds this job up: exchanging gradients takes {share}",
        change="Make {link} as fast as the others",
    ),
    Cause.ENCODING: _Part(
        phases=("encode",),
        text="Compression holds this job up: encoding and decoding gradients takes {share}",
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
        text="{slow} this job up: waiting takes {share}",
        change="Run {workers} on a machine as fast as the others",
    ),
    Cause.EVALUATION: _Part(
        phases=("evaluate",),
        text="Evaluation holds this job up: spread over the steps, it takes {share}",
        change="Evaluate less often (training.evaluate_every_epochs), or on fewer samples",
        guest_change="Evaluate less often, or on fewer samples",
    ),
    Cause.CHECKPOINTS: _Part(
        phases=("checkpoint",),
        text="Saving checkpoints holds this job up: spread over the steps, it takes {share}",
        change=(
            "Save less often (checkpoint.every_epochs, every_steps, every_seconds), or to a faster"
            " storage"
        ),
        guest_change="Save less often, or to a faster storage",
    ),
    Cause.DECISIONS: _Part(
        phases=("decide",),
        text="Deciding on levels holds this job up: spread over the steps, it takes {share}",
        change="Decide less often, with a longer policy.window",
    ),
    Cause.PROCESSOR: _Part(
        phases=(),
        text=(
            "Waiting for a processor holds this job up: all workers run on one host, and exchanging"
            " gradients there takes {share}"
        ),
        change="Use fewer workers, or a host with more free processors",
    ),
    Cause.PACING: _Part(
        phases=("wait",),
        text="The task's option min_step_s holds this job up: waiting takes {share}",
        change="Leave out min_step_s",
    ),
}
PART_NAMES: Mapping[Cause, str] = {
    **{cause: ", ".join(part.phases) for cause, part in _PARTS.items()},
    Cause.SLOW_LINK: "communicate (slow link)",
    Cause.SLOW_WORKER: "slow worker",
    Cause.PROCESSOR: "communicate (one host)",
}
"""Name of each part in tables: its phases, as elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """What holds a job up."""

    cause: Cause
    seconds_by_cause: Mapping[Cause, float]
    """Mean seconds of a step by part."""
    rank: int | None
    """The slow worker, or the one whose links are slow; None if one link alone is slow."""
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
    elif profile.num_workers == 1:
        # Without peers, what is left of an exchange is handing gradients to the encoder.
        is_encoding = profile.methods != {"none"}
        seconds[Cause.ENCODING if is_encoding else Cause.COMPUTE] += seconds.pop(Cause.LINK)
    slow_rank = _split_slow_worker(seconds, profile.compute_s_by_rank)
    link = find_slow_link(profile.receive_s_by_rank)
    if Cause.LINK in seconds and (profile.num_hosts == 1 or link):
        waits = Cause.PROCESSOR if profile.num_hosts == 1 else Cause.SLOW_LINK
        seconds[waits], seconds[Cause.LINK] = seconds[Cause.LINK], 0.0
    cause = max(seconds, key=lambda name: seconds[name] if name != Cause.COMPUTE else 0.0)
    if seconds[cause] < MIN_SHARE * step_s:
        cause = Cause.COMPUTE
    own_link = link[0] if len(link) == 1 else None
    found = Bottleneck(
        cause=cause,
        seconds_by_cause=seconds,
        rank={Cause.SLOW_WORKER: slow_rank, Cause.SLOW_LINK: own_link}.get(cause),
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


def find_slow_link(receive_s_by_rank: Sequence[float]) -> tuple[int, ...]:
    """Return the slow link in the ring of workers.

    It is one rank if only its links to both neighbors are slow, and the sender and the receiver if
    only one link is slow. The result is empty if no link is slow, or several that share no worker.
    """
    size = len(receive_s_by_rank)
    if size < 3:
        return ()
    fastest_s = min(receive_s_by_rank)
    limit_s = max(SLOW_LINK_FACTOR * fastest_s, fastest_s + SLOW_LINK_S)
    slow = [rank for rank, seconds in enumerate(receive_s_by_rank) if seconds > limit_s]
    if len(slow) == 1:
        return ((slow[0] - 1) % size, slow[0])
    return next(((rank,) for rank in slow if set(slow) == {rank, (rank + 1) % size}), ())


def _are_known(compute_s_by_rank: Sequence[float]) -> bool:
    return len(compute_s_by_rank) > 1 and min(compute_s_by_rank) > 0.0


def _median_of_others(compute_s_by_rank: Sequence[float], rank: int) -> float:
    return median(value for one, value in enumerate(compute_s_by_rank) if one != rank)


def _describe(found: Bottleneck, profile: StepProfile) -> str:
    seconds = found.seconds_by_cause[found.cause]
    share = f"{found.share:.0%} of each step ({format_s(seconds)} of {format_s(found.step_s)})"
    slow = _slow_workers(profile)
    holds = f"W{slow[1:]} {'hold' if slow.startswith('workers') else 'holds'}"
    text = _PARTS[found.cause].text.format(share=share, slow=holds)
    match found.cause:
        case Cause.LINK | Cause.SLOW_LINK:
            text += f", at {profile.link_text}" if profile.link_text else ""
            if not _are_known(profile.compute_s_by_rank):
                text += "; this may include waiting for a slower worker"
            if found.cause == Cause.SLOW_LINK:
                text += f"; {_link_text(profile)} takes {_slow_link_text(profile)}"
        case Cause.SLOW_WORKER if found.rank is not None:
            own_s = profile.compute_s_by_rank[found.rank]
            others_s = _median_of_others(profile.compute_s_by_rank, found.rank)
            text += f"; worker {found.rank} computes for {format_s(own_s)},"
            text += f" the others for {format_s(others_s)}"
        case Cause.COMPUTE:
            text += _name_included(profile)
    return f"{text}."


def _name_included(profile: StepProfile) -> str:
    """Return what is counted as computing, too."""
    has_script = profile.is_guest or profile.settings.has_script
    text = "; this includes what else the script does in a step" if has_script else ""
    return (
        text if profile.times_exchanges else f"{text}; on GPUs this includes exchanging gradients"
    )


def _slow_workers(profile: StepProfile) -> str:
    """Return the slowest worker and those about as slow, such as `workers 1 and 2`."""
    times = profile.compute_s_by_rank
    slow = [str(rank) for rank, value in enumerate(times) if value >= _ALIKE * max(times)]
    if len(slow) < 2:
        return f"worker {''.join(slow)}"
    return f"workers {', '.join(slow[:-1])} and {slow[-1]}"


def _link_text(profile: StepProfile) -> str:
    link = find_slow_link(profile.receive_s_by_rank)
    if len(link) == 1:
        return f"the network of worker {link[0]}"
    return f"the link from worker {link[0]} to worker {link[1]}"


def _slow_link_text(profile: StepProfile) -> str:
    slowest_s, fastest_s = max(profile.receive_s_by_rank), min(profile.receive_s_by_rank)
    return f"{format_s(slowest_s)} for 64 KiB, the fastest link {format_s(fastest_s)}"


def _choose_change(found: Bottleneck, profile: StepProfile) -> Change | None:
    """Return the best change; None if noise would hide what it gains."""
    match found.cause:
        case Cause.COMPUTE:
            change = None
        case Cause.LINK | Cause.ENCODING:
            change = change_levels(found.cause, found.seconds_by_cause, profile)
        case Cause.SLOW_WORKER:
            change = _help_slow_worker(found, profile)
        case Cause.SLOW_LINK:
            change = _remove_part(
                found, _PARTS[found.cause].change.format(link=_link_text(profile))
            )
        case _:
            part = _PARTS[found.cause]
            is_other = profile.is_guest and part.guest_change
            change = _remove_part(found, part.guest_change if is_other else part.change)
    return change if change is not None and change.speedup >= MIN_SPEEDUP else None


def _help_slow_worker(found: Bottleneck, profile: StepProfile) -> Change:
    if _is_share_uneven(found, profile):
        name = "global batch" if profile.is_guest else "training.global_batch"
        text = f"Choose a {name} that gives all workers as many micro-batches"
    elif profile.times_exchanges and _could_balance(profile):
        return _balance(found, profile)
    else:
        text = _PARTS[found.cause].change.format(workers=_slow_workers(profile))
    return _remove_part(found, text)


def _remove_part(found: Bottleneck, text: str) -> Change:
    """Return a change with the gain it has if the whole part goes away."""
    speedup = predict_speedup(found.step_s, found.step_s - found.seconds_by_cause[found.cause])
    return Change(text=text, speedup=speedup, is_upper_bound=True)


def _could_balance(profile: StepProfile) -> bool:
    """Return whether batches are divided evenly and could be divided otherwise."""
    shares = profile.shares_by_rank
    has_choice = len(shares) == len(profile.compute_s_by_rank) and sum(shares) > len(shares)
    return has_choice and not profile.settings.is_balanced and not profile.is_guest


def _balance(found: Bottleneck, profile: StepProfile) -> Change:
    """Return the change to dividing batches by the workers' speed, after which they all compute for
    equally long.
    """
    times, shares = profile.compute_s_by_rank, profile.shares_by_rank
    speeds = [share / seconds for share, seconds in zip(shares, times, strict=True)]
    balanced_s = sum(shares) / sum(speeds)
    saved_s = min(max(times) - balanced_s, found.seconds_by_cause[Cause.SLOW_WORKER])
    return Change(
        text="Start the job with workers.balance true, which gives faster workers more to compute",
        speedup=predict_speedup(found.step_s, found.step_s - saved_s),
        is_upper_bound=True,
    )


def _is_share_uneven(found: Bottleneck, profile: StepProfile) -> bool:
    """Return whether the slowest worker has more to compute and is not slower per micro-batch."""
    times, shares = profile.compute_s_by_rank, profile.shares_by_rank
    if found.rank is None or len(shares) != len(times) or min(shares) < 1:
        return False
    per_share = [seconds / share for seconds, share in zip(times, shares, strict=True)]
    others_s = _median_of_others(per_share, found.rank)
    return shares[found.rank] > min(shares) and _ALIKE * per_share[found.rank] <= others_s
