"""The training step over shaped links, with every choice of exchanges beside our own and the peers:
`python -m tests.bench.network [--quick] [--links NAME...]`.

Each link is written to `results/network.json` when it is complete, and a table of all of them
beside it, so a run that was interrupted continues with `--links`. It needs root.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench import report
from tests.bench.contestants import ALONE, CONTESTANTS, PACKAGE
from tests.bench.hosts import WorkerHosts
from tests.bench.peers_package import describe_package
from tests.bench.timing import Round, Spread
from tests.netlab.lab import may_make_hosts

RESULTS = Path(__file__).with_name("results")
OURS = "accordion"
DEFAULT_BUCKETS = "accordion default"
"""Ours with DDP's own bucket sizes in place of those that the README advises."""
FIXED = ("accordion separate", "accordion together")
COST_AWARE = "cost_aware"
UNCOMPRESSED = ("half", "half together", "none advised", "none")
"""Fixed choices that can only be the best on a fast link; elsewhere fp16 and DDP stand for them."""
PEERS = ("epfml", PACKAGE, "fp16", "ddp")
OTHERS = {COST_AWARE, *PEERS, ALONE, "copy"}
"""What is not a fixed choice of method and exchanges."""
ROUNDS, STEPS = 5, 5
SLOW_STEP_S = 2.0
"""Contestants with longer steps take one of them in a round."""
GRADIENT_MBITS = 358
"""What plain DDP sends in a step of ResNet-18, in Mbit; half of it with fp16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkShape:
    """Link of both hosts."""

    rate: int
    """Mbit/s; 0 for an unshaped link."""
    delay_ms: int = 0
    """From one host to the other."""

    @property
    def name(self) -> str:
        """Name in the table, such as `40+8`: Mbit/s and ms."""
        rate = str(self.rate) if self.rate else "unshaped"
        return f"{rate}+{self.delay_ms}" if self.delay_ms else rate

    def steps(self) -> dict[str, int]:
        """Return the steps in a round by contestant."""
        ddp_s = GRADIENT_MBITS / self.rate if self.rate else 0.0
        fast = UNCOMPRESSED if ddp_s < SLOW_STEP_S else ()
        names = (OURS, DEFAULT_BUCKETS, *FIXED, COST_AWARE, *fast, *PEERS, ALONE)
        slow = {"ddp": ddp_s > SLOW_STEP_S, "fp16": ddp_s / 2 > SLOW_STEP_S}
        return {name: 1 if slow.get(name) else STEPS for name in names if name in CONTESTANTS}

    def limit_s(self, payload: float) -> float:
        """Return the seconds of the payload on the link and of two round trips."""
        bytes_s = 8 * payload / (self.rate * 1e6) if self.rate else 0.0
        return bytes_s + 4 * self.delay_ms / 1e3


LINKS = (
    LinkShape(rate=15, delay_ms=20),
    LinkShape(rate=25),
    LinkShape(rate=40, delay_ms=8),
    LinkShape(rate=100),
    LinkShape(rate=100, delay_ms=10),
    LinkShape(rate=500),
    LinkShape(rate=1000),
    LinkShape(rate=0),
)


def main(arguments: Sequence[str]) -> None:
    """Measure the links that are asked for, print them, and keep them."""
    asked = _parse(arguments)
    if not may_make_hosts():
        sys.exit("making network namespaces needs root; run this as root")
    file = asked.out / "network.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    for link in LINKS:
        if asked.links and link.name not in asked.links:
            continue
        around = report.surroundings()
        found[link.name] = {**_measure(link, quick=asked.quick), **around}
        print(json.dumps({link.name: found[link.name]["rows"]}, indent=1), flush=True)
        asked.out.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=2) + "\n")
        file.with_suffix(".md").write_text(_table(found))
    print(_table(found))


def _measure(link: LinkShape, *, quick: bool) -> dict[str, Any]:
    with WorkerHosts(delay_ms=link.delay_ms) as pair:
        pair.shape(link.rate)
        steps = {name: 1 if quick else number for name, number in link.steps().items()}
        answers = pair.ask("measure", steps=steps, rounds=2 if quick else ROUNDS)
    rounds = [
        {name: max(one[name], other[name]) for name in one}
        for one, other in zip(*(answer["rounds"] for answer in answers), strict=True)
    ]
    limit = link.limit_s(answers[0]["payload"][OURS])
    return {
        "rows": _rows(rounds, limit),
        "limit_of_link_s": limit,
        "payload_bytes": answers[0]["payload"],
        "package": describe_package(),
        "plans": answers[0]["plans"],
        "levels": answers[0]["levels"],
        "rounds_s": rounds,
    }


def _rows(rounds: Sequence[Round], limit_s: float) -> dict[str, dict[str, float]]:
    fixed = [name for name in rounds[0] if name not in OTHERS]
    best = min(fixed, key=lambda name: median(one[name] for one in rounds))
    ratios = {
        "over the limit": [one[OURS] / (one[ALONE] + limit_s) for one in rounds],
        "over the best fixed plan": [
            one[OURS] / min(one[name] for name in FIXED) for one in rounds
        ],
        "cost_aware over the best fixed choice": [one[COST_AWARE] / one[best] for one in rounds],
        "ddp over cost_aware": [one["ddp"] / one[COST_AWARE] for one in rounds],
        "default buckets over advised ones": [one[DEFAULT_BUCKETS] / one[OURS] for one in rounds],
        **{
            f"{peer} over ours": [one[peer] / one[OURS] for one in rounds]
            for peer in PEERS
            if peer in rounds[0]
        },
    }
    seconds = {name: [one[name] for one in rounds] for name in rounds[0]}
    return {name: _spread(values) for name, values in {**ratios, **seconds}.items()}


def _spread(values: Sequence[float]) -> dict[str, float]:
    spread = Spread.of(values)
    return {name: round(getattr(spread, name), 4) for name in ("median", "least", "most")}


def _table(found: Mapping[str, Any]) -> str:
    head = [
        "link",
        "plan",
        "ours",
        "compute alone",
        "over the limit",
        "over the best fixed plan",
        "default buckets over advised ones",
        *(f"{peer} over ours" for peer in PEERS),
        "cost_aware over the best fixed choice",
        "ddp over cost_aware",
        "cost_aware chose",
    ]
    lines = [
        "# The training step over shaped links",
        "",
        "ResNet-18, PowerSGD rank 4, two hosts with one processor each, gloo. A link's name gives"
        " its Mbit/s and, after the plus sign, the milliseconds from host to host. The limit is"
        " compute alone, plus payload / link, plus two round trips. Fixed plans exchange each"
        " bucket alone, or all together. `cost_aware` chooses between rank 4 and, on links from 500"
        " Mbit/s on, 16 bits and no compression, each with fixed exchanges beside it; the best"
        " fixed choice is the one with the least median, ours included. `epfml` is a"
        " re-implementation (`peers_powersgd.py`), `epfml package` the package's own code. Median"
        " of the rounds, least and most in brackets.",
        "",
        f"| {' | '.join(head)} |",
        f"| {' | '.join(['---'] * len(head))} |",
    ]
    links = [link.name for link in LINKS if link.name in found]
    # What was kept of another machine has a name of its own.
    for link in [*links, *sorted(found.keys() - set(links))]:
        rows, plan = found[link]["rows"], found[link]["plans"][OURS]
        cells = [link, "+".join(map(str, plan)) or "1 each", _milliseconds(rows[OURS])]
        cells.append(_milliseconds(rows[ALONE]))
        cells += [_ratio(rows[name]) if name in rows else "" for name in head[4:-1]]
        cells.append(found[link].get("levels", {}).get(COST_AWARE, ""))
        lines.append(f"| {' | '.join(cells)} |")
    runs = [
        f"- {link}: commit {row['commit']}, load {row['load']} at its start; {PACKAGE}:"
        f" {row.get('package', 'absent')}"
        for link, row in found.items()
    ]
    return "\n".join([*lines, "", *runs]) + "\n"


def _ratio(row: Mapping[str, float]) -> str:
    return f"{row['median']:.2f} ({row['least']:.2f} - {row['most']:.2f})"


def _milliseconds(row: Mapping[str, float]) -> str:
    return f"{1e3 * row['median']:.0f} ms"


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.network", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--quick", action="store_true", help="few steps: shows that it works, not how fast it is"
    )
    parser.add_argument(
        "--links",
        nargs="+",
        default=[],
        choices=[link.name for link in LINKS],
        help="links to measure (default: all)",
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
