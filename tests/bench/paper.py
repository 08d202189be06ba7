"""Claims of the papers, by simulation: `python -m tests.bench.paper [--recipes NAME...]`;
ACCORDION_DATA has the data.

Whether it matters when bytes are spent, and what batch growth and compression do together, on the
small image model. Each contestant runs at its own best learning rate, as in
`tests.bench.learning`; so do the tables. Counts of floats that arithmetic fixes are in
`tests/unit/accordion/test_ledger.py`.
"""

from __future__ import annotations

from pathlib import Path

from tests.bench.learning import EVERY_STEP, NONE, Recipe, parse_names, run_all

RESULTS = Path(__file__).with_name("results")
TITLE = "Claims of the papers, tried"
EPOCHS = 10
LIGHT_EPOCHS = 3
"""Epochs of ten at rank 4; the others are at rank 1."""
RANKS = {
    **EVERY_STEP,
    "compression": "{method: powersgd, low: {rank: 4}, high: {rank: 1}}",
}
TWO_LEVEL = {"policy": "{name: two_level, threshold: 0.5, window: {steps: 16}}"}
BATCH = {"batch": "{low: 128, high: 1024}"}


def _light_in(*epochs: int) -> dict[str, str]:
    """Return changes for rank 4 in these epochs and rank 1 in the others."""
    table = {epoch: "low" if epoch in epochs else "high" for epoch in range(EPOCHS)}
    entries = ", ".join(f"'{epoch}': {level}" for epoch, level in table.items())
    return {**RANKS, "policy": f"{{name: scheduled, options: {{table: {{{entries}}}}}}}"}


def _fixed(level: str) -> dict[str, str]:
    return {**RANKS, "policy": f"{{name: fixed, options: {{level: {level}}}}}"}


ALL = {
    "when ranks matter": Recipe(
        file="gap.yaml",
        data="cifar10-subset.zip",
        metric="accuracy",
        smaller=False,
        rates=(0.025, 0.05, 0.1, 0.2),
        contestants={
            "rank 4": _fixed("low"),
            "rank 4 in the first 3 epochs": _light_in(0, 1, 2),
            "rank 4 in epochs 0, 5 and 8: the start and the drops of the rate": _light_in(0, 5, 8),
            "rank 4 in epochs 2, 4 and 7: drawn once": _light_in(2, 4, 7),
            "rank 4 in the last 3 epochs": _light_in(7, 8, 9),
            "two_level, rank 4 and 1": {**RANKS, **TWO_LEVEL},
            "rank 1": _fixed("high"),
        },
        published={
            "rank 4": "93.4 % (VGG-19, 300 epochs of CIFAR-10)",
            "two_level, rank 4 and 1": "92.9 %",
            "rank 1": "68.6 %",
        },
    ),
    "batch growth": Recipe(
        file="gap.yaml",
        data="cifar10-subset.zip",
        metric="accuracy",
        smaller=False,
        rates=(0.025, 0.05, 0.1, 0.2),
        contestants={
            "batch 128": NONE["none, every step"],
            "batch 128 and 1024": {**NONE["none, every step"], **TWO_LEVEL, **BATCH},
            "batch 1024": {
                **NONE["none, every step"],
                "training.global_batch": "1024",
                "training.micro_batch": "256",
            },
            "batch 128 and 1024, two_level, rank 4 and 1": {**RANKS, **TWO_LEVEL, **BATCH},
            "batch 128 and 1024, rank 4": {**_fixed("low"), **BATCH},
        },
        published={
            "batch 128": "94.5 % (ResNet-18, 300 epochs of CIFAR-10, batch 512)",
            "batch 128 and 1024": "94.4 % (512 and 4096)",
            "batch 1024": "93.2 % (4096)",
        },
    ),
}
"""`two_level` is the policy of arXiv:2010.16248, whose numbers are beside the rows."""


if __name__ == "__main__":
    run_all(ALL, parse_names(ALL, __doc__), file=RESULTS / "paper.json", title=TITLE)
