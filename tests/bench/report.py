"""From measured rounds to rows, and from rows to JSON and a table that people read."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from tests.bench.targets import Target
from tests.bench.timing import Spread
from tests.programs import run_program

ROOT = Path(__file__).parents[2]
RESULTS = "tests/bench/results"
MAX_BUSY = 1.0
"""Processors that others may keep busy when a row is measured."""
BUSY_INTERVAL_S = 3.0
HEAD = (
    "row",
    "work",
    "peer",
    "reach",
    "reached",
    "least - most",
    "ours",
    "peer's",
    "× floor",
    "the floor counts",
)

LEGEND = (
    "Reached is the median over the rounds of the peer's time divided by ours in the same round, so"
    " that more is faster; where a limit (<=) is asked, ours divided by the peer's. Reach is what"
    " was aimed at (✓ met, ✗ not); least and most are of the rounds. × floor is our time over the"
    " least that the machine allows, which counts what the last column says. The notes below say"
    " what each row leaves to gain, and what a ratio owes to what."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds of ours and of the peer, one pair a round, beside the least that the machine
    allows.
    """

    ours: Sequence[float]
    peer: Sequence[float]
    floor: Sequence[float]
    """Seconds in the same round that nobody can do without."""
    floor_counts: str
    """What the floor is made of."""
    note: str = ""
    details: Mapping[str, Any] | None = None
    """More figures, for the JSON alone."""


def row_of(target: Target, measured: Measured) -> dict[str, Any]:
    """A row of the JSON file: `reached` is the median over the rounds of the ratio in the round."""
    pairs = list(zip(measured.ours, measured.peer, strict=True))
    ratios = Spread.of([ours / peer if target.ours_on_top else peer / ours for ours, peer in pairs])
    floors = Spread.of(
        [ours / floor for ours, floor in zip(measured.ours, measured.floor, strict=True)]
    )
    return {
        "row": target.row,
        "work": target.work,
        "peer": target.peer,
        "reach": str(target),
        "reached": round(ratios.median, 3),
        "met": target.met_by(ratios.median),
        "least": round(ratios.least, 3),
        "most": round(ratios.most, 3),
        "rounds": len(pairs),
        "ours_s": round(Spread.of(measured.ours).median, 5),
        "peer_s": round(Spread.of(measured.peer).median, 5),
        "floor_multiple": round(floors.median, 3),
        "floor_counts": measured.floor_counts,
        "note": measured.note,
        "details": dict(measured.details or {}),
    }


def missing_row(target: Target, why: str) -> dict[str, Any]:
    """A row that could not be measured; it never counts as met."""
    return {
        "row": target.row,
        "work": target.work,
        "peer": target.peer,
        "reach": str(target),
        "reached": None,
        "met": None if target.ratio is None else False,
        "note": f"not measured: {why}",
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows in Markdown."""
    lines = [_line(HEAD), _line(["---"] * len(HEAD))]
    return "\n".join([*lines, *(_line([row["row"], *_cells(row)]) for row in rows)])


def write(folder: Path, found: Mapping[str, Any]) -> None:
    """`library.json` and `library.md`; `found` is the command, the surroundings and the rows."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "library.json").write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    facts = [
        f"- {name}: {found[name]}" for name in ("command", "commit", "machine", "versions", "load")
    ]
    text = "\n".join(
        [
            "# The library against its peers",
            "",
            *facts,
            "",
            LEGEND,
            "",
            table(found["rows"]),
            "",
            *_notes(found),
        ]
    )
    (folder / "library.md").write_text(text.rstrip() + "\n")


def surroundings() -> dict[str, Any]:
    """Machine, versions, commit, and how many processors others keep busy.

    Raises:
        SystemExit: they keep more than one busy, or the checkout has changes, and
            ACCORDION_BENCH_ANYWAY is not set, with which the row is marked.
    """
    commit, busy = read_git("rev-parse", "--short", "HEAD"), busy_processors()
    # What the bench has written itself changes nothing that it measures.
    changed = read_git("status", "--porcelain", "--", ".", f":!{RESULTS}")
    wrong = [
        *([f"{busy:.1f} processors are busy with something else"] if busy > MAX_BUSY else []),
        *(["the checkout has changes"] if changed else []),
    ]
    if wrong and not os.environ.get("ACCORDION_BENCH_ANYWAY"):
        sys.exit(
            f"{' and '.join(wrong)}: measure a commit, alone on the machine, or set"
            " ACCORDION_BENCH_ANYWAY=1 for rows that say so"
        )
    return {
        "commit": commit + (" with changes" if changed else ""),
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "memory_gib": _memory_gib(),
            "kernel": platform.release(),
        },
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "load": round(busy, 2),
    }


def busy_processors() -> float:
    """How many processors are busy now."""
    return psutil.cpu_percent(interval=BUSY_INTERVAL_S) / 100 * (os.cpu_count() or 1)


def _cells(row: Mapping[str, Any]) -> list[str]:
    if row["reached"] is None:
        return [row["work"], row["peer"], row["reach"], row["note"], *[""] * (len(HEAD) - 5)]
    mark = {True: " ✓", False: " ✗", None: ""}[row["met"]]
    return [
        row["work"],
        row["peer"],
        row["reach"],
        f"**{row['reached']:.2f}**{mark}",
        f"{row['least']:.2f} - {row['most']:.2f}",
        _milliseconds(row["ours_s"]),
        _milliseconds(row["peer_s"]),
        f"{row['floor_multiple']:.2f}",
        row["floor_counts"],
    ]


def _notes(found: Mapping[str, Any]) -> list[str]:
    return [f"- {row['row']}: {row['note']}" for row in found["rows"] if row["note"]]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def read_git(*arguments: str) -> str:
    done = run_program(["git", *arguments], cwd=ROOT)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def _memory_gib() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
