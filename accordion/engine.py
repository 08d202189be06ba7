"""One worker's side of an exchange: from gradients to flows and back, whoever drives them.

For each bucket `prepare` gives the flows and `finish` takes their results; at the step's end
`commit` or `rollback`. The hook drives the flows over a process group; tests and simulations drive
several engines in lockstep.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import torch
from torch import Tensor

from accordion.compressors import COMPRESSORS
from accordion.errors import StateError
from accordion.feedback import Feedback, Kept, Pair, by_memory, working_dtype
from accordion.ledger import Ledger
from accordion.messages import LayerInfo, Level
from accordion.statistics import GradientSums, seeded
from accordion.wire import Context, Flow, LayerKind, Scratch

DENSE = Level(name="none", method="none")
"""The level of all layers that no decision speaks of."""
STACKED_BELOW = 1 << 17
"""Values from which a layer has a flow of its own, so that its update is written straight into the
bucket.

Below, layers of equal shape share a flow: there the number of operations counts, and copies are
cheap.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of a bucket in one step."""

    name: str
    gradient: Tensor
    """A view into the bucket, of the parameter's shape; it is changed in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Layers of equal shape and level, on their way through one flow."""

    layers: tuple[Layer, ...]
    level: Level
    owed: Tensor
    """Gradients with their residuals, stacked: (B, N, M) for matrices, else (B, L). The flow leaves
    the residuals.
    """
    update: Tensor
    """Shaped alike; may be the bucket's own memory."""
    warm: Tensor | None
    flow: Flow

    @property
    def names(self) -> tuple[str, ...]:
        """The layers' names."""
        return tuple(layer.name for layer in self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What an engine held before a state was loaded."""

    residuals: dict[str, Tensor]
    warm: dict[str, Tensor]
    window: Mapping[str, Any]
    ledger: Mapping[str, Any]
    steps: int


class _Memory:
    """The buffers that one stack uses step after step, made when they are asked for."""

    def __init__(self, shape: tuple[int, ...], gradient: Tensor) -> None:
        self.scratch = Scratch(gradient.device)
        self.warm: Pair | None = None
        self._new = partial(
            torch.empty, shape, dtype=working_dtype(gradient), device=gradient.device
        )

    @cached_property
    def owed(self) -> Pair:
        """For what is owed before and after the step."""
        return Pair(self._new())

    @cached_property
    def update(self) -> Tensor:
        """For an update that cannot be written straight into the bucket."""
        return self._new()


class Engine:
    """Residuals, warm starts, the open window and the ledger of one worker, and the plan in
    force.
    """

    def __init__(
        self, layers: Sequence[LayerInfo], *, seed: int, world_size: int, rank: int = 0
    ) -> None:
        self.feedback = Feedback()
        self.ledger = Ledger(world_size)
        self.sums = GradientSums({layer.name: torch.Size(layer.shape) for layer in layers}, seed)
        self.loss_scale = 1.0
        """By which the gradients are multiplied; residuals and statistic are kept without it."""
        self._plan: Mapping[str, Level] = {}
        self._warm = Kept()
        self._decided = {layer.name: math.prod(layer.shape) for layer in layers}
        self._seed, self._rank = seed, rank
        self._steps = 0
        self._memories: dict[Any, _Memory] = {}
        self._used: set[Any] = set()
        self._others: Tensor | None = None

    @property
    def plan(self) -> Mapping[str, Level]:
        """Level by layer; layers that are not named travel dense."""
        return self._plan

    @plan.setter
    def plan(self, plan: Mapping[str, Level]) -> None:
        if plan != self._plan:
            self._memories.clear()
        self._plan = plan

    def observe(self, layers: Sequence[Layer]) -> None:
        """See the raw gradients of a bucket: the window's sums and the dense equivalents."""
        for layer in layers:
            if layer.name in self._decided:
                self.sums.add(layer.name, by_memory(layer.gradient), scale=1.0 / self.loss_scale)
        self.observe_rest(layers)

    def observe_accumulated(self, layer: Layer) -> None:
        """See what a layer's gradient has grown to, in place of what was seen of it in this
        step.
        """
        if layer.name in self._decided:
            self.sums.forget(layer.name)
            self.sums.add(layer.name, by_memory(layer.gradient), scale=1.0 / self.loss_scale)

    def observe_rest(self, layers: Sequence[Layer]) -> None:
        """See what the window's sums do not hold: dense equivalents, and layers that are not
        decided.
        """
        for layer in layers:
            self.ledger.expect(layer.name, layer.gradient.numel())
            if layer.name not in self._decided:
                total = layer.gradient.sum(dtype=working_dtype(layer.gradient))
                self._others = total if self._others is None else self._others + total

    def not_finite(self) -> Tensor:
        """Whether a gradient that was observed in this step is not finite, as one bool; no wait for
        the device.
        """
        total = self.sums.step_total()
        return torch.isfinite(total if self._others is None else total + self._others).logical_not()

    def is_dense(self, layers: Sequence[Layer]) -> bool:
        """Whether no layer of the bucket is compressed, so that the bucket can be reduced
        as it is.
        """
        return all(self._level(layer.name).method == "none" for layer in layers)

    def settle_(self, layers: Sequence[Layer]) -> None:
        """Add the residuals to gradients that are about to be sent whole."""
        for layer in layers:
            self.feedback.compensate_(layer.name, layer.gradient, scale=self.loss_scale)
            self.feedback.settle(layer.name)

    def prepare(self, layers: Sequence[Layer]) -> list[Stack]:
        """The flows of a bucket; small layers of equal level, shape and dtype share one.

        In the order of their names: DDP changes the order in a bucket after its first step, and
        what is drawn and how sums are rounded should not follow it.
        """
        groups: dict[Any, list[Layer]] = {}
        for layer in sorted(layers, key=lambda layer: layer.name):
            level = self._level(layer.name)
            key = (
                level.method,
                tuple(level.options.items()),
                layer.gradient.shape,
                layer.gradient.dtype,
            )
            alone = COMPRESSORS[level.method].alone or layer.gradient.numel() >= STACKED_BELOW
            groups.setdefault((key, layer.name if alone else None), []).append(layer)
        return [self._stack(tuple(group)) for group in groups.values()]

    def finish(self, stacks: Sequence[Stack]) -> None:
        """Put the averaged gradients into the bucket and set aside what each layer owes from now
        on.
        """
        for stack in stacks:
            for place, layer in enumerate(stack.layers):
                update = stack.update[place]
                if update.data_ptr() != layer.gradient.data_ptr():
                    layer.gradient.copy_(update.view_as(layer.gradient))
                row = COMPRESSORS[stack.level.method]
                if row.feedback and self.loss_scale != 1.0:
                    layer.gradient.mul_(self.loss_scale)
                if row.feedback:
                    self.feedback.put(layer.name, stack.owed[place])
                if stack.warm is not None:
                    self._warm.put(layer.name, stack.warm[place])

    def keep(self, layers: Sequence[str]) -> None:
        """Let these layers owe what they did before the step: nobody took their update."""
        for layer in layers:
            self.feedback.keep(layer)
            self._warm.keep(layer)

    def commit(self) -> None:
        """The step is taken: what was set aside is in force."""
        for kept in (self.feedback, self._warm, self.sums):
            kept.commit()
        self._end_step()
        self._steps += 1

    def rollback(self) -> None:
        """The step is not taken: nothing has happened, but for the bytes."""
        for kept in (self.feedback, self._warm, self.sums):
            kept.rollback()
        self._end_step()

    def state_dict(self) -> dict[str, Any]:
        """All but the plan, which is the decision's. Tensors by layer name; loadable with
        `weights_only=True`.
        """
        return {
            "residuals": self.feedback.copies(),
            "warm": self._warm.copies(),
            "window": self.sums.state_dict(),
            "ledger": self.ledger.state_dict(),
            "steps": self._steps,
        }

    def snapshot(self) -> Snapshot:
        """Return what `load_state_dict` replaces; nothing is copied but the window's sums."""
        return Snapshot(
            residuals=self.feedback.values,
            warm=self._warm.values,
            window=self.sums.state_dict(),
            ledger=self.ledger.state_dict(),
            steps=self._steps,
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot; no step may have been taken since."""
        self.feedback.values, self._warm.values = snapshot.residuals, snapshot.warm
        self.sums.load_state_dict(snapshot.window)
        self.ledger.restore(Ledger.read(snapshot.ledger))
        self._steps = snapshot.steps

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            StateError: the state is of another model, or none of ours; nothing is changed then.
        """
        try:
            self._load(state)
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise StateError(
                f"saved state cannot be read ({error!r}); give what state_dict() gave"
            ) from error

    def _load(self, state: Mapping[str, Any]) -> None:
        self._check_residuals(state["residuals"])
        for layer, value in state["warm"].items():
            if layer not in self._decided or value.dim() != 2:
                raise StateError(
                    f"saved warm start of layer {layer!r} is none of ours; was the model changed?"
                )
        steps, ledger = int(state["steps"]), Ledger.read(state["ledger"])
        self.sums.load_state_dict(state["window"])
        self.ledger.restore(ledger)
        self.feedback.values = {layer: value.clone() for layer, value in state["residuals"].items()}
        self._warm.values = {layer: value.clone() for layer, value in state["warm"].items()}
        self._steps = steps

    def _check_residuals(self, residuals: Mapping[str, Tensor]) -> None:
        unexpected = sorted(set(residuals) - set(self._decided))
        if unexpected:
            raise StateError(
                f"saved residuals do not match the model: unexpected {unexpected}; was the model"
                " changed?"
            )
        for layer, residual in residuals.items():
            if residual.numel() != self._decided[layer]:
                raise StateError(
                    f"saved residual of layer {layer!r} has {residual.numel()} values, the layer"
                    f" has {self._decided[layer]}; was the model changed?"
                )

    def _end_step(self) -> None:
        """Forget what the next step does not need, such as the memory of stacks that DDP has cut
        otherwise since.
        """
        self._others = None
        self._memories = {
            key: memory for key, memory in self._memories.items() if key in self._used
        }
        self._used.clear()

    def _level(self, layer: str) -> Level:
        return self._plan.get(layer, DENSE)

    def _stack(self, layers: tuple[Layer, ...]) -> Stack:
        level, first = self._level(layers[0].name), layers[0].gradient
        row = COMPRESSORS[level.method]
        shape = (first.shape[0], math.prod(first.shape[1:])) if row.matrices else (first.numel(),)
        memory = self._memory(layers, shape)
        in_place = (
            len(layers) == 1 and first.dtype == working_dtype(first) and first.is_contiguous()
        )
        update = first.view(1, *shape) if in_place else memory.update
        owed = memory.owed.free(self.feedback.get(layers[0].name)) if row.feedback else update
        for part, layer in zip(owed, layers, strict=True):
            if row.feedback:
                self._compensate(part, layer)
            else:
                self._settle(part, layer)
        gradient = self._unscaled(update, layers) if row.raw_gradient else None
        warm = self._warm_start(layers, owed, memory) if row.warm_start else None
        context = Context(
            options=level.options,
            update=update,
            scratch=memory.scratch,
            warm=warm,
            step=self._steps,
            draw=partial(self._draw, layers[0].name),
            kind=_kind(first),
            gradient=gradient,
        )
        return Stack(
            layers=layers,
            level=level,
            owed=owed,
            update=update,
            warm=warm,
            flow=load(row.flow)(owed, context),
        )

    def _memory(self, layers: tuple[Layer, ...], shape: tuple[int, ...]) -> _Memory:
        key = (*(layer.name for layer in layers), shape, layers[0].gradient.dtype)
        self._used.add(key)
        if key not in self._memories:
            self._memories[key] = _Memory((len(layers), *shape), layers[0].gradient)
        return self._memories[key]

    def _compensate(self, owed: Tensor, layer: Layer) -> None:
        """Write the gradient, in units before loss scaling, plus the layer's residual into a part
        of a stack.
        """
        gradient, residual = layer.gradient, self.feedback.get(layer.name)
        owed = owed.view(gradient.shape)
        if residual is not None:
            torch.add(
                residual.view_as(owed).to(owed), gradient, alpha=1.0 / self.loss_scale, out=owed
            )
            return
        if gradient.data_ptr() != owed.data_ptr():
            owed.copy_(gradient)
        if self.loss_scale != 1.0:
            # After the copy: a product in 16 bits would lose small gradients.
            owed.mul_(1.0 / self.loss_scale)

    def _settle(self, owed: Tensor, layer: Layer) -> None:
        """Write the gradient as it is, loss scaling included, plus the layer's residual; the layer
        owes nothing then.

        A method without feedback rounds these: in other units, small gradients would be lost for
        ever.
        """
        owed = owed.view(layer.gradient.shape)
        if layer.gradient.data_ptr() != owed.data_ptr():
            owed.copy_(layer.gradient)
        self.feedback.compensate_(layer.name, owed, scale=self.loss_scale)
        self.feedback.settle(layer.name)

    def _unscaled(self, update: Tensor, layers: tuple[Layer, ...]) -> Tensor:
        """The gradients before loss scaling, in the memory of the stack's update; no copy where
        they lie there.
        """
        for part, layer in zip(update, layers, strict=True):
            if layer.gradient.data_ptr() != part.data_ptr():
                part.view(layer.gradient.shape).copy_(layer.gradient)
            if self.loss_scale != 1.0:
                part.mul_(1.0 / self.loss_scale)
        return update

    def _draw(self, layer: str, whose: str) -> torch.Generator:
        owner = "" if whose == "shared" else f":{self._rank}"
        return seeded(self._seed, f"flow:{layer}:{self._steps}{owner}")

    def _warm_start(self, layers: tuple[Layer, ...], owed: Tensor, memory: _Memory) -> Tensor:
        level = self._level(layers[0].name)
        make = load(str(COMPRESSORS[level.method].warm_start))
        old = [self._warm.get(layer.name) for layer in layers]
        values = [
            make(
                value,
                tuple(owed.shape[1:]),
                level.options,
                draw=seeded(self._seed, f"warm:{layer.name}"),
            )
            for value, layer in zip(old, layers, strict=True)
        ]
        if memory.warm is None:
            memory.warm = Pair(
                torch.empty(len(layers), *values[0].shape, dtype=owed.dtype, device=owed.device)
            )
        warm = memory.warm.free(old[0])
        for part, value in zip(warm, values, strict=True):
            part.copy_(value)
        return warm


def _kind(gradient: Tensor) -> LayerKind:
    if gradient.dim() == 2:
        return "matrix"
    return "vector" if gradient.dim() < 2 else "conv"


@cache
def load(path: str) -> Callable[..., Any]:
    """The function that a table names as `module:function`."""
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function
