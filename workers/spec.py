"""What a person asks for: `JobSpec`, checked and with all defaults filled in; pydantic; neither ray
nor torch.

Epochs and steps are counted from 0; intervals of epochs are half open.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, cast

from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from accordion.compressors import COMPRESSORS, ladder_of
from accordion.config import BatchConfig, Config, DetectorConfig, Window
from accordion.messages import OptionValue, StatisticKind
from accordion.options import check_options
from accordion.policies import POLICIES
from workers.plain_text import check_texts
from workers.storage_url import check_storage_url
from workers.tasks import GUEST, SCRIPT, SCRIPT_ROW, TASKS

Label = Annotated[
    str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$")
]


USER_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
"""`package.module:Class`."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Strict(BaseModel):
    """A frozen record that refuses unknown fields, and numbers that are not finite."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


Whole = Annotated[int, Field(strict=True)]
"""A whole number: neither a text nor a truth value that could be taken for one."""
Number = Annotated[float, Field(strict=True)]
"""Likewise, whole or not."""
MAX_SAMPLES = 10_000_000
"""Of a global batch."""
MIN_SHARE = 0.001
"""The smallest part of a CPU or GPU that Ray can reserve is ten times smaller; below this nobody
means it.
"""


MIN_MEMORY_BYTES = 300_000_000
"""A worker with torch in it takes about 250 MB before it holds a model."""
MAX_MEMORY_BYTES = 2**50


def _task_names(schema: dict[str, Any]) -> None:
    own = {
        "pattern": f"^{USER_CLASS.pattern}$",
        "description": "a class of your own, `package.module:Class`",
    }
    schema["anyOf"] = [{"enum": [*TASKS, SCRIPT]}, own]


class TaskSpec(Strict):
    """What is trained: a task of the table, a class of one's own as `package.module:Class`, or
    one's own `script`.
    """

    name: Annotated[str, Field(max_length=200, json_schema_extra=_task_names)]
    options: dict[str, OptionValue] = {}
    """Checked where the task is one of ours; a class of one's own is given them as they are."""

    @property
    def is_user_class(self) -> bool:
        """Whether it names a class outside the table."""
        return ":" in self.name

    @model_validator(mode="after")
    def _known(self) -> TaskSpec:
        rows = {**TASKS, SCRIPT: SCRIPT_ROW}
        if USER_CLASS.fullmatch(self.name) or self.name == GUEST:
            return self
        if self.name not in rows:
            raise ValueError(
                f"unknown task {self.name!r}; known are {', '.join(rows)}, or name a class of your"
                " own as module:Class"
            )
        checked = check_options(self.options, rows[self.name].options, f"task {self.name}")
        object.__setattr__(self, "options", checked)
        if self.name == SCRIPT:
            _check_script(str(checked["file"]))
        return self


def _check_script(file: str) -> None:
    parts = file.split("/")
    if not file.endswith(".py") or "\\" in file or not all(part.strip(".") for part in parts):
        raise ValueError(
            f"script file is {file!r}; name a .py file by its path inside the uploaded code, such"
            " as train.py"
        )


class WorkersSpec(Strict):
    """How many worker processes, and what each of them reserves."""

    min: Whole = Field(default=1, ge=1, le=1024)
    max: Whole = Field(default=2, ge=1, le=1024)
    cpus: Number = Field(default=1.0, ge=MIN_SHARE, le=1024)
    gpus: Number = Field(default=0.0, ge=0, le=64)
    memory: ByteSize | None = Field(default=None, ge=MIN_MEMORY_BYTES, le=MAX_MEMORY_BYTES)
    """Memory limit of each worker, in bytes or as text such as `4GB`. It is reserved on the node,
    and a worker that exceeds it is killed. Without it, the largest worker of a node that runs out
    of memory is killed.
    """
    engine: Literal["ray-train", "actors"] = "ray-train"
    """What runs the worker processes: `ray-train` makes them workers of a Ray Train run, which
    Ray's state API and dashboard show; `actors` starts plain Ray actors, which need neither
    `ray[train]` nor its controller process.
    """

    @field_validator("memory", mode="wrap")
    @classmethod
    def _read_memory(cls, value: Any, read: ValidatorFunctionWrapHandler) -> ByteSize | None:
        try:
            return cast("ByteSize | None", read(value))
        except ValidationError:
            raise ValueError(
                "memory is a number of bytes or a text such as 4GB, from 300MB to 1PB"
            ) from None

    @property
    def num_threads(self) -> int:
        """Number of compute threads of a worker: the whole CPUs that it reserves, at least one."""
        return max(1, int(self.cpus))

    @model_validator(mode="after")
    def _ordered(self) -> WorkersSpec:
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


