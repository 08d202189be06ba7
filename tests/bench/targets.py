"""What is measured against whom, and what it has to reach: the table of the bench, without its
figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tests.bench.peers_package import describe_package


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One row."""

    row: str
    work: str
    peer: str
    reach: Literal[">=", "<="] | None = None
    """`>=`: peer's seconds over ours; `<=`: ours over the peer's. None: for knowledge, peer's over
    ours.
    """
    ratio: float | None = None

    @property
    def ours_on_top(self) -> bool:
        """Whether the ratio is ours over the peer's."""
        return self.reach == "<="

    def met_by(self, ratio: float) -> bool | None:
        """Return whether the ratio reaches the target; None without a target."""
        if self.ratio is None:
            return None
        return ratio <= self.ratio if self.ours_on_top else ratio >= self.ratio

    def __str__(self) -> str:
        return f"{self.reach} {self.ratio:g}" if self.reach else "-"


def _step(rate: int, peer: str, words: str, reach: float | None = None) -> Target:
    work = f"step of ResNet-18, PowerSGD rank 4, 2 hosts at {rate} Mbit/s"
    return Target(
        row=f"step-{rate}-{peer}", work=work, peer=words, reach=">=" if reach else None, ratio=reach
    )


_REIMPLEMENTED = "epfml's PowerSGD, re-implemented in peers_powersgd.py"
_PACKAGE = "epfml's package, both factors a step"
_ENCODED = "encode + decode of 25.6 M floats"

TARGETS: Sequence[Target] = (
    _step(100, "ddp", "plain DDP", 13.0),
    _step(100, "fp16", "DDP with its fp16 hook", 8.0),
    Target(
        row="step-100-limit",
        work="step of ResNet-18, PowerSGD rank 4, 2 hosts at 100 Mbit/s",
        peer="compute alone + payload / link",
        reach="<=",
        ratio=1.12,
    ),
    _step(100, "epfml", f"{_REIMPLEMENTED}, both factors a step (equal bytes)", 1.1),
    _step(100, "epfml-package", f"{_PACKAGE}: {describe_package()}"),
    Target(
        row="step-100-epfml-alternating",
        work="step of ResNet-18, PowerSGD rank 4 alternating, 2 hosts at 100 Mbit/s",
        peer=f"{_REIMPLEMENTED}, one factor a step (its default)",
    ),
    _step(100, "blocking", "ours blocking in the hook"),
    _step(100, "after-backward", "ours after backward, one bucket"),
    _step(1000, "ddp", "plain DDP", 1.95),
    _step(1000, "fp16", "DDP with its fp16 hook", 1.2),
    _step(1000, "epfml", f"{_REIMPLEMENTED}, both factors a step (equal bytes)"),
    _step(1000, "epfml-package", f"{_PACKAGE}: {describe_package()}"),
    _step(1000, "blocking", "ours blocking in the hook"),
    _step(1000, "after-backward", "ours after backward, one bucket"),
    Target(
        row="step-0-none",
        work="step of ResNet-18, method none, 2 hosts unshaped",
        peer="plain DDP",
        reach=">=",
        ratio=0.98,
    ),
    Target(
        row="step-0-following",
        work=(
            "step of ResNet-18, PowerSGD rank 4, unchanged loop with optimizer.step(), 2 hosts"
            " unshaped"
        ),
        peer="ours with session.step()",
        reach="<=",
        ratio=1.01,
    ),
    Target(
        row="encode-topk",
        work=f"{_ENCODED}, topk 1 %",
        peer="torch.topk of the whole tensor",
        reach=">=",
        ratio=5.0,
    ),
    Target(
        row="encode-adacomp",
        work=f"{_ENCODED}, adacomp in bins of 500",
        peer="a plain version in three passes",
        reach=">=",
        ratio=2.0,
    ),
    Target(
        row="encode-adacomp-50",
        work=f"{_ENCODED}, adacomp in bins of 50",
        peer="a plain version in three passes",
        reach=">=",
        ratio=2.0,
    ),
    Target(
        row="encode-signsgd",
        work=f"{_ENCODED}, signsgd",
        peer="x.sign() with byte packing by shifts",
        reach=">=",
        ratio=5.0,
    ),
    Target(
        row="encode-qsgd",
        work=f"{_ENCODED}, qsgd 8 bits",
        peer="a plain torch version",
        reach=">=",
        ratio=1.5,
    ),
    Target(
        row="statistic",
        work="statistic kept by the detector, a step of ResNet-18",
        peer="SGD with momentum on the same parameters",
        reach="<=",
        ratio=0.5,
    ),
)


def chosen(prefixes: Sequence[str]) -> list[Target]:
    """The rows whose names begin with one of these; all where none is given.

    Raises:
        SystemExit: no row begins so.
    """
    for prefix in prefixes:
        if not any(target.row.startswith(prefix) for target in TARGETS):
            raise SystemExit(
                f"no row begins with {prefix!r}; rows are"
                f" {', '.join(target.row for target in TARGETS)}"
            )
    return [target for target in TARGETS if not prefixes or target.row.startswith(tuple(prefixes))]
