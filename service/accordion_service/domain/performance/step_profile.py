"""Where the time of a job's steps goes, and what a change of it should bring; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

MIN_SPEEDUP = 1.1
"""Smallest predicted factor of a change that is suggested; noise hides smaller ones."""
_MAX_SPEEDUP = 100.0
"""Largest predicted factor: a part that takes all of a step would give an infinite one."""


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
    PROCESSOR = "processor"
    PACING = "pacing"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """What the job's spec says about compression and the division of batches."""

    method: str = ""
    """Compression method; empty if it is unknown."""
    has_levels: bool = True
    """Whether the method's low and high levels differ."""
    policy: str = ""
    """Name of the policy; empty if it is unknown."""
    least_share: float | None = None
    """Smallest share of a layer's energy that the policy `gain` lets a level send; None with
    another policy.
    """
    is_plan_measured: bool = True
    """Whether `compression.buckets_per_exchange` is `auto`, without which no cost is measured."""
    has_script: bool = False
    """Whether a script of the user's own trains, which may do more than compute."""
    is_balanced: bool = True
    """Whether faster workers take more micro-batches; this needs more micro-batches than workers.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    """Where the time of a job's steps goes, as last reported."""

    step_s_by_phase: Mapping[str, float]
    """Mean seconds per step of each of rank 0's phases; empty before they are known."""
    num_workers: int = 0
    """Workers of the group; 0 if unknown."""
    num_hosts: int = 0
    """Hosts that they run on; 0 if unknown."""
    compute_s_by_rank: Sequence[float] = ()
    """Mean seconds per step that each rank loads data and computes; empty if they are unknown."""
    receive_s_by_rank: Sequence[float] = ()
    """Seconds in which each rank received a message from the rank before it; empty if unknown."""
    link_text: str = ""
    """Measured bandwidth and latency; empty if they are unknown."""
    wait_s_by_level: Mapping[str, float] = field(default_factory=dict)
    """Predicted seconds for which a step waits at each level; empty if the policy asks for none."""
    uncompressed_s: float = 0.0
    """Predicted seconds in which the link exchanges all gradients uncompressed; 0 if unknown."""
    shares_by_rank: Sequence[int] = ()
    """Micro-batches of each rank in a step; empty if they are unknown."""
    levels: frozenset[str] = frozenset()
    """Names of the levels in force."""
    methods: frozenset[str] = frozenset()
    """Compression methods in force."""
    is_overridden: bool = False
    """Whether an override decides on a level."""
    is_critical: bool = False
    """Whether a layer is in a critical regime, in which no policy takes a stronger level."""
    has_ended: bool = False
    """Whether the job has ended, so that only a new one can be different."""
    is_guest: bool = False
    """Whether it is a guest run, which has no job file and cannot be cloned."""
    settings: JobSettings = field(default_factory=JobSettings)
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


def predict_speedup(before_s: float, after_s: float) -> float:
    """Return the factor of the samples per second if a step takes less time."""
    return before_s / max(after_s, before_s / _MAX_SPEEDUP)


def format_s(seconds: float) -> str:
    """Return seconds as text with two digits, such as `0.3 s` or `25 ms`."""
    unit, scale = ("s", 1.0) if seconds >= 0.1 else ("ms", 1e3)
    return f"{float(f'{scale * seconds:.2g}'):g} {unit}"
