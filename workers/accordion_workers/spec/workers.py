"""Part `workers` of a job's specification."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, cast

from pydantic import (
    ByteSize,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from accordion_workers.common.node_selectors import format_selector, read_selector
from accordion_workers.spec.patterns import (
    NODE_LABEL_NAME_PATTERN,
    NODE_SELECTOR_PATTERN,
    RESOURCE_NAME_PATTERN,
)
from accordion_workers.spec.types import Number, Strict, Whole

MIN_SHARE = 0.001
"""Smallest share of a CPU or GPU; Ray can reserve less, but less is usually a mistake."""


MIN_MEMORY_BYTES = 300_000_000
"""Smallest memory limit: a process with torch loaded takes about 250 MB."""
MAX_MEMORY_BYTES = 2**50
"""Largest memory limit of a worker (1 PiB)."""
BUILT_IN_RESOURCES = frozenset({"CPU", "GPU", "memory", "object_store_memory"})
"""Resources that Ray gives every node."""
MIN_RESOURCE = 1e-4
"""Smallest amount of a custom resource: Ray counts in ten-thousandths."""
ResourceName = Annotated[str, Field(max_length=63, pattern=RESOURCE_NAME_PATTERN)]
LabelName = Annotated[str, Field(max_length=253, pattern=NODE_LABEL_NAME_PATTERN)]
NodeSelector = Annotated[str, Field(max_length=1000, pattern=NODE_SELECTOR_PATTERN)]


def _memory_bounds(schema: dict[str, Any]) -> None:
    """Write the bounds as JSON schema keywords; for a `ByteSize` pydantic writes `ge` and `le`."""
    for name in ("ge", "le"):
        schema.pop(name, None)
    if schema.get("type") == "integer":
        schema["minimum"], schema["maximum"] = MIN_MEMORY_BYTES, MAX_MEMORY_BYTES
    for part in schema.get("anyOf", ()):
        _memory_bounds(part)


class WorkersSpec(Strict):
    """How many worker processes the job uses, and what each of them reserves."""

    min: Whole = Field(default=1, ge=1, le=1024)
    """Fewest workers that the job trains with; it starts when they fit into the cluster."""
    max: Whole = Field(default=2, ge=1, le=1024)
    """Most workers; between `min` and `max` the job grows and shrinks with the cluster. At most one
    worker for each micro-batch of the global batch: 4 with the default sizes.
    """
    cpus: Number = Field(default=1.0, ge=MIN_SHARE, le=1024)
    """CPUs reserved for each worker. Also sets its compute threads: rounded down, at least one."""
    gpus: Number = Field(default=0.0, ge=0, le=64)
    """GPUs reserved for each worker; less than one only with `max: 1`."""
    memory: ByteSize | None = Field(
        default=None,
        ge=MIN_MEMORY_BYTES,
        le=MAX_MEMORY_BYTES,
        json_schema_extra=_memory_bounds,
    )
    """Memory limit of each worker, in bytes or as text such as `4GB` (4·10^9) or `4GiB` (4·2^30);
    from 300 MB to 1 PiB. It is reserved on the node, and a worker above it is killed. Null: the
    largest worker of a node short of memory is killed.
    """
    resources: dict[ResourceName, Annotated[Number, Field(ge=MIN_RESOURCE, le=1e6)]] = Field(
        default={}, max_length=8
    )
    """Ray's custom resources that each worker reserves, by name, as nodes were started with
    (`ray start --resources`). Above 1 only whole numbers.
    """
    node_labels: dict[LabelName, NodeSelector] = Field(default={}, max_length=8)
    """Labels that the nodes of the workers must have, by name, as nodes were started with
    (`ray start --labels`), such as `ray.io/accelerator-type: H100`. `in(H100,A100)` takes one of
    several values, and `!spot` or `!in(a,b)` excludes values; nodes without the label match these
    two as well. In YAML, put these forms in quotes.
    """
    balance: Annotated[bool, Field(strict=True)] = True
    """Whether faster workers take more micro-batches of each global batch; their speed is compared
    at the end of every epoch and window. It needs more micro-batches than workers. False, in
    scripts and on GPUs: all take equally many.
    """
    engine: Literal["ray-train", "actors"] = "ray-train"
    """What runs the worker processes: `ray-train` makes them workers of a Ray Train run; `actors`
    starts plain Ray actors, which need neither `ray[train]` nor its controller process.
    """

    @field_validator("memory", mode="wrap")
    @classmethod
    def _read_memory(cls, value: Any, read: ValidatorFunctionWrapHandler) -> ByteSize | None:
        try:
            return cast("ByteSize | None", read(value))
        except ValidationError:
            raise ValueError(
                "memory is a number of bytes or a text such as 4GB, from 300MB to 1PiB"
            ) from None

    @field_validator("resources")
    @classmethod
    def _check_resources(cls, resources: dict[str, float]) -> dict[str, float]:
        for name, amount in resources.items():
            if name in BUILT_IN_RESOURCES or name.startswith("node:"):
                raise ValueError(
                    f"resources has {name}, which is not a custom resource; use cpus, gpus, memory"
                    " or node_labels"
                )
            if amount > 1 and not amount.is_integer():
                raise ValueError(f"resources has {amount:g} of {name}; give a whole number above 1")
            if not math.isclose(amount, round(amount, 4), rel_tol=1e-9):
                raise ValueError(f"resources has {amount:g} of {name}; give at most four decimals")
        return resources

    @property
    def num_threads(self) -> int:
        """Number of compute threads of a worker: the whole CPUs that it reserves, at least one."""
        return max(1, int(self.cpus))

    def ray_options(self) -> dict[str, Any]:
        """Return the options of Ray with which a worker is placed, besides CPUs and GPUs."""
        options: dict[str, Any] = {"memory": int(self.memory)} if self.memory else {}
        if self.resources:
            options["resources"] = dict(self.resources)
        if self.node_labels:
            options["label_selector"] = format_selector(read_selector(self.node_labels))
        return options

    @model_validator(mode="after")
    def _check_limits(self) -> WorkersSpec:
        if self.min > self.max:
            raise ValueError(
                f"workers.min is {self.min}, above workers.max {self.max}; lower min or raise max"
            )
        if not (self.gpus.is_integer() or MIN_SHARE <= self.gpus <= 1):
            raise ValueError(
                f"workers.gpus is {self.gpus:g}; give a whole number, or a part of one GPU from"
                f" {MIN_SHARE}"
            )
        if 0 < self.gpus < 1 and self.max > 1:
            raise ValueError(
                f"workers.gpus is {self.gpus:g} and workers.max is {self.max}; two workers of a job"
                " could share a GPU, which NCCL refuses: give whole GPUs, or workers.max 1"
            )
        return self
