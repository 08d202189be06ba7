"""Reads specs from job rows, including those that this version of the service would reject.

A spec is validated when it is submitted and stored unchanged. A later version may have other tasks
and fields, but its responses, queue and metrics must still work: they read single values here, each
with a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from accordion_service.domain.capacity.resources import ResourceRequest, sort_custom
from accordion_service.domain.documents import Value, entries_at, value_at
from accordion_service.errors import Conflict
from accordion_service.store.tables.models import JobRow
from accordion_workers.common.node_selectors import read_selector
from accordion_workers.records.contract import JobSpec

_FILTERED = {"task": "task.name", "method": "compression.method", "policy": "policy.name"}
"""Columns with a value of the spec, and its place there."""


class UnreadableSpec(Conflict):
    """This version of the service rejects the stored spec of a job."""


def spec_of(job: JobRow) -> JobSpec:
    """Read the effective spec: as submitted, with the current limits on workers.

    Raises:
        UnreadableSpec: this version refuses the stored spec.
    """
    section = stored_spec(job).get("workers")
    workers = {
        **(section if isinstance(section, dict) else {}),
        "min": job.min_workers,
        "max": job.max_workers,
    }
    return read_spec(job, {**stored_spec(job), "workers": workers})


def submitted_spec(job: JobRow) -> JobSpec:
    """Read the spec as submitted.

    Raises:
        UnreadableSpec: this version refuses the stored spec.
    """
    return read_spec(job, stored_spec(job))


def read_spec(job: JobRow, spec: Mapping[str, Any]) -> JobSpec:
    """Validate a stored spec of a job, in which the limits on workers may have been replaced.

    Raises:
        UnreadableSpec: this version refuses it.
    """
    try:
        return JobSpec.model_validate(dict(spec))
    except ValidationError as error:
        item = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in item["loc"]) or "spec"
        why = f"{where}: {item['msg'].removeprefix('Value error, ')}"
        raise UnreadableSpec(
            f"this version refuses its stored spec ({why}); submit job {job.id} again as this"
            " version takes it, or go back to the version that stored it"
        ) from None


def stored_spec(job: JobRow) -> dict[str, Any]:
    """The stored spec; an empty one if the column is not an object."""
    return job.spec if isinstance(job.spec, dict) else {}


def extract_filter_values(spec: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the columns by which lists are filtered, from a spec as it is stored."""
    return {column: value_at(spec, place, "") or None for column, place in _FILTERED.items()}


def spec_value(job: JobRow, place: str, default: Value) -> Any:
    """One value of the stored spec, such as `training.epochs`; the default if missing or of another
    type.
    """
    return value_at(job.spec, place, default)


def refers_to_secret(spec: Any, name: str, *, logger: int | None = None) -> bool:
    """Return whether variables or loggers of a stored spec refer to a secret of this name; with a
    number, whether this logger does.
    """
    document = spec if isinstance(spec, dict) else {}
    found = document.get("loggers")
    loggers = found if isinstance(found, list) else []
    sections = [document.get("env"), *loggers] if logger is None else loggers[logger : logger + 1]
    return any({"secret": name} in part.values() for part in sections if isinstance(part, dict))


def list_env_secrets(job: JobRow) -> list[str]:
    """Return the names of the secrets that variables of the stored spec refer to, sorted."""
    env = stored_spec(job).get("env")
    variables = env.values() if isinstance(env, dict) else ()
    names = (one.get("secret") for one in variables if isinstance(one, dict))
    return sorted({name for name in names if isinstance(name, str)})


def resource_request(job: JobRow) -> ResourceRequest:
    """Resources that the job requests, with its current limits on workers."""
    spec = stored_spec(job)
    workers = spec.get("workers")
    cpus, gpus = value_at(workers, "cpus", 1.0), value_at(workers, "gpus", 0.0)
    return ResourceRequest(
        min=job.min_workers,
        max=job.max_workers,
        cpus=cpus if cpus > 0 else 1.0,
        gpus=max(0.0, gpus),
        memory=max(0.0, value_at(workers, "memory", 0.0)),
        custom=sort_custom(entries_at(workers, "resources", 0.0)),
        selector=read_selector(entries_at(workers, "node_labels", "")),
        step=max(1, int(value_at(spec.get("parallelism"), "shard", 1.0))),
    )
