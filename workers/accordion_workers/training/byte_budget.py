"""Makes a number of local steps out of a budget of bytes."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from accordion.base.errors import ConfigError
from accordion.base.local_steps import LocalSteps
from accordion.base.messages import LayerInfo, Level
from accordion.compress.ledger import Ledger
from accordion.hook.layers import decided_layers, named_layers
from accordion.hook.level_costs import count_exchange, count_window
from accordion_workers.records.contract import JobSpec
from accordion_workers.spec.local_steps_spec import LocalStepsSpec
from accordion_workers.training.layer_parts import cut_layer
from accordion_workers.training.planned_run import Stretch, list_assumptions, list_stretches


class CountedModel:
    """A model whose exchanges are counted before there are any.

    Args:
        model: the model, not wrapped.
        world_size: number of workers, or of replicas if workers hold the model together.
        shards: workers of a replica, whose bytes are counted together.
    """

    def __init__(self, model: nn.Module, *, world_size: int, shards: int = 1) -> None:
        self.layers: Sequence[LayerInfo] = decided_layers(model)
        """Layers whose level is decided."""
        trained = {name: one for name, one in named_layers(model).items() if one.requires_grad}
        # Shapes alone: the model may be sharded already, and its values are on many workers.
        self._parts: Mapping[str, Mapping[str, Tensor]] = {
            name: cut_layer(
                name, torch.empty(one.shape, dtype=one.dtype, device="meta"), shards=shards
            )
            for name, one in trained.items()
        }
        self._device = next((one.device for one in trained.values()), torch.device("cpu"))
        self.window_bytes = count_window(self.layers, world_size=world_size)
        """Bytes with which workers average the sums of a window."""
        self._world_size = world_size
        self._counts: dict[tuple[tuple[str, str], ...], Ledger] = {}

    def count_exchange(self, level_by_layer: Mapping[str, Level]) -> Ledger:
        """Return the bytes of an exchange at these levels, which are those of one job: equal names
        stand for equal levels.
        """
        key = tuple((layer, level.name) for layer, level in level_by_layer.items())
        if key not in self._counts:
            plan = {
                part: level
                for layer, level in level_by_layer.items()
                for part in self._parts[layer]
            }
            parameters = {
                name: one for parts in self._parts.values() for name, one in parts.items()
            }
            self._counts[key] = count_exchange(
                parameters, plan, world_size=self._world_size, device=self._device
            )
        return self._counts[key]


def resolve_budget(spec: JobSpec, model: nn.Module, *, samples: int) -> JobSpec:
    """Return the spec with the shortest rounds that keep to its budget, or itself without one.

    All workers come to the same number, also after the group has changed: it depends on the spec,
    the shapes of the model and the number of samples.

    Raises:
        ConfigError: no rounds keep to it.
    """
    local = spec.local_steps
    if local is None or local.budget is None:
        return spec
    counted = CountedModel(model, world_size=spec.max_replicas, shards=spec.num_shards)
    runs = [
        list(list_stretches(spec, assumed, layers=counted.layers, samples=samples))
        for assumed in list_assumptions(spec)
    ]
    longest = max(stretch.num_steps for run in runs for stretch in run)
    most = min(local.high or longest, longest)

    def saving(low: int) -> float:
        rounds = local.resolve(low).config()
        return min(_compute_saving(run, rounds, counted) for run in runs)

    low = 1 + bisect_left(range(1, most + 1), local.budget, key=saving)
    if low > most:
        raise ConfigError(_explain_refusal(local, saving(most)))
    return spec.model_copy(update={"local_steps": local.resolve(low)})


def describe_rounds(spec: JobSpec) -> str:
    """Return a line for the job's log about the local steps that a budget has become."""
    local = spec.config().local_steps
    low, high = (local.low, local.high) if local is not None else (1, 1)
    return (
        f"local_steps.budget becomes low {low} and high {high}, planned with workers.max"
        f" {spec.workers.max}"
    )


def _compute_saving(run: Sequence[Stretch], local: LocalSteps, model: CountedModel) -> float:
    """Return how many times fewer bytes a job sends than without compression in every step."""
    sent = sum(sum(stretch.count_bytes(local, model)) for stretch in run)
    steps = sum(stretch.num_steps for stretch in run)
    dense = steps * model.count_exchange(run[-1].level_by_layer).total.dense_wire
    return dense / sent if sent else math.inf


def _explain_refusal(local: LocalStepsSpec, best: float) -> str:
    start, reachable = local.start_steps, f"{math.floor(10 * best) / 10:g}"
    least = f"give {reachable} or less" if best >= 1 else "give local_steps.low in its place"
    limit = f" and have at most {local.high} steps (high)" if local.high else ""
    return (
        f"local_steps.budget is {local.budget:g}, and this job can send {reachable} times fewer"
        f" bytes at most: {f'its first {start} steps have an exchange each, ' if start else ''}its"
        f" rounds end with the epoch{limit}; {least}, or"
        f" {'fewer start_steps, ' if start else ''}fewer bits or longer windows (policy.window)"
    )
