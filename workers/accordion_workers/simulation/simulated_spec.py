"""Which jobs can be simulated, and with which settings; loads no torch."""

from __future__ import annotations

from typing import Any

from accordion.policies import POLICIES
from accordion_workers.records.contract import JobSpec
from accordion_workers.spec.parallelism import read_shards
from accordion_workers.tasks import SCRIPT


def build_simulated_spec(spec: dict[str, Any], *, workers: int, seed: int | None) -> dict[str, Any]:
    """Return a spec for a simulation: with this number of workers, which take equal parts of a
    batch, and without what waits or stores elsewhere.

    Workers that hold the model together are simulated as one, which compresses whole layers.
    """
    spec, shards = dict(spec), read_shards(spec)
    if shards > 1 and workers % shards == 0:
        workers //= shards
        del spec["parallelism"]
    _replace(spec, "workers", {"min": workers, "max": workers, "balance": False})
    if seed is not None:
        _replace(spec, "training", {"seed": seed})
    if isinstance(task := spec.get("task"), dict) and isinstance(task.get("options"), dict):
        options = {key: value for key, value in task["options"].items() if key != "min_step_s"}
        spec["task"] = {**task, "options": options}
    if isinstance(checkpoint := spec.get("checkpoint"), dict):
        spec["checkpoint"] = {key: one for key, one in checkpoint.items() if key != "storage"}
    return spec


def explain_refusal(spec: JobSpec) -> str:
    """Return why a job cannot be simulated; empty if it can."""
    if spec.task.name == SCRIPT:
        return (
            "a script has a training loop of its own, which cannot be run for several workers in"
            " one process; simulate a built-in task or a class of your own, or submit the job"
        )
    if POLICIES[spec.policy.name].uses_costs:
        return (
            f"policy.name is {spec.policy.name}, which decides by the measured link, and simulated"
            " workers have none; simulate a policy such as two_level, or ask 'accordion plan'"
        )
    if spec.warm_start is not None:
        return (
            "warm_start names a model of the service, which a simulation does not ask; leave it out"
        )
    return ""


def _replace(spec: dict[str, Any], section: str, values: dict[str, Any]) -> None:
    """Set values of a section; one that is no mapping stays, for the check of the spec to name."""
    given = spec.get(section, {})
    if isinstance(given, dict):
        spec[section] = {**given, **values}
