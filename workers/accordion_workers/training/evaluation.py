"""End of an epoch: each worker evaluates its part of the held-out samples, and all workers gather
the results.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from accordion.hook.sharded_module import local_part
from accordion_workers.data.nested import to_device
from accordion_workers.records.contract import JobSpec
from accordion_workers.training.sampler import derive_seed, micro_batches, rank_shard
from accordion_workers.training.train_state import TrainState, seeded_generators


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One worker's results of an epoch."""

    loss_total: float
    """Training loss, summed over the worker's own samples."""
    loss_samples: int
    metric_totals: Mapping[str, float] = field(default_factory=dict)
    """Metrics summed over the worker's part of the held-out samples; for a geometric metric, the
    sum of its logarithms.
    """
    geometric: Collection[str] = ()
    """Names of metrics with a geometric mean, such as perplexity: exp of the mean of logarithms."""
    eval_samples: int = 0
    parameters: str
    """Digest of the parameters."""
    skipped_steps: int = 0
    """Steps of the epoch that the worker skipped, alone in rounds of local steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSums:
    """One worker's metrics, summed over its held-out samples."""

    totals: Mapping[str, float] = field(default_factory=dict)
    """Sum by name; for a geometric metric, the sum of its logarithms."""
    samples: int = 0
    geometric: Collection[str] = ()
    """Names of metrics whose mean is the geometric one, such as perplexity."""


def gather_summaries(state: TrainState, metrics: MetricSums) -> list[Summary]:
    """Return every worker's summary of the epoch, in rank order; all ranks together."""
    own = Summary(
        loss_total=float(state.epoch_loss.total),
        loss_samples=state.epoch_loss.samples,
        metric_totals=metrics.totals,
        geometric=metrics.geometric,
        eval_samples=metrics.samples,
        parameters=parameter_digest(state.model),
        skipped_steps=state.session.skipped_steps - state.epoch_baseline.skipped_steps,
    )
    return state.context.peers.gather_objects(own)


def mean_loss(parts: Sequence[Summary]) -> float | None:
    """Return the mean over all samples of the epoch; None if it is not finite."""
    mean = sum(part.loss_total for part in parts) / max(1, sum(part.loss_samples for part in parts))
    return mean if math.isfinite(mean) else None


def mean_metrics(parts: Sequence[Summary]) -> dict[str, float]:
    """Return the means over all held-out samples; values that are not finite are left out."""
    samples = sum(part.eval_samples for part in parts)
    names = dict.fromkeys(name for part in parts for name in part.metric_totals)
    means = {
        name: sum(part.metric_totals.get(name, 0.0) for part in parts) / samples for name in names
    }
    values = {
        name: _safe_exp(mean) if name in parts[0].geometric else mean
        for name, mean in means.items()
    }
    return {name: value for name, value in values.items() if math.isfinite(value)}


def geometric_metrics(task: object) -> tuple[str, ...]:
    """Return the names of the task's metrics with a geometric mean: its optional attribute
    `geometric`.
    """
    return tuple(getattr(task, "geometric", ()))


def parameter_digest(model: nn.Module) -> str:
    """Return a digest that is equal on two workers exactly if their parameters, or their parts of
    them, are equal bit for bit.
    """
    digest = hashlib.sha256()
    for parameter in model.parameters():
        held = local_part(parameter.detach()).cpu().contiguous()
        digest.update(held.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def sync_drifted_parameters(state: TrainState, parts: Sequence[Summary]) -> bool:
    """Broadcast the first replica's parameters if any rank's differ; return whether all were equal.
    All ranks together.
    """
    num_shards = state.spec.num_shards
    first = parts[:num_shards]
    drifted = [
        rank
        for rank, part in enumerate(parts)
        if part.parameters != first[rank % num_shards].parameters
    ]
    if not drifted:
        return True
    for parameter in state.model.parameters():
        _share_first(state, local_part(parameter.detach()))
    whose = "rank 0's" if num_shards == 1 else f"those of ranks 0 to {num_shards - 1}"
    state.context.link.log(
        f"parameters of ranks {drifted} drifted from {whose} by the end of epoch"
        f" {state.position.epoch}: all continue with {whose}; do the machines have different"
        " processors?"
    )
    return False


def _share_first(state: TrainState, held: Tensor) -> None:
    """Replace what this rank holds of a parameter by what the first rank with that part holds."""
    if state.replicate_group is None:
        state.context.peers.broadcast_(held)
    elif held.numel():
        dist.broadcast(held, group=state.replicate_group, group_src=0)


def is_evaluation_due(spec: JobSpec, epoch: int, *, is_last: bool) -> bool:
    """Return whether the metrics are measured at the end of an epoch."""
    return is_last or (epoch + 1) % spec.training.evaluate_every_epochs == 0


@torch.no_grad()
def measure_metrics(state: TrainState) -> MetricSums:
    """Measure the task's metrics on this worker's part of the held-out samples.

    Raises:
        TaskRaised: the task's metrics or the model raised.
    """
    model, totals, samples = state.model, dict[str, float](), 0
    geometric = geometric_metrics(state.task)
    model.eval()
    with state.task_code():
        pieces = micro_batches(range(len(state.held_out)), state.spec.training.micro_batch)
        counts = state.division.counts(len(pieces))
        mine = rank_shard(pieces, rank=state.context.rank, counts=counts)
        for piece in mine:
            state.context.control.activity_count += 1
            for name, value in _measure_batch(state, model, piece).items():
                term = _safe_log(float(value)) if name in geometric else float(value)
                totals[name] = totals.get(name, 0.0) + term * len(piece)
            samples += len(piece)
        if state.division.is_sharded:
            for _ in range(max(counts) - len(mine)):  # the workers gather the model together
                _measure_batch(state, model, pieces[0])
            _release_gathered(model)
    return MetricSums(totals=totals, samples=samples, geometric=geometric)


def _release_gathered(model: nn.Module) -> None:
    """Keep only this worker's part of what an evaluation has gathered."""
    from torch.distributed.fsdp import FSDPModule

    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def _measure_batch(state: TrainState, model: nn.Module, piece: range) -> Mapping[str, Tensor]:
    seed, device = (
        derive_seed("held out", state.spec.training.seed, piece.start),
        state.context.device,
    )
    with seeded_generators(seed, device):
        inputs, targets = state.held_out.batch(torch.arange(piece.start, piece.stop))
        return state.task.metrics(state.outputs(model, inputs), to_device(targets, device))


def _safe_log(value: float) -> float:
    if value > 0:
        return math.log(value)
    return -math.inf if value == 0 else math.nan


def _safe_exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
