"""Specification of a job: `JobSpec`, checked and with all defaults filled in.

Epochs and steps are counted from 0; intervals of epochs are half open. Loads pydantic, but neither
ray nor torch.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AwareDatetime,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from accordion.base.messages import OptionValue, StatisticKind
from accordion.base.options import check_options
from accordion.config import BatchConfig, Config, DetectorConfig, Window
from accordion.policies import POLICIES
from accordion_workers.common.plain_text import check_input
from accordion_workers.common.storage_url import check_storage_url
from accordion_workers.spec.compression import CompressionSpec as CompressionSpec
from accordion_workers.spec.data import DataLocations
from accordion_workers.spec.env import Env
from accordion_workers.spec.limits import LimitsSpec as LimitsSpec
from accordion_workers.spec.local_steps_spec import LocalStepsSpec
from accordion_workers.spec.loggers import MAX_LOGGERS, LoggerSpec
from accordion_workers.spec.objective import ObjectiveSpec, check_metric
from accordion_workers.spec.parallelism import ParallelismSpec
from accordion_workers.spec.requirements import PipRequirements
from accordion_workers.spec.training import OverrideRangesSpec, TrainingSpec
from accordion_workers.spec.types import (
    MAX_LABELS,
    MAX_PRIORITY,
    MAX_SAMPLES,
    Label,
    Number,
    Sha256,
    Strict,
    Whole,
)
from accordion_workers.spec.warm_start import WarmStartSpec
from accordion_workers.spec.workers import WorkersSpec as WorkersSpec
from accordion_workers.tasks import GUEST, SCRIPT, SCRIPT_ROW, TASKS

USER_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
"""Name of a user's task class: `package.module:Class`."""
MAX_YEAR = 3000
"""First year in which no job can be scheduled."""
_LIBRARY = Config()
"""Settings of the library, whose defaults are those of a spec."""


def _task_names(schema: dict[str, Any]) -> None:
    own = {
        "pattern": f"^{USER_CLASS.pattern}$",
        "description": "your own class, `package.module:Class`",
    }
    schema["anyOf"] = [{"enum": [*TASKS, SCRIPT]}, own]


class TaskSpec(Strict):
    """What is trained: a built-in task, your own class as `package.module:Class`, or your own
    `script`.
    """

    name: Annotated[str, Field(max_length=200, json_schema_extra=_task_names)]
    """A built-in task (`GET /api/v1/tasks`), your own class as `package.module:Class`, or `script`.
    """
    options: dict[str, OptionValue] = Field(default={})
    """Options by name, such as `{"hidden": 128}`; `GET /api/v1/tasks` lists those of
    built-in tasks. A script takes `file` and `args`. Only options of a class of your own
    are not checked.
    """

    @property
    def is_script(self) -> bool:
        """Whether the task is a whole script of the user's."""
        return self.name == SCRIPT

    @property
    def is_guest(self) -> bool:
        """Whether the task is that of runs which register themselves; it cannot be submitted."""
        return self.name == GUEST

    @property
    def is_user_class(self) -> bool:
        """Whether the task is a user's class instead of a built-in one."""
        return ":" in self.name

    @model_validator(mode="after")
    def _check_task(self) -> TaskSpec:
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


class BatchSpec(Strict):
    """Two sizes of the global batch, and how the learning rate follows them."""

    low: Whole | None = Field(default=None, ge=1, le=MAX_SAMPLES)
    """Samples per step in critical regimes. Null: `training.global_batch`, which it must equal."""
    high: Whole = Field(ge=2, le=MAX_SAMPLES)
    """Samples per step in stable regimes, accumulated for one exchange per step; above `low`."""
    grow_only: Annotated[bool, Field(strict=True)] = True
    """Whether a grown batch keeps its size (arXiv:2010.16248); an override can still shrink it."""
    lr_scaling: Literal["linear", "sqrt", "none"] = "linear"
    """Factor of the learning rate: batch / `low` (arXiv:1706.02677), its square root, or 1."""
    warmup_steps: Whole = Field(default=20, ge=0, le=1_000_000)
    """Steps over which the learning rate rises after the batch has grown; it falls at once."""