class OptimizerSpec(Strict):
    """The optimizer; `momentum` and `nesterov` belong to sgd only."""

    name: Literal["sgd", "adamw"] = "sgd"
    lr: Number = Field(default=0.1, gt=0, le=100)
    momentum: Number = Field(default=0.9, ge=0, lt=1)
    nesterov: Annotated[bool, Field(strict=True)] = False
    weight_decay: Number = Field(default=1.0e-4, ge=0, le=10)

    @model_validator(mode="after")
    def _fits_its_name(self) -> OptimizerSpec:
        own = type(self).model_fields
        foreign = [
            field
            for field in ("momentum", "nesterov")
            if getattr(self, field) != own[field].default
        ]
        if self.name == "adamw" and foreign:
            raise ValueError(f"optimizer adamw has no {foreign[0]}; leave it out, or take sgd")
        if self.nesterov and self.momentum == 0:
            raise ValueError(
                "nesterov is true and momentum is 0; give a momentum above 0, such as 0.9"
            )
        return self


class WarmupSpec(Strict):
    """The learning rate grows linearly over the first epochs."""

    epochs: Whole = Field(default=0, ge=0, le=100_000)


class LrDecaySpec(Strict):
    """The learning rate is multiplied by `factor` at the start of each epoch named in `at`."""

    at: Annotated[
        tuple[Annotated[Whole, Field(ge=1, le=100_000)], ...], Field(max_length=1000)
    ] = ()
    factor: Number = Field(default=0.1, gt=0, lt=1)


class TrainingSpec(Strict):
    """The mathematics of the run; none of it depends on the number of workers."""

    epochs: Whole = Field(default=20, ge=1, le=100_000)
    global_batch: Whole = Field(default=64, ge=1, le=MAX_SAMPLES)
    """Samples a step, over all workers; with batch levels those of the low one."""
    micro_batch: Whole = Field(default=16, ge=1, le=1_000_000)
    """Samples a forward pass: the unit that is shared out to workers."""
    seed: Whole = Field(default=0, ge=0, lt=2**32)
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of the model's passes, by autocast; parameters, gradients and loss stay fp32. With `fp16` the
    loss is scaled.
    """
    clip_norm: Number | None = Field(default=None, gt=0)
    optimizer: OptimizerSpec = OptimizerSpec()
    warmup: WarmupSpec = WarmupSpec()
    lr_decay: LrDecaySpec = LrDecaySpec()


class CompressionSpec(Strict):
    """The method and the options of its two levels; left out, the method's own."""

    method: str = Field(default="powersgd", json_schema_extra={"enum": list(COMPRESSORS)})
    low: dict[str, OptionValue] | None = None
    high: dict[str, OptionValue] | None = None

    @model_validator(mode="after")
    def _known(self) -> CompressionSpec:
        low, high = ladder_of(self.method, self.low, self.high)
        object.__setattr__(self, "low", dict(low.options))
        object.__setattr__(self, "high", dict(high.options))
        return self


