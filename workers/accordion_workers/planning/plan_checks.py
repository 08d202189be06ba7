"""Which jobs can be planned; loads no torch."""

from __future__ import annotations

from accordion_workers.records.contract import JobSpec
from accordion_workers.tasks import SCRIPT


def explain_refusal(spec: JobSpec) -> str:
    """Return why a step of the job cannot be measured before it runs; empty if it can."""
    if spec.task.name == SCRIPT:
        return (
            "the model of a script is not known before it runs; plan a built-in task or a class of"
            " your own, or run the job and ask 'accordion why'"
        )
    if spec.max_replicas < 2 <= spec.num_shards:
        return (
            f"parallelism.shard is {spec.num_shards}, so {spec.workers.max} workers are one"
            " replica, which exchanges nothing with others; plan for"
            f" {2 * spec.num_shards} workers or more"
        )
    if spec.workers.gpus:
        return (
            f"workers.gpus is {spec.workers.gpus:g}, and a step is measured on a CPU; set"
            " workers.gpus=0 to plan for CPUs, or run the job and ask 'accordion why'"
        )
    return ""