class WindowSpec(Strict):
    """Distance between two checks of the regimes; give either epochs or steps."""

    epochs: Whole | None = Field(default=None, ge=1)
    """Length of a window in epochs. Null: `steps` is given."""
    steps: Whole | None = Field(default=None, ge=1)
    """Length of a window in optimizer steps. Null: `epochs` is given."""

    @model_validator(mode="after")
    def _check_one_unit(self) -> WindowSpec:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"window has epochs={self.epochs} and steps={self.steps}; give exactly one of them"
            )
        return self


class PolicySpec(Strict):
    """How the compression level of each layer is chosen, and when a layer counts as critical."""

    name: str = Field(default=_LIBRARY.policy, json_schema_extra={"enum": list(POLICIES)})
    """Policy that picks the levels; `GET /api/v1/policies` lists them with their options."""
    threshold: Number = Field(default=_LIBRARY.detector.threshold, gt=0)
    """Relative change of a layer's gradient norm from which the layer is critical: 0.5 is a change
    of 50 %. A smaller threshold makes more layers critical and sends more bytes.
    """
    window: WindowSpec = WindowSpec(epochs=2)
    """How often regimes are checked; every 2 epochs by default."""
    lr_drop: Number = Field(default=_LIBRARY.detector.lr_drop, ge=0, le=1)
    """A sudden drop of the learning rate to this fraction of it or less makes all layers critical;
    a gradual decay does not, unless it is 1, which means any drop.
    """
    statistic: StatisticKind = _LIBRARY.detector.statistic
    """Statistic of the gradient; `paper`, for comparison only, needs a window in epochs."""
    options: dict[str, Any] = Field(default={})
    """Options of the policy by name (`GET /api/v1/policies`); `scheduled` needs `table`."""


class CheckpointSpec(Strict):
    """When the job's state is saved, where, and how many saved states are kept."""

    every_epochs: Whole = Field(default=1, ge=1)
    """Epochs between saves; the end of the job, a stop and a resize save as well."""
    every_steps: Whole | None = Field(default=None, ge=1)
    """Optimizer steps between additional saves. Null: none."""
    every_seconds: Number | None = Field(default=None, gt=0)
    """Seconds between additional saves, each at the next step. Null: none."""
    keep: Whole = Field(default=2, ge=1, le=100)
    """Complete checkpoints to keep; older ones are removed, except the best by `objective`."""
    storage: str | None = Field(default=None, max_length=1000)
    """URL of an fsspec filesystem, such as `s3://bucket/path` or `file:///mnt/shared`; each job
    gets a directory named by its ID there. A plain path is rejected. Null: the job's own directory
    below `ACCORDION_STORAGE`.
    """

    @field_validator("storage")
    @classmethod
    def _check_storage(cls, storage: str | None) -> str | None:
        return None if storage is None else check_storage_url(storage)


