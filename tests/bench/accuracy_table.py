"""The table of `tests.bench.accuracy`: seconds and bytes to a target, by link and contestant."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from accordion_client.commands.run_groups import compute_interval

PLAIN = "DDP"
"""Contestant that the others are compared with."""
UNSHAPED = "0"
"""Link of the runs that chose learning rates."""
HEAD = (
    "contestant",
    "final",
    "to the target",
    "against DDP",
    "sent by a worker",
    "against DDP",
    "whole run",
    "rate",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Where a run reached its target."""

    seconds: float
    sent: float


def find_target(run: Mapping[str, Any], *, target: float, smaller: bool) -> Reached | None:
    """Return the first end of an epoch at which the metric has the target; None without one."""
    for epoch in run["epochs"]:
        metric = epoch["metric"]
        if metric is not None and (metric <= target if smaller else metric >= target):
            return Reached(seconds=epoch["seconds"], sent=epoch["sent"])
    return None


def write_table(runs: Sequence[Mapping[str, Any]], contests: Mapping[str, Any]) -> str:
    """Return the tables in Markdown; `contests` has metric, target and direction by task."""
    lines = [
        "# Time to accuracy on real links",
        "",
        "Four hosts on one machine, two on each processor, behind shaped links; a link's name gives"
        " its Mbit/s and, after the plus sign, the milliseconds from host to host. Everybody trains"
        " the same model from the same weights on the same samples, each at its own best learning"
        " rate. Seconds are those of training without evaluations, from the building of the model"
        " until the end of the first epoch at which the target is reached; bytes are those that the"
        " hosts' interfaces counted, with all headers, a mean over the hosts. What is learned does"
        " not depend on the link, except with `cost_aware`, so all seeds run on the first one only;"
        " ± is half of the 95 % interval by Student's t.",
    ]
    for task, contest in contests.items():
        own = [run for run in runs if run["task"] == task and run["link"] != UNSHAPED]
        for link in dict.fromkeys(run["link"] for run in own):
            lines += _write_link(task, link, contest, [run for run in own if run["link"] == link])
    commits = sorted({f"{run['commit']} (load {run['load']})" for run in runs})
    tried = sum(run["link"] == UNSHAPED for run in runs)
    lines += ["", f"{tried} more runs chose learning rates. Commits: {', '.join(commits)}."]
    return "\n".join(lines) + "\n"


def _write_link(
    task: str, link: str, contest: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]
) -> list[str]:
    lines = [
        "",
        f"## {task}, {link} Mbit/s: {contest['metric']} {'<=' if contest['smaller'] else '>='}"
        f" {contest['target']}",
        "",
        f"| {' | '.join(HEAD)} |",
        "| --- " * len(HEAD) + "|",
    ]
    plain = _reached([run for run in runs if run["contestant"] == PLAIN], contest)
    rows = []
    for contestant in dict.fromkeys(run["contestant"] for run in runs):
        own = [run for run in runs if run["contestant"] == contestant]
        rows.append(_row(contestant, own, _reached(own, contest), plain))
    return [*lines, *(line for _, line in sorted(rows))]


def _reached(runs: Sequence[Mapping[str, Any]], contest: Mapping[str, Any]) -> dict[int, Reached]:
    """Return by seed where the target was reached."""
    found = {
        run["seed"]: find_target(run, target=contest["target"], smaller=contest["smaller"])
        for run in runs
    }
    return {seed: reached for seed, reached in found.items() if reached is not None}


def _row(
    contestant: str,
    runs: Sequence[Mapping[str, Any]],
    reached: Mapping[int, Reached],
    plain: Mapping[int, Reached],
) -> tuple[float, str]:
    """Return what the rows are sorted by, and the row."""
    if failed := [run["failed"] for run in runs if run["failed"]]:
        return math.inf, f"| {contestant} | failed: {failed[0]} {'|  ' * (len(HEAD) - 2)}|"
    whole = fmean(run["epochs"][-1]["seconds"] for run in runs)
    cells = [contestant, _describe_finals([run["epochs"][-1]["metric"] for run in runs])]
    seconds = fmean(one.seconds for one in reached.values()) if reached else math.inf
    if len(reached) == len(runs):
        both = [(plain[seed], one) for seed, one in reached.items() if seed in plain]
        cells += [f"{seconds:.1f} s", _ratio([one.seconds / ours.seconds for one, ours in both])]
        cells += [f"{fmean(one.sent for one in reached.values()) / 1e6:.2f} MB"]
        cells += [_ratio([one.sent / ours.sent for one, ours in both])]
    else:
        cells += [f"in {len(reached)} of {len(runs)}", "", "", ""]
    cells += [f"{whole:.1f} s, {fmean(run['sent'] for run in runs) / 1e6:.2f} MB"]
    cells += [str(runs[0]["rate"])]
    missed = len(reached) < len(runs)
    return (1e9 if missed else seconds), f"| {' | '.join(cells)} |"


def _describe_finals(finals: Sequence[float | None]) -> str:
    found = [final for final in finals if final is not None]
    if len(found) < len(finals):
        return "not finite"
    if len(found) < 2:
        return f"{found[0]:.3f}"
    mean, half = compute_interval(found)
    return f"{mean:.3f} ±{half:.3f}"


def _ratio(ratios: Sequence[float]) -> str:
    return f"{fmean(ratios):.1f}×" if ratios else ""
