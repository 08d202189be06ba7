"""Timing in pairs: the contestants take turns, and a ratio is taken within a round, where the
machine is the same.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

COPIED = 25_600_000
"""Floats of the copy that gives the memory bandwidth: 102 MB, larger than caches."""

Round = Mapping[str, float]
"""Seconds by contestant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A figure of every round, in short."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarize values, at least one."""
        return cls(median=statistics.median(values), least=min(values), most=max(values))


class Copy:
    """The contestant that does nothing but read and write once."""

    bytes_per_call = 2 * 4 * COPIED

    def __init__(self) -> None:
        self._source, self._target = torch.ones(COPIED), torch.zeros(COPIED)

    def __call__(self) -> None:
        self._target.copy_(self._source)

    @classmethod
    def seconds_for(cls, traffic_bytes: float, copy_s: float) -> float:
        """How long this many bytes, reads and writes together, take at the speed of the copy."""
        return traffic_bytes / cls.bytes_per_call * copy_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a contestant does; `prepare` is called before every call and not timed."""

    run: Callable[[], object]
    prepare: Callable[[], object] | None = None


def measured_rounds(works: Mapping[str, Work], rounds: int, calls: int = 1) -> list[Round]:
    """Processor seconds a call of each work, in every round; a round before the first is not
    counted.

    The works compute on one thread and wait for nobody, so on a quiet machine these are the seconds
    on the wall; on a busy one they leave out the time in which others computed. `NAME in the
    kernel` is the part that the kernel took, which hands out fresh memory.
    """
    return [_round(works, calls) for _ in range(rounds + 1)][1:]


def _round(works: Mapping[str, Work], calls: int) -> Round:
    seconds = {}
    for name, work in works.items():
        found = [_processor_s(work) for _ in range(calls)]
        seconds[name] = sum(total for total, _ in found) / calls
        seconds[f"{name} in the kernel"] = sum(kernel for _, kernel in found) / calls
    return seconds


def _processor_s(work: Work) -> tuple[float, float]:
    """Seconds of one call: all, and in the kernel."""
    if work.prepare is not None:
        work.prepare()
    kernel = resource.getrusage(resource.RUSAGE_SELF).ru_stime
    started = time.process_time()
    work.run()
    return time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_stime - kernel


def seconds_of(run: Callable[[], object], calls: int) -> float:
    """Mean seconds of a call on the wall, nothing between the calls."""
    started = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - started) / calls
