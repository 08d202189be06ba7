"""The training step: two workers on two hosts, all contestants in the same pair of processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench.contestants import ALONE, PACKAGE
from tests.bench.hosts import WorkerHosts
from tests.bench.report import Measured
from tests.bench.resnet import PARAMETERS
from tests.bench.targets import Target
from tests.bench.timing import Copy, Round

GRADIENT_BYTES = 4 * PARAMETERS
FREE = "at best {:.2f}, if the exchange took no time at all (compute alone {:.0f} ms)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How the rows of one rate are measured."""

    rate: int
    """Mbit/s; 0 for an unshaped link."""
    peers: Mapping[str, tuple[str, str]]
    """Ours and the peer, contestants by the end of the row's name."""
    steps: Mapping[str, int]
    """Steps in a round; those that are not named take `few`. Slow contestants take few."""
    few: int
    rounds: int


OURS = "accordion"
OVER_A_LINK: Mapping[str, tuple[str, str]] = {
    "ddp": (OURS, "ddp"),
    "fp16": (OURS, "fp16"),
    "epfml": (OURS, "epfml"),
    "epfml-package": (OURS, PACKAGE),
    "blocking": (OURS, "accordion blocking"),
    "after-backward": (OURS, "accordion after backward"),
}
"""Rows of every rate that has a limit."""
PLANS: Sequence[Plan] = (
    Plan(
        rate=0,
        peers={"none": ("none", "ddp"), "following": ("accordion following", OURS)},
        steps={},
        few=5,
        rounds=12,
    ),
    Plan(
        rate=1000,
        peers=OVER_A_LINK,
        steps={},
        few=5,
        rounds=6,
    ),
    Plan(
        rate=100,
        peers={
            **OVER_A_LINK,
            "limit": (OURS, ALONE),
            "epfml-alternating": ("accordion alternating", "epfml alternating"),
        },
        steps={"ddp": 1, "fp16": 2},
        few=5,
        rounds=6,
    ),
)


def measure(targets: Sequence[Target], *, quick: bool) -> Iterator[tuple[Target, Measured]]:
    """The rows that are asked for, rate by rate."""
    wanted = {target.row: target for target in targets if target.row.startswith("step-")}
    plans = [(plan, _asked(plan, wanted)) for plan in PLANS]
    if not wanted:
        return
    with WorkerHosts() as pair:
        pair.ask("check")
        for plan, asked in plans:
            if asked:
                found = _run(pair, plan, asked, quick=quick)
                yield from ((wanted[f"step-{plan.rate}-{end}"], found.row(end)) for end in asked)


def _asked(plan: Plan, wanted: Mapping[str, Target]) -> list[str]:
    return [end for end in plan.peers if f"step-{plan.rate}-{end}" in wanted]


def _run(pair: WorkerHosts, plan: Plan, asked: Sequence[str], *, quick: bool) -> Found:
    names = dict.fromkeys([*(name for end in asked for name in plan.peers[end]), ALONE])
    few = 2 if quick else plan.few
    steps = {name: min(few, plan.steps.get(name, few)) for name in names}
    pair.shape(plan.rate)
    answers = pair.ask("measure", steps=steps, rounds=2 if quick else plan.rounds)
    rounds = [
        _slower(together)
        for together in zip(*(answer["rounds"] for answer in answers), strict=True)
    ]
    busy = _slower([answer["processor_s"] for answer in answers])
    return Found(plan=plan, rounds=rounds, payload=answers[0]["payload"], processor_s=busy)


def _slower(together: Sequence[Round]) -> Round:
    """A step is over when both have ended it."""
    return {name: max(seconds[name] for seconds in together) for name in together[0]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the workers measured at one rate."""

    plan: Plan
    rounds: Sequence[Round]
    payload: Mapping[str, float]
    """Bytes a step."""
    processor_s: Mapping[str, float]
    """CPU seconds a step of one worker's threads: other load hardly changes them."""

    def row(self, end: str) -> Measured:
        """The figures of one row."""
        ours, peer = self.plan.peers[end]
        link_s = self._link_s(ours)
        limit = [seconds[ALONE] + link_s for seconds in self.rounds]
        exchanged = 2 if ours == "none" else 4
        floor = [
            least + Copy.seconds_for(exchanged * GRADIENT_BYTES, seconds["copy"])
            for least, seconds in zip(limit, self.rounds, strict=True)
        ]
        return Measured(
            ours=self._of(ours),
            peer=limit if end == "limit" else self._of(peer),
            floor=floor,
            floor_counts=(
                f"compute alone + payload / link + {exchanged} x the gradients'"
                f" {GRADIENT_BYTES / 1e6:.1f} MB"
            )
            + (
                " (read, write)"
                if exchanged == 2
                else " (gradient and residual read, residual and update written)"
            ),
            note=self._note(end, peer),
            details=self._details(),
        )

    def _of(self, name: str) -> list[float]:
        return [seconds[name] for seconds in self.rounds]

    def _link_s(self, name: str) -> float:
        """Two workers' ring sends the payload once over each link."""
        return 8 * self.payload[name] / (self.plan.rate * 1e6) if self.plan.rate else 0.0

    def _note(self, end: str, peer: str) -> str:
        if end == "limit":
            return (
                f"the link alone takes {1e3 * self._link_s(OURS):.1f} ms for"
                f" {self.payload[OURS]:,.0f} bytes"
            )
        alone = sorted(self._of(ALONE))[len(self.rounds) // 2]
        free = sorted(seconds[peer] / seconds[ALONE] for seconds in self.rounds)[
            len(self.rounds) // 2
        ]
        return FREE.format(free, 1e3 * alone)

    def _details(self) -> dict[str, Any]:
        rounds = [
            {name: round(value, 4) for name, value in seconds.items()} for seconds in self.rounds
        ]
        return {
            "rounds_s": rounds,
            "payload_bytes": {name: round(value) for name, value in self.payload.items()},
            "processor_s": {name: round(value, 4) for name, value in self.processor_s.items()},
        }
