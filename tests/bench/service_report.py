"""From outcomes to JSON and a table that people read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench.service_rows import Outcome, Row

Found = Mapping[str, Mapping[str, Outcome]]
"""Outcomes by row and database."""
LEGEND = (
    "Clients, api, scheduler and database share one machine, so each takes time from the others."
    " The database holds the whole history of the ended jobs; the cluster under the scheduler is"
    " scripted, and its own time does not count as the scheduler's. The lag of a record is its age"
    " when the cluster learns that it is stored. ✓ met, ✗ not."
)


def table(rows: Sequence[Row], found: Found) -> str:
    """Return the rows in Markdown, with a column for each database."""
    databases = list(dict.fromkeys(name for row in rows for name in found[row.name]))
    lines = [("", "reach", *databases), ("---",) * (2 + len(databases))]
    for row in rows:
        outcomes = found[row.name]
        lines.append((row.title, row.reach, *(_cell(outcomes.get(name)) for name in databases)))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write(folder: Path, rows: Sequence[Row], found: Found, around: Mapping[str, Any]) -> None:
    """Write `service.json` and `service.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = {
        row.name: {name: asdict(outcome) for name, outcome in found[row.name].items()}
        for row in rows
    }
    document = {**around, "rows": outcomes}
    text = json.dumps(document, indent=2, ensure_ascii=False)
    (folder / "service.json").write_text(f"{text}\n")
    machine = around["machine"]
    facts = (
        f"{around['date']}, commit {around['commit']}, {around['jobs']:,} ended jobs;"
        f" {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GB, load"
        f" {around['load']} at the start."
    )
    parts = ["# The control plane under load", facts, LEGEND, table(rows, found)]
    (folder / "service.md").write_text("\n\n".join(parts) + "\n")


def _cell(outcome: Outcome | None) -> str:
    return "" if outcome is None else f"{outcome.text} {'✓' if outcome.met else '✗'}"
