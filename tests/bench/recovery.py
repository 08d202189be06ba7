"""Recovery against plain Ray Train: `python -m tests.bench.recovery [--rounds N] [--rows NAME...]`.

A complete run writes `tests/bench/results/recovery.json` and a table beside it; others only print, unless `--out` names
a folder. Both train the same job at the same pace, each on clusters of their own that begin anew for each fault.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import ray

from tests.bench import recovery_stage as stages
from tests.bench.recovery_task import EVERY_STEPS, PACE_S, Recovery
from tests.bench.report import surroundings
from tests.netlab.lab import may_make_hosts

RESULTS = Path(__file__).with_name("results")
HUNG_PEER_S = 600.0
"""Quoted, not waited for: Ray Train's default RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S."""
HEAD = ("fault", "peer", "reach", "reached", "ours", "peer's", "stood still, ours", "peer's", "again, ours", "peer's")
LEGEND = (
    "Seconds run from the fault (of a node that is added: from the start of its raylet) to the first step completed by "
    "the workers that go on; `stood still` runs from the last step before to that one, which is less where the fault "
    "was announced; `again` counts the steps that were made twice. All are medians over the rounds. Reached is the "
    "median over the rounds of the peer's seconds over ours, or our own seconds or steps where the reach says so "
    f"(✓ met, ✗ not). A step takes {PACE_S:g} s and a checkpoint is made every {EVERY_STEPS} steps. The peer is Ray "
    "Train with its defaults, on a cluster with Ray's defaults; `ray-train-quick` is the same on a cluster with our "
    "health-check settings."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One row."""

    row: str
    work: str
    fault: Callable[[stages.Stage], float]
    nodes: int = 2
    size: tuple[int, int] = (1, 2)
    apart: bool = False
    """Whether the nodes are on hosts of their own, which needs root."""
    peer: str | None = "ray-train"
    peer_s: float | None = None
    """A quoted figure."""
    unit: Literal["x", "s"] = "x"
    """`x`: the peer's seconds over ours, at least `reach`; `s`: our seconds, at most `reach`."""
    reach: float | None = None

    def __str__(self) -> str:
        if self.reach is None:
            return "-"
        return f">= {self.reach:g}" if self.unit == "x" else f"<= {self.reach:g} s, no step again"


_KILLED = "node killed (1 of 2)"
TARGETS: Sequence[Target] = (
    Target(row="worker-killed", work="worker kill -9", fault=stages.worker_killed, size=(2, 2), reach=1.3),
    Target(row="node-killed", work=_KILLED, fault=stages.node_killed, reach=4.0),
    Target(row="node-killed-quick", work=_KILLED, fault=stages.node_killed, peer="ray-train-quick"),
    Target(row="node-cut", work="node cut off (1 of 2 hosts)", fault=stages.node_cut, apart=True),
    Target(row="node-drained", work="node drained (1 of 2)", fault=stages.node_drained, unit="s", reach=8.0),
    Target(row="node-terminated", work="node terminated (1 of 2)", fault=stages.node_terminated, unit="s", reach=8.0),
    Target(row="resized", work="resize 2 to 1", fault=stages.resized, peer=None, unit="s", reach=8.0),
    Target(row="node-added", work="node added (1 to 2)", fault=stages.node_added, nodes=1, reach=1.7),
    Target(
        row="worker-hung",
        work="worker hung",
        fault=stages.worker_hung,
        size=(2, 2),
        peer=None,
        peer_s=HUNG_PEER_S,
        reach=15.0,
    ),
)
CRASHES = ("worker-killed", "node-killed", "node-cut", "worker-hung")


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and keep a complete run."""
    asked = _parsed(arguments)
    targets = [target for target in TARGETS if not asked.rows or target.row in asked.rows]
    around = surroundings()
    rows = [row_of(target, measure(target, asked.rounds, asked.only)) for target in targets]
    rows += [rolled_back_row(rows)]
    command = shlex.join(["python", "-m", "tests.bench.recovery", *arguments])
    versions = {**around["versions"], "ray": ray.__version__}
    found = {"command": command, **around, "versions": versions, "rounds": asked.rounds, "rows": rows}
    print(f"\n{table(rows)}")
    folder = asked.out or (RESULTS if len(targets) == len(TARGETS) and not asked.only else None)
    if folder is not None:
        write(folder, found)
        print(f"\nwritten to {folder}")


def measure(target: Target, rounds: int, only: str | None) -> list[dict[str, Recovery]]:
    """For each round, how each contestant recovered; one that did not is missing."""
    if target.apart and not may_make_hosts():
        print(f"{target.row}: not measured: making network namespaces needs root", flush=True)
        return []
    names = [name for name in ("ours", target.peer) if name is not None and only in (None, name)]
    found: list[dict[str, Recovery]] = []
    for _ in range(rounds):
        found.append({})
        for name in names:
            try:
                found[-1][name] = recover(target, name)
                print(f"{target.row} {name}: {found[-1][name]}", flush=True)
            except TimeoutError as error:
                print(f"{target.row} {name}: {error}", flush=True)
    return found


def recover(target: Target, contestant: str) -> Recovery:
    """One job, one fault.

    Raises:
        TimeoutError: the job did not start, or did not go on.
    """
    who = stages.CONTESTANTS[contestant]
    with stages.Stage(who, nodes=target.nodes, size=target.size, apart=target.apart) as stage:
        return stage.recovery(target.fault(stage))


def row_of(target: Target, rounds: Sequence[Mapping[str, Recovery]]) -> dict[str, Any]:
    """A row of the JSON file."""
    ours, peer = (_medians([found[name] for found in rounds if name in found]) for name in ("ours", target.peer))
    if target.peer_s is not None:
        peer = {"seconds": target.peer_s}
    reached = None
    if target.unit == "s" and ours:
        reached = ours["seconds"]
    elif target.unit == "x" and ours and peer:
        ratios = [_seconds(found, target) / found["ours"].seconds for found in rounds if _is_pair(found, target)]
        reached = statistics.median(ratios) if ratios else None
    return {
        "row": target.row,
        "work": target.work,
        "peer": f"{target.peer or 'ray-train'} (quoted)" if target.peer_s else target.peer,
        "reach": str(target),
        "reached": reached and round(reached, 2),
        "met": _met(target, reached, ours),
        "ours": ours,
        "peer's": peer,
        "rounds": [{name: asdict(recovery) for name, recovery in found.items()} for found in rounds],
    }


def rolled_back_row(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The most steps that we made again after any crash."""
    crashes = [found["ours"] for row in rows if row["row"] in CRASHES for found in row["rounds"] if "ours" in found]
    most = max((found["rolled_back"] for found in crashes), default=None)
    met = most is not None and most <= EVERY_STEPS
    reach = f"<= {EVERY_STEPS}"
    return {"row": "rolled-back", "work": "most steps again after a crash", "peer": None, "reach": reach} | {
        "reached": most,
        "met": met,
        "ours": {},
        "peer's": {},
        "rounds": [],
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows in Markdown."""
    lines = [HEAD, ["---"] * len(HEAD), *map(_cells, rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write(folder: Path, found: Mapping[str, Any]) -> None:
    """`recovery.json` and `recovery.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recovery.json").write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    facts = [f"- {name}: {found[name]}" for name in ("command", "commit", "machine", "versions", "load", "rounds")]
    text = "\n".join(["# Recovery against plain Ray Train", "", *facts, "", LEGEND, "", table(found["rows"])])
    (folder / "recovery.md").write_text(text + "\n")


def _seconds(found: Mapping[str, Recovery], target: Target) -> float:
    return target.peer_s if target.peer_s is not None else found[target.peer or ""].seconds


def _is_pair(found: Mapping[str, Recovery], target: Target) -> bool:
    return "ours" in found and (target.peer_s is not None or target.peer in found)


def _met(target: Target, reached: float | None, ours: Mapping[str, float]) -> bool | None:
    if target.reach is None:
        return None
    if reached is None:
        return False
    return reached >= target.reach if target.unit == "x" else reached <= target.reach and not ours["rolled_back"]


def _medians(found: Sequence[Recovery]) -> dict[str, float]:
    if not found:
        return {}
    keys = ("seconds", "stood_still_s", "rolled_back")
    return {key: round(statistics.median(getattr(recovery, key) for recovery in found), 2) for key in keys}


def _cells(row: Mapping[str, Any]) -> list[str]:
    mark = {True: " ✓", False: " ✗", None: ""}[row["met"]]
    reached = "not measured" if row["reached"] is None else f"**{row['reached']:g}**"
    figures = [(row[who], key) for key in ("seconds", "stood_still_s", "rolled_back") for who in ("ours", "peer's")]
    cells = [f"{found[key]:g}{'' if key == 'rolled_back' else ' s'}" if key in found else "" for found, key in figures]
    return [row["work"], row["peer"] or "", row["reach"], f"{reached}{mark}", *cells]


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.recovery", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="how often each fault happens to each contestant")
    parser.add_argument("--rows", nargs="+", default=[], choices=[target.row for target in TARGETS], metavar="NAME")
    parser.add_argument("--only", choices=list(stages.CONTESTANTS), help="measure one contestant alone")
    parser.add_argument("--out", type=Path, help="folder for recovery.json and recovery.md")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
