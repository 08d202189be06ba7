"""Claims of the papers, by simulation: `python -m tests.bench.paper [--recipes NAME...]`, and on a
GPU `--size card [--piece N]`; ACCORDION_DATA has the data.

Whether it matters when bytes are spent, and what batch growth and compression do together, on the
small image model. Each contestant runs at its own best learning rate, as in
`tests.bench.learning`; so do the tables. Counts of floats that arithmetic fixes are in
`tests/unit/accordion/test_ledger.py`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

from tests.bench.learning import EVERY_STEP, LOCAL, NONE, Recipe, run_all

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
        file="cpu/gap.yaml",
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
        file="cpu/gap.yaml",
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
            "batch 128 and 1024, two_level, rank 8 and 4": {
                **TWO_LEVEL,
                **BATCH,
                "compression": "{method: powersgd, low: {rank: 8}, high: {rank: 4}}",
            },
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

PUBLISHED_VGG = ALL["when ranks matter"].published
CARD = {
    "VGG-19": Recipe(
        file="card/vgg19.yaml",
        data="cifar10-subset.zip",
        metric="accuracy",
        smaller=False,
        rates=(0.0125, 0.025, 0.05, 0.1),
        contestants={
            "rank 4": _fixed("low"),
            "rank 1": _fixed("high"),
            "two_level, rank 4 and 1": RANKS,
            "by_rate, rank 4 and 1": {
                **RANKS,
                "policy": "{name: by_rate, options: {fall: 10}, window: {epochs: 1}}",
            },
            "4 local steps, 32 after the drop, 4 bits": {
                "compression": "{method: qsgd, low: {bits: 4}, high: {bits: 4}}",
                LOCAL: "{low: 4, high: 32}",
            },
            "none": NONE["none, every step"],
        },
        published=PUBLISHED_VGG,
        # Workers of a simulation take turns, so three seeds fill a card better than one.
        arguments=("--device", "cuda:0", "--processes", "3"),
    ),
}
"""For one GPU, a contestant a piece."""


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", nargs="+", choices=tuple(ALL), default=tuple(ALL))
    parser.add_argument("--size", choices=("cpu", "card"), default="cpu")
    pieces = [(name, one) for name, recipe in CARD.items() for one in recipe.contestants]
    parser.add_argument(
        "--piece", type=int, choices=range(len(pieces)), help="of size card: a contestant"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    asked = parser.parse_args()
    if asked.size == "cpu":
        run_all(ALL, asked.recipes, file=asked.out / "paper.json", title=TITLE)
        return
    if not torch.cuda.is_available():
        sys.exit("there is no GPU here, so nothing was run; --size cpu needs none")
    for name, contestant in pieces if asked.piece is None else [pieces[asked.piece]]:
        recipe = replace(CARD[name], contestants={contestant: CARD[name].contestants[contestant]})
        title = f"{TITLE}: {torch.cuda.get_device_name()}"
        run_all({name: recipe}, [name], file=asked.out / "paper_card.json", title=title)


if __name__ == "__main__":
    main()
