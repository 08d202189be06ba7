"""Part `parallelism` of a job's specification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator

from accordion_workers.spec.types import Strict, Whole
from accordion_workers.spec.workers import WorkersSpec
from accordion_workers.tasks import STANDALONE


def read_shards(spec: Mapping[str, Any]) -> int:
    """Return `parallelism.shard` of a spec that may be wrong; 1 if it has none, or a wrong one."""
    part = spec.get("parallelism")
    found = part.get("shard") if isinstance(part, Mapping) and len(part) == 1 else None
    return found if type(found) is int and found > 1 else 1


class ParallelismSpec(Strict):
    """How workers divide a model that does not fit one of them."""

    shard: Whole = Field(ge=2, le=1024)
    """Workers that hold one model together. A task's model is sharded block by block; a script
    calls `fully_shard(module, mesh=session.mesh["shard"])`. They are of one node wherever a node
    has as many; gradients are compressed between these replicas. `workers.min` and `workers.max`
    are multiples of it.
    """

    @field_validator("shard", mode="before")
    @classmethod
    def _check_shard(cls, shard: Any) -> Any:
        if type(shard) is int and shard in {0, 1}:
            raise ValueError(
                f"shard is {shard}, and without shards each worker has the whole model; leave"
                " parallelism out (--set parallelism=null), or give 2 or more"
            )
        return shard

    def check(self, task: str, workers: WorkersSpec) -> None:
        """Check that the task and the numbers of workers fit; those of a run outside of a job are
        counted when it has them.

        Raises:
            ValueError: they do not.
        """
        if task == STANDALONE:
            return
        for name, number in (("min", workers.min), ("max", workers.max)):
            if rest := number % self.shard:
                fewer, more = number - rest, number - rest + self.shard
                near = f"{fewer} or {more}" if fewer else f"{more}"
                raise ValueError(
                    f"workers.{name} is {number}, and {self.shard} workers hold one model together"
                    f" (parallelism.shard); give a multiple of {self.shard}, such as {near}"
                )
