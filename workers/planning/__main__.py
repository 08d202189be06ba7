"""Reads a request from standard input and prints the predictions, both as JSON.

    {"spec": {...}, "workers": 4, "latency_s": 0.008, "bytes_per_s": 12.5e6}

An answer with `error` has one sentence for users, and the exit code is then 1.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from pydantic import ValidationError

from accordion.errors import AccordionError
from accordion.link_model import LinkModel
from workers.contract import JobSpec
from workers.errors import WorkerError
from workers.planning.predictions import predict_steps
from workers.planning.step_measurement import measure_step


def answer_request(request: dict[str, Any]) -> dict[str, Any]:
    """Return the predictions, the fastest first, and the step of one worker without exchanges.

    Raises:
        ValidationError: the spec is wrong.
        WorkerError: the task cannot be built, raised, or is a script.
    """
    size = {"min": 1, "max": request["workers"]}
    own = request["spec"].get("workers") or {}
    spec = JobSpec.model_validate({**request["spec"], "workers": {**own, **size}})
    link = LinkModel(
        world_size=request["workers"],
        latency_s=request["latency_s"],
        bytes_per_s=request["bytes_per_s"],
    )
    measured = measure_step(spec, link.world_size)
    return {
        "compute_s": measured.step_s,
        "predictions": [
            asdict(prediction) | {"samples_per_s": spec.training.global_batch / prediction.step_s}
            for prediction in predict_steps(measured, spec, link)
        ],
    }


def main() -> int:
    """Answer the request on standard input; return the exit code."""
    try:
        answer = answer_request(json.load(sys.stdin))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "spec"
        answer = {"error": f"{place}: {first['msg'].removeprefix('Value error, ')}"}
    except (AccordionError, WorkerError) as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))  # noqa: T201
    return 1 if "error" in answer else 0


if __name__ == "__main__":
    sys.exit(main())
