"""From measured rounds to rows, and from rows to JSON and a table that people read."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench.recovery_rows import ACTORS, OURS, PLAIN, PLAIN_QUICK, ROWS, SAME_STEPS, Row
from tests.bench.recovery_task import EVERY_STEPS, PACE_S, Recovery

Rounds = Sequence[Mapping[str, Recovery]]
"""For each round, how each contestant did; one that did not go on is missing."""
HEAD = (
    "fault",
    "ours",
    "plain actors",
    "plain Ray Train",
    "again, ours",
    "actors",
    "Ray Train",
    "ours to actors",
    "Ray Train to ours",
    "reach",
)
LEGEND = (
    "`ours` is the engine `ray-train`, `plain actors` our engine `actors`, `plain Ray Train` "
    "a TorchTrainer script with its defaults on a cluster with Ray's defaults. Seconds run "
    "from the fault (of a node that is added: from the start of its raylet) to the first step "
    "completed by the workers that go on; where the same workers go on, they are the longest "
    "pause between two steps after the fault. `start` runs from the order to the first "
    "completed step, on a cluster to which the driver is connected; the job is a task class, "
    "and each worker of a script job imports Ray Train too, about 0.8 s of CPU and 50 MB that "
    "`start` and `memory` do not show. Memory is the "
    "proportional set size of all processes that Ray started, after 125 steps. `again` counts "
    "the steps that were made twice. Figures are medians over the rounds, with the least and "
    "the most in brackets; ratios (of memory: differences) are taken in each round. Reached: "
    f"✓ met, ✗ not, by the median. A step takes {PACE_S:g} s and a checkpoint is made every "
    f"{EVERY_STEPS} steps; steps again count as the same up to {SAME_STEPS}."
)


def row_of(row: Row, rounds: Rounds) -> dict[str, Any]:
    """Return a row of the JSON file."""
    to_actors = _compared(rounds, OURS, ACTORS, difference=row.unit == "MB")
    plain = PLAIN_QUICK if PLAIN_QUICK in row.contestants else PLAIN
    to_ours = _compared(rounds, plain, OURS)
    if row.plain_s is not None:
        to_ours = [row.plain_s / found[OURS].seconds for found in rounds if OURS in found]
    if row.unit == "MB":
        to_ours = []
    asked = _reaches(row, rounds, to_actors, to_ours)
    return {
        "row": row.name,
        "work": row.work,
        "unit": row.unit,
        "seconds": {
            name: _spread([one[name].seconds for one in rounds if name in one])
            for name in row.contestants
        },
        "again": {
            name: _spread([one[name].rolled_back for one in rounds if name in one])
            for name in row.contestants
        },
        "plain_s": row.plain_s,
        "to_actors": _spread(to_actors),
        "to_ours": _spread(to_ours),
        "reach": [{"text": text, "met": met} for text, met in asked],
        "rounds": [
            {name: asdict(recovery) for name, recovery in found.items()} for found in rounds
        ],
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows in Markdown."""
    lines = [HEAD, ["---"] * len(HEAD), *map(_cells, rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write(folder: Path, measured: Mapping[str, Any]) -> None:
    """Put a row into `recovery.json`, in place of an older one, and write `recovery.md` from it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "recovery.json"
    known = {row["row"]: row for row in json.loads(file.read_text())} if file.exists() else {}
    known[measured["row"]] = measured
    rows = [known[row.name] for row in ROWS if row.name in known]
    file.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
    missing = [row.name for row in ROWS if row.name not in known]
    text = ["# Recovery on both engines, and of plain Ray Train", "", LEGEND, "", table(rows), ""]
    text += [f"Not measured: {', '.join(missing)}.", ""] if missing else []
    text += ["Each row was measured by itself:", "", *map(_circumstances, rows)]
    (folder / "recovery.md").write_text("\n".join(text) + "\n")


def _circumstances(row: Mapping[str, Any]) -> str:
    measured = row["measured"]
    machine, versions = measured["machine"], measured["versions"]
    return (
        f"- {row['work']}: {measured['date']}, commit {measured['commit']},"
        f" {measured['rounds']} rounds, load {measured['load']} at the start; {machine['cpu']},"
        f" {machine['cores']} cores, {machine['memory_gib']} GB;"
        f" ray {versions['ray']}, torch {versions['torch']}"
    )


def _compared(rounds: Rounds, upper: str, lower: str, *, difference: bool = False) -> list[float]:
    pairs = [
        (found[upper].seconds, found[lower].seconds)
        for found in rounds
        if {upper, lower} <= found.keys()
    ]
    return [one - other if difference else one / other for one, other in pairs]


def _reaches(
    row: Row, rounds: Rounds, to_actors: Sequence[float], to_ours: Sequence[float]
) -> list[tuple[str, bool]]:
    """Say what was to be reached, and whether it was; what could not be measured was not."""
    found: list[tuple[str, bool]] = []
    if row.most_of_actors is not None:
        unit = "× actors" if row.unit == "s" else "MB beyond actors"
        met = bool(to_actors) and statistics.median(to_actors) <= row.most_of_actors
        found.append((f"≤ {row.most_of_actors:g} {unit}", met))
    if row.least_of_plain is not None:
        met = bool(to_ours) and statistics.median(to_ours) >= row.least_of_plain
        found.append((f"≥ {row.least_of_plain:g} × faster than Ray Train", met))
    ours = [one[OURS] for one in rounds if OURS in one]
    if row.most is not None:
        met = bool(ours) and statistics.median(one.seconds for one in ours) <= row.most
        found.append((f"≤ {row.most:g} s", met))
    if row.steps_again == "none":
        found.append(("no step again", bool(ours) and all(one.rolled_back == 0 for one in ours)))
    elif row.steps_again == "as actors":
        pairs = [
            (one[OURS].rolled_back, one[ACTORS].rolled_back)
            for one in rounds
            if {OURS, ACTORS} <= one.keys()
        ]
        met = (
            bool(pairs) and statistics.median(ours - actors for ours, actors in pairs) <= SAME_STEPS
        )
        found.append(("the same steps again", met))
    return found


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    figures = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return {name: round(value, 2) for name, value in figures.items()}


def _cells(row: Mapping[str, Any]) -> list[str]:
    plain = PLAIN_QUICK if PLAIN_QUICK in row["seconds"] else PLAIN
    names, unit = (OURS, ACTORS, plain), row["unit"]
    times = [_figure(row["seconds"].get(name), unit, name in row["seconds"]) for name in names]
    if row["plain_s"] is not None:
        times[2] = f"{row['plain_s']:g} s (quoted)"
    again = (
        [_figure(row["again"].get(name), "", False) for name in names]
        if unit == "s"
        else ["", "", ""]
    )
    ratios = [
        _figure(row["to_actors"], "×" if unit == "s" else "MB", False),
        _figure(row["to_ours"], "×", False),
    ]
    reach = "; ".join(f"{asked['text']} {'✓' if asked['met'] else '✗'}" for asked in row["reach"])
    return [row["work"], *times, *again, *ratios, reach or "-"]


def _figure(spread: Mapping[str, float] | None, unit: str, is_asked: bool) -> str:
    if spread is None:
        return "not measured" if is_asked else ""
    ends = (
        f" ({spread['least']:g} - {spread['most']:g})" if spread["least"] != spread["most"] else ""
    )
    return f"{spread['median']:g}{' ' if unit else ''}{unit}{ends}"
