"""Runs one simulation in this process.

    python -m accordion_workers.simulation.simulate_here [CODE_ZIP]

Standard input has the request as one line of JSON, and standard output gets one line of JSON for
each event; what the task prints goes to standard error. An interrupt saves and ends, and the
process ends with the one that has the ID `parent`.

    {"spec": {...}, "workers": 4, "folder": "/runs/seed-0", "device": "cpu", "parent": 4711}

    {"event": "progress", "epoch": 3, "step": 120, "steps": 320, "loss": 1.2}
    {"event": "log", "text": "..."}
    {"event": "end", "outcome": "completed"}
    {"event": "error", "error": "one sentence", "needs_log": false}
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from accordion.base.errors import AccordionError
from accordion_workers.common.errors import TaskRaised, WorkerError
from accordion_workers.common.parent_process import end_with
from accordion_workers.records.contract import JobSpec, Progress
from accordion_workers.simulation.simulation import Observer, Simulation


def run_request(request: dict[str, Any], tell: Callable[..., None]) -> None:
    """Run a simulation and tell its events."""
    if refusal := _explain_device(request["device"]):
        tell("error", error=refusal, needs_log=False)
        return

    def tell_progress(progress: Progress) -> None:
        place = {"epoch": progress.epoch, "step": progress.step, "steps": progress.steps}
        tell("progress", **place, loss=progress.loss)

    simulation = Simulation(
        JobSpec.model_validate(request["spec"]),
        Path(request["folder"]),
        workers=request["workers"],
        device=request["device"],
        observer=Observer(
            progress=tell_progress,
            record=lambda _: None,
            log=lambda text: tell("log", text=text),
        ),
    )

    signal.signal(signal.SIGINT, lambda *_: simulation.stop())
    try:
        tell("end", outcome=simulation.run())
    except TaskRaised as error:
        is_ours = isinstance(error.__cause__, WorkerError)
        text = str(error.__cause__) if is_ours else error.summary
        tell("error", error=text, needs_log=not is_ours)
    except (AccordionError, WorkerError, OSError) as error:
        tell("error", error=str(error), needs_log=False)


def _explain_device(device: str) -> str:
    """Return why there is no such device; empty if there is."""
    known = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    if device in known:
        return ""
    return f"device is {device!r}, and this machine has {', '.join(known)}; give one of these"


def main() -> None:
    """Run the simulation that standard input describes."""
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def tell(event: str, **values: Any) -> None:
        # One write, because a thread that saves may tell something at the same time.
        events.write(json.dumps({"event": event, **values}) + "\n")
        events.flush()

    request = json.loads(sys.stdin.readline())
    end_with(request["parent"])
    run_request(request, tell)


if __name__ == "__main__":
    sys.path += sys.argv[1:]
    main()
