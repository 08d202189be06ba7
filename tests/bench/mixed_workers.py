"""Two workers of which one has half a processor, with and without dividing batches by speed, with
an exchange in every step and with local steps: `python -m tests.bench.mixed_workers`.

Each worker has a processor of its own; the slower one has half of its time (a cgroup's quota). A
round trains alone on each, then together with an even division, then by speed. The result goes to
`results/mixed_workers.json`. It needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench import report
from tests.bench.timing import Spread

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results")
SHARES = (1.0, 0.5)
"""Share of its processor that each worker has."""
ROUNDS = 3
EPOCHS, MEASURED_EPOCHS = 3, 1
"""Epochs of a run, and how many of the last ones are timed; speeds are compared after the first."""
SAMPLES = 98_304
JOB: Mapping[str, Any] = {
    "task": {"name": "synthetic", "options": {"samples": SAMPLES, "width": 512, "depth": 4}},
    "training": {"epochs": EPOCHS, "global_batch": 6144, "micro_batch": 256},
    "compression": {"method": "powersgd"},
    "checkpoint": {"every_epochs": 1000},
}
WITH_LOCAL_STEPS = {**JOB, "compression": {"method": "qsgd"}, "local_steps": {"low": 16}}
"""A round has all steps of an epoch."""
TOGETHER = ("even", "by speed", "even, local steps", "by speed, local steps")


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and keep the result."""
    asked = _parse(arguments)
    around = report.surroundings()
    rounds = [_measure_round() for _ in range(asked.rounds)]
    for one in rounds:
        print(json.dumps(one), flush=True)
    sums = [one["fast alone"] + one["slow alone"] for one in rounds]
    parts = {
        name: Spread.of([one[name] / total for one, total in zip(rounds, sums, strict=True)])
        for name in TOGETHER
    }
    for name, part in parts.items():
        print(
            f"{name}: {part.median:.2f} of the sum of both speeds"
            f" ({part.least:.2f} - {part.most:.2f})"
        )
    found = {
        "rows": {
            name: {key: round(getattr(part, key), 3) for key in ("median", "least", "most")}
            for name, part in parts.items()
        },
        "samples_per_s": rounds,
        **around,
    }
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "mixed_workers.json").write_text(json.dumps(found, indent=2) + "\n")


def _measure_round() -> dict[str, float]:
    fast, slow = SHARES
    both = list(enumerate(SHARES))
    return {
        "fast alone": _train([(0, fast)], JOB, balance=False),
        "slow alone": _train([(1, slow)], JOB, balance=False),
        "even": _train(both, JOB, balance=False),
        "by speed": _train(both, JOB, balance=True),
        "even, local steps": _train(both, WITH_LOCAL_STEPS, balance=False),
        "by speed, local steps": _train(both, WITH_LOCAL_STEPS, balance=True),
    }


def _train(
    workers: Sequence[tuple[int, float]], settings: Mapping[str, Any], *, balance: bool
) -> float:
    """Samples per second of a run whose workers have these processors and shares of them."""
    job = {**settings, "workers": {"max": len(workers), "balance": balance}}
    address = f"tcp://127.0.0.1:{random.randint(20_000, 50_000)}"
    with tempfile.TemporaryDirectory() as storage:
        started = [
            _start(
                rank=rank,
                size=len(workers),
                processor=processor,
                share=share,
                address=address,
                storage=storage,
                job=job,
                last=MEASURED_EPOCHS,
            )
            for rank, (processor, share) in enumerate(workers)
        ]
        try:
            answers = [worker.communicate()[0] for worker in started]
        finally:
            for worker in started:
                worker.kill()
    if any(worker.returncode for worker in started):
        raise RuntimeError("a worker ended with an error; see its words above")
    seconds: float = json.loads(answers[0])["last_epochs_s"]
    return MEASURED_EPOCHS * SAMPLES / seconds


def _start(**asked: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.bench.mixed_worker", json.dumps(asked)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        text=True,
        stdout=subprocess.PIPE,
    )


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.mixed_workers",
        description=(__doc__ or "").partition("\n")[0],
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds (default 3)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