class BatchSpec(Strict):
    """Two sizes of the global batch, and how the learning rate follows them; left out, the batch
    stays as it is.
    """

    low: Whole | None = Field(default=None, ge=1, le=MAX_SAMPLES)
    """Samples a step in critical regimes: `training.global_batch`, which may be left out instead.
    """
    high: Whole = Field(ge=2, le=MAX_SAMPLES)
    """Likewise elsewhere; made of more micro-batches a worker, with one exchange a step as before.
    """
    grow_only: Annotated[bool, Field(strict=True)] = True
    """Once large, the batch stays large (arXiv:2010.16248); people may still make it small by hand.
    """
    lr_scaling: Literal["linear", "sqrt", "none"] = "linear"
    """The schedule's rate is multiplied by the batch over `low` (arXiv:1706.02677), by its root, or
    left alone.
    """
    warmup_steps: Whole = Field(default=20, ge=0, le=1_000_000)
    """Steps in which the rate grows to its new size after the batch has grown; a rate that falls
    does so at once.
    """


class WindowSpec(Strict):
    """Distance between two checks of the regime: epochs or steps, one of the two."""

    epochs: Whole | None = Field(default=None, ge=1)
    steps: Whole | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one(self) -> WindowSpec:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"window has epochs={self.epochs} and steps={self.steps}; give exactly one of them"
            )
        return self


class PolicySpec(Strict):
    """Who decides the level of a layer, and when a layer counts as critical."""

    name: str = Field(default="two_level", json_schema_extra={"enum": list(POLICIES)})
    threshold: Number = Field(default=0.5, gt=0)
    window: WindowSpec = WindowSpec(epochs=2)
    lr_drop: Number = Field(default=0.5, ge=0, le=1)
    statistic: StatisticKind = "mean"
    """Statistic by which two windows are compared; `paper` reproduces the paper's code, for
    comparison only, and needs a window in epochs.
    """
    options: dict[str, Any] = {}


class CheckpointSpec(Strict):
    """When the state is saved, whichever comes first; how many saved states are kept, and where."""

    every_epochs: Whole = Field(default=1, ge=1)
    every_steps: Whole | None = Field(default=None, ge=1)
    every_seconds: Number | None = Field(default=None, gt=0)
    keep: Whole = Field(default=2, ge=1, le=100)
    storage: str | None = Field(default=None, max_length=1000)
    """URL of a filesystem that fsspec knows, such as `s3://bucket/path` or `file:///mnt/shared`;
    each job has a directory of its name there. Left out, the job's own directory.
    """

    @field_validator("storage")
    @classmethod
    def _a_place(cls, storage: str | None) -> str | None:
        return None if storage is None else check_storage_url(storage)


class LimitsSpec(Strict):
    """Timeouts after which worker processes count as hung."""

    start_seconds: Number = Field(default=3600, ge=1, le=10_000_000)
    """Seconds to load the task and its data, and then a checkpoint, while the process responds."""
    step_seconds: Number = Field(default=1800, ge=1, le=10_000_000)
    """Seconds without progress on any worker: a step, a micro-batch, a piece of the evaluation or,
    in a script, a call of the session.
    """
    answer_seconds: Number = Field(default=15, ge=1, le=100_000)
    """Seconds that a process may be unresponsive, such as in C code that holds Python's lock; the
    limit doubles whenever a process is killed for it.
    """


