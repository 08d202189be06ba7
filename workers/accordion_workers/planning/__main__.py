"""Reads a request from standard input and writes the predictions to a file, both as JSON:
`python -m accordion_workers.planning ANSWER_FILE [CODE_ZIP]`.

    {"spec": {...}, "workers": 4, "latency_s": 0.008, "bytes_per_s": 12.5e6, "measure_s": 5.0,
     "parent": 4711}

The process ends with the one that has the ID `parent`. An answer with `error` has one sentence for
users, and the exit code is then 1; with `needs_log` too, standard error tells more. What the task
prints does not mix with the answer. The job's own modules come last on `sys.path`, as on workers.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from accordion.base.errors import AccordionError
from accordion_workers.common.errors import TaskRaised, WorkerError
from accordion_workers.common.parent_process import end_with
from accordion_workers.data.files import DataError
from accordion_workers.planning.predictions import nominal_link, predict_steps
from accordion_workers.planning.step_measurement import StepMeasurement, measure_step
from accordion_workers.records.contract import JobSpec
from accordion_workers.training.byte_budget import CountedModel, resolve_budget
from accordion_workers.training.planned_run import list_assumptions, plan_run


def answer_request(request: dict[str, Any]) -> dict[str, Any]:
    """Return the predictions, the fastest first, the step of one worker without exchanges, and the
    plans of the whole job.

    Raises:
        ValidationError: the spec is wrong.
        WorkerError: the task cannot be built, raised, or is a script.
        ConfigError: no local steps keep to the budget of the job.
    """
    spec = _read_spec(request["spec"], workers=request["workers"])
    link = nominal_link(
        workers=spec.max_replicas,
        latency_s=request["latency_s"],
        bytes_per_s=request["bytes_per_s"],
    )
    measured = measure_step(spec, request["workers"], seconds=request["measure_s"])
    model, samples = measured.model, measured.samples
    spec = resolve_budget(spec, model, samples=samples)
    counted = CountedModel(model, world_size=link.world_size, shards=spec.num_shards)
    local = spec.config().local_steps
    return {
        "compute_s": measured.step_s,
        "predictions": [
            asdict(prediction) | {"samples_per_s": spec.training.global_batch / prediction.step_s}
            for prediction in predict_steps(measured, spec, link)
        ],
        "local_steps": None if local is None else {"low": local.low, "high": local.high},
        "shard_bytes": _count_shard(measured, spec) if spec.num_shards > 1 else None,
        "runs": [
            asdict(plan_run(spec, assumed, counted, samples=samples))
            for assumed in list_assumptions(spec)
        ],
    }


def _count_shard(measured: StepMeasurement, spec: JobSpec) -> int:
    """Return the bytes of parameters that a worker of a replica holds: FSDP2 cuts each by rows, and
    pads the parts of the last workers.
    """
    held = 0
    for parameter in measured.model.parameters():
        rows = max((1, *parameter.shape[:1]))
        held += -(-rows // spec.num_shards) * parameter.nbytes // rows
    return held


def _read_spec(spec: dict[str, Any], *, workers: int) -> JobSpec:
    """Return the spec with this number of workers."""
    section = spec.get("workers", {})
    if isinstance(section, dict):
        spec = {**spec, "workers": {**section, "min": workers, "max": workers}}
    return JobSpec.model_validate(spec)


def _describe_task_error(error: TaskRaised) -> dict[str, Any]:
    """Return the answer for a task that raised; only the task's own errors need the log."""
    if isinstance(error.__cause__, DataError):
        return {"error": f"{error.__cause__} (--set task.options.data=PATH)"}
    if isinstance(error.__cause__, WorkerError):
        return {"error": str(error.__cause__)}
    return {"error": error.summary, "needs_log": True}


def main(answer_file: str) -> int:
    """Answer the request on standard input; return the exit code."""
    request = json.load(sys.stdin)
    end_with(request["parent"])
    try:
        answer = answer_request(request)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "spec"
        answer = {"error": f"{place}: {first['msg'].removeprefix('Value error, ')}"}
    except TaskRaised as error:
        answer = _describe_task_error(error)
    except (AccordionError, WorkerError) as error:
        answer = {"error": str(error)}
    Path(answer_file).write_text(json.dumps(answer))
    return 1 if "error" in answer else 0


if __name__ == "__main__":
    sys.path += sys.argv[2:]
    sys.exit(main(sys.argv[1]))