class JobSpec(Strict):
    """Specification of a job. Everything except `task` has a default."""

    name: Label | None = None
    """Name shown in lists, need not be unique: up to 63 letters, digits and `._/-`. Null: a name
    made from the task's.
    """
    task: TaskSpec
    """What is trained."""
    code: Sha256 | None = None
    """SHA-256 of uploaded code (`POST /api/v1/code`); the command line also takes a folder, and
    uploads it. Required for `script`, and for a class of your own that the workers lack.
    """
    pip: PipRequirements = ()
    """Python packages that the workers lack, as up to 64 requirements such as `einops==0.8.0`. They
    are resolved once per job, and cannot replace a package of the workers.
    """
    env: Env = Field(default={})
    """Environment variables of the workers, as up to 64 names and values, such as `{"HF_HOME":
    "/mnt/hf"}`. Values are visible to everybody who may see the job, except that of a secret:
    `{"HF_TOKEN": {"secret": "hf-token"}}` takes your secret of that name (`PUT /api/v1/secrets`).
    """
    data: DataLocations = Field(default={})
    """Up to 16 locations of data by name, such as `{"train": "s3://bucket/train"}`. Each node
    fetches the files of a URL once; an absolute path is used where it is. Workers find those of
    `train` with `session.data_path("train")`, and in the variable `ACCORDION_DATA_TRAIN`.
    """
    workers: WorkersSpec = WorkersSpec()
    """Worker processes and what each reserves."""
    parallelism: ParallelismSpec | None = None
    """How workers divide the model of a script. Null: each of them holds all of it."""
    training: TrainingSpec = TrainingSpec()
    """Epochs, batch, precision, optimizer and learning rate."""
    compression: CompressionSpec = CompressionSpec()
    """Compression of the gradients."""
    local_steps: LocalStepsSpec | None = None
    """Steps that each worker takes by itself between two exchanges. Null: every step has one."""
    batch: BatchSpec | None = None
    """Sizes of the global batch by regime. Null: the batch keeps its size."""
    policy: PolicySpec = PolicySpec()
    """How compression levels are chosen."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """When and where the state is saved."""
    objective: ObjectiveSpec | None = None
    """Metric by which the best checkpoint is kept, and training may end early. Null: none."""
    warm_start: WarmStartSpec | None = None
    """Model of another job to start with. Null: a random one, made from `training.seed`."""
    limits: LimitsSpec = LimitsSpec()
    """Time limits of the job and for hung workers."""
    start_at: AwareDatetime | None = None
    """Time at which the job is queued, with a time zone, such as `2027-01-31T22:00:00+01:00`. Null,
    or a time in the past: at once.
    """
    priority: Whole = Field(default=50, ge=0, le=MAX_PRIORITY)
    """Place in the queue: a higher priority is ahead, and of equal ones the job that was submitted
    first.
    """
    max_failures: Whole = Field(default=3, ge=0, le=100)
    """Failures of the job itself that are retried; lost machines and processes do not count. With 0
    the first failure ends the job.
    """
    labels: dict[Label, Label] = Field(default={}, json_schema_extra={"maxProperties": MAX_LABELS})
    """Up to 32 labels as names and values, such as `{"team": "vision"}`; lists of jobs filter by
    `?label=team:vision`.
    """
    loggers: Annotated[tuple[LoggerSpec, ...], Field(max_length=MAX_LOGGERS)] = ()
    """TensorBoard, MLflow and W&B runs that the service fills with the job's epochs; at most 4."""

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
    def _check_input(cls, data: Any) -> Any:
        return check_input(data)

    @field_validator("start_at")
    @classmethod
    def _check_start(cls, start_at: AwareDatetime | None) -> AwareDatetime | None:
        if start_at is not None and not 1970 < start_at.year < MAX_YEAR:
            raise ValueError(f"the year is {start_at.year}; give one from 1971 to {MAX_YEAR - 1}")
        return start_at

    @field_validator("labels")
    @classmethod
    def _check_labels(cls, labels: dict[str, str]) -> dict[str, str]:
        if len(labels) > MAX_LABELS:
            raise ValueError(f"{len(labels)} labels; at most {MAX_LABELS} are kept")
        return labels

    @model_validator(mode="after")
    def _check_parts_together(self) -> JobSpec:
        if self.task.name == SCRIPT:
            self._check_script_parts()
        if self.training.precision == "fp16" and not self.workers.gpus:
            raise ValueError(
                "training.precision is fp16 and workers.gpus is 0; processors lack parts of fp16,"
                " so take bf16 or fp32, or give workers.gpus"
            )
        if self.local_steps is not None:
            self._check_local_steps(self.local_steps)
        if self.workers.gpus > 1 and self.task.name not in (SCRIPT, GUEST):
            raise ValueError(
                f"workers.gpus is {self.workers.gpus:g}, and a worker trains on one GPU; give"
                " workers.gpus 1 and more workers, or a script of your own that uses several"
            )
        if self.task.name in TASKS:
            check_metric(self.objective, TASKS[self.task.name].metrics, f"task {self.task.name}")
        self._unify_batch_sizes()
        self.config()
        size, micro = self.training.global_batch, self.training.micro_batch
        if size < self.min_global_batch and self.task.name != GUEST:
            raise ValueError(
                f"a global batch of {size} in micro-batches of {micro} gives {-(-size // micro)}"
                f" shares for workers.max {self.workers.max}; lower micro_batch or workers.max"
            )
        return self

    @model_validator(mode="after")
    def _check_parallelism(self) -> JobSpec:
        if self.parallelism is not None:
            self.parallelism.check(self.task.name, self.workers)
        return self

    @model_validator(mode="after")
    def _check_budget(self) -> JobSpec:
        if self.local_steps is not None:
            self.local_steps.check_budget(
                task=self.task.name, policy=self.policy.name, has_batch=self.batch is not None
            )
        return self

    def _check_script_parts(self) -> None:
        if self.code is None:
            raise ValueError(
                "task script needs code; upload it with POST /api/v1/code, or submit with --code"
                " DIRECTORY"
            )
        if self.training.precision != "fp32":
            raise ValueError(
                f"training.precision is {self.training.precision}, and a script chooses its own;"
                " leave it out, and use torch.autocast in the script"
            )
        # A stored spec has the defaults.
        given, default = self.training.override_ranges, OverrideRangesSpec()
        if given.model_copy(update={"lr": default.lr}) != default:
            raise ValueError(
                "training.override_ranges has more than lr, and a script sets the rest of its"
                " optimizer itself; leave that out"
            )

    def _check_local_steps(self, local: LocalStepsSpec) -> None:
        if self.training.precision == "fp16":
            raise ValueError(
                "training.precision is fp16, whose scale of the loss would differ between workers"
                " in local_steps; take bf16 or fp32, or leave local_steps out"
            )
        if local.overlap and self.workers.gpus:
            raise ValueError(
                f"local_steps.overlap is {local.overlap}, which was never tried on GPUs; leave it"
                " out, or set workers.gpus to 0"
            )

    def _unify_batch_sizes(self) -> None:
        """Give both places of the low batch size the same number.

        Raises:
            ValueError: the spec names two different sizes.
        """
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

    def _list_optimizer_ranges(self) -> dict[str, tuple[float, float]]:
        """Return what overrides may set of the optimizer; that of a script is its own but for the
        learning rate, which a session sets for the time of each step.
        """
        if self.task.name == GUEST:
            return {}
        ranges = self.training.override_ranges
        return {"lr": ranges.lr} if self.task.name == SCRIPT else ranges.model_dump()

    @property
    def num_shards(self) -> int:
        """Workers that hold one model together."""
        return 1 if self.parallelism is None else self.parallelism.shard

    @property
    def max_replicas(self) -> int:
        """Most replicas of the model that train together; without shards, of `workers.max`."""
        return self.workers.max // self.num_shards

    @property
    def remembers_rounds(self) -> bool:
        """Whether each worker remembers the round of local steps that it is in; one that holds a
        part of the model cannot give all of it to others.
        """
        return self.local_steps is not None and self.num_shards == 1

    @property
    def min_global_batch(self) -> int:
        """Smallest global batch that gives each of `workers.max` workers a share."""
        return (self.workers.max - 1) * self.training.micro_batch + 1

    def config(self) -> Config:
        """Return the settings of the library.

        Raises:
            ConfigError: a method, policy or option is unknown or out of range.
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
            buckets_per_exchange=self.compression.buckets_per_exchange,
            local_steps=None if self.local_steps is None else self.local_steps.config(),
            warm_up=self.compression.warm_up_config(),
            batch=(
                BatchConfig(low=low, high=batch.high, grow_only=batch.grow_only) if batch else None
            ),
            seed=self.training.seed,
            optimizer_ranges=self._list_optimizer_ranges(),
        )