class JobSpec(Strict):
    """What a person asks for. Everything but `task` has a default."""

    name: Label | None = None
    task: TaskSpec
    code: Sha256 | None = None
    """Modules of one's own, as `POST /api/v1/code` named them: they come last on the workers'
    `sys.path`.
    """
    workers: WorkersSpec = WorkersSpec()
    training: TrainingSpec = TrainingSpec()
    compression: CompressionSpec = CompressionSpec()
    batch: BatchSpec | None = None
    policy: PolicySpec = PolicySpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    limits: LimitsSpec = LimitsSpec()
    priority: Whole = Field(default=50, ge=0, le=100)
    max_failures: Whole = Field(default=3, ge=0, le=100)
    """How often the job's own failures are retried; lost machines do not count."""
    labels: dict[Label, Label] = {}

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"task": {"name": "digits-mlp"}},
                {
                    "name": "digits-topk",
                    "task": {"name": "digits-mlp", "options": {"hidden": 128}},
                    "workers": {"min": 1, "max": 2},
                    "training": {"epochs": 8, "optimizer": {"name": "adamw", "lr": 0.001}},
                    "compression": {"method": "topk"},
                    "batch": {"low": 64, "high": 256},
                    "labels": {"team": "vision"},
                },
            ]
        }
    )

    @model_validator(mode="before")
    @classmethod
    def _plain_texts(cls, data: Any) -> Any:
        return check_texts(data)

    @field_validator("labels")
    @classmethod
    def _few(cls, labels: dict[str, str]) -> dict[str, str]:
        if len(labels) > 32:
            raise ValueError(f"{len(labels)} labels; at most 32 are kept")
        return labels

    @model_validator(mode="after")
    def _fits(self) -> JobSpec:
        if self.task.name == SCRIPT and self.code is None:
            raise ValueError(
                "task script needs code; upload it with POST /api/v1/code, or submit with --code"
                " DIRECTORY"
            )
        if self.task.name == SCRIPT and self.training.precision != "fp32":
            raise ValueError(
                f"training.precision is {self.training.precision}, and a script chooses its own;"
                " leave it out, and use torch.autocast in the script"
            )
        if self.training.precision == "fp16" and not self.workers.gpus:
            raise ValueError(
                "training.precision is fp16 and workers.gpus is 0; processors lack parts of fp16,"
                " so take bf16 or fp32, or give workers.gpus"
            )
        if self.workers.gpus > 1 and self.task.name not in (SCRIPT, GUEST):
            raise ValueError(
                f"workers.gpus is {self.workers.gpus:g}, and a worker trains on one GPU; give"
                " workers.gpus 1 and more workers, or a script of your own that uses several"
            )
        self._settle_batch()
        self.config()
        size, micro = self.training.global_batch, self.training.micro_batch
        if size < self.min_global_batch and self.task.name != GUEST:
            raise ValueError(
                f"a global batch of {size} in micro-batches of {micro} gives {-(-size // micro)}"
                f" shares for workers.max {self.workers.max}; lower micro_batch or workers.max"
            )
        return self

    def _settle_batch(self) -> None:
        """One number for the low level, whichever of its two places it was given in."""
        if self.batch is None:
            return
        training, low = self.training, self.batch.low
        if low is None:
            low = training.global_batch
            object.__setattr__(self, "batch", self.batch.model_copy(update={"low": low}))
        elif "global_batch" not in training.model_fields_set:
            object.__setattr__(self, "training", training.model_copy(update={"global_batch": low}))
        elif low != training.global_batch:
            raise ValueError(
                f"batch.low is {low} and training.global_batch is {training.global_batch}, which"
                " are the same thing; leave one of them out"
            )

    @property
    def min_global_batch(self) -> int:
        """Samples from which on every worker that the job may have gets a part of a global
        batch.
        """
        return (self.workers.max - 1) * self.training.micro_batch + 1

    def config(self) -> Config:
        """The library's settings.

        Raises:
            ConfigError: an unknown method, policy or option, or one out of range.
        """
        policy, batch = self.policy, self.batch
        low = self.training.global_batch
        window = Window(epochs=policy.window.epochs, steps=policy.window.steps)
        return Config(
            method=self.compression.method,
            low=self.compression.low,
            high=self.compression.high,
            policy=policy.name,
            policy_options=policy.options,
            detector=DetectorConfig(
                threshold=policy.threshold,
                window=window,
                lr_drop=policy.lr_drop,
                statistic=policy.statistic,
            ),
            batch=(
                BatchConfig(low=low, high=batch.high, grow_only=batch.grow_only) if batch else None
            ),
            seed=self.training.seed,
        )
