"""One worker's side of an exchange: from gradients to flows and back, whoever drives them.

For each bucket `prepare` gives the flows and `finish` takes their results; at the step's end `commit` or `rollback`.
The hook drives the flows over a process group; tests and simulations drive several engines in lockstep.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from accordion.compressors import COMPRESSORS
from accordion.drive import Result
from accordion.errors import StateError
from accordion.feedback import Feedback, Kept, rescaled, working_dtype
from accordion.ledger import Ledger
from accordion.messages import LayerInfo, Level
from accordion.statistics import GradientSums, seeded
from accordion.wire import Context, Flow

DENSE = Level(name="none", method="none")
"""The level of all layers that no decision speaks of."""


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
    compensated: Tensor
    """Gradients with their residuals, stacked: (B, N, M) for matrices, else (B, L)."""
    warm: Tensor | None
    flow: Flow

    @property
    def names(self) -> tuple[str, ...]:
        """The layers' names."""
        return tuple(layer.name for layer in self.layers)


class Engine:
    """Residuals, warm starts, the open window and the ledger of one worker, and the plan in force."""

    def __init__(self, layers: Sequence[LayerInfo], *, seed: int, world_size: int) -> None:
        self.plan: Mapping[str, Level] = {}
        """Level by layer; layers that are not named travel dense."""
        self.feedback = Feedback()
        self.ledger = Ledger(world_size)
        self.sums = GradientSums({layer.name: torch.Size(layer.shape) for layer in layers})
        self._warm = Kept()
        self._decided = frozenset(layer.name for layer in layers)
        self._seed = seed

    def observe(self, layers: Sequence[Layer]) -> None:
        """See the raw gradients of a bucket: the window's sums and the dense equivalents."""
        for layer in layers:
            self.ledger.expect(layer.name, layer.gradient.numel())
            if layer.name in self._decided:
                self.sums.add(layer.name, layer.gradient)

    def is_dense(self, layers: Sequence[Layer]) -> bool:
        """Whether no layer of the bucket is compressed, so that the bucket can be reduced as it is."""
        return all(self._level(layer.name).method == "none" for layer in layers)

    def settle_(self, layers: Sequence[Layer]) -> None:
        """Add the residuals to gradients that are about to be sent whole."""
        for layer in layers:
            self.feedback.compensate_(layer.name, layer.gradient)
            self.feedback.settle(layer.name)

    def prepare(self, layers: Sequence[Layer]) -> list[Stack]:
        """The flows of a bucket; layers of equal level, shape and dtype share one."""
        groups: dict[Any, list[Layer]] = {}
        for layer in layers:
            level = self._level(layer.name)
            key = (level.method, tuple(level.options.items()), layer.gradient.shape, layer.gradient.dtype)
            groups.setdefault(key, []).append(layer)
        return [self._stack(tuple(group)) for group in groups.values()]

    def finish(self, stacks: Sequence[Stack], results: Sequence[Result]) -> None:
        """Put the averaged gradients into the bucket and set aside what each layer owes from now on."""
        for stack, (update, sent) in zip(stacks, results, strict=True):
            for layer, part in zip(stack.layers, update.unbind(0), strict=True):
                layer.gradient.copy_(part.view_as(layer.gradient))
            if COMPRESSORS[stack.level.method].feedback:
                self.feedback.remember_(stack.names, stack.compensated, sent)
            if stack.warm is not None:
                for name, warm in zip(stack.names, stack.warm.unbind(0), strict=True):
                    self._warm.put(name, warm)

    def commit(self) -> None:
        """The step is taken: what was set aside is in force."""
        for kept in (self.feedback, self._warm, self.sums):
            kept.commit()

    def rollback(self) -> None:
        """The step is not taken: nothing has happened, but for the bytes."""
        for kept in (self.feedback, self._warm, self.sums):
            kept.rollback()

    def state_dict(self) -> dict[str, Any]:
        """All but the plan, which is the decision's. Tensors by layer name; loadable with `weights_only=True`."""
        return {
            "residuals": dict(self.feedback.values),
            "warm": dict(self._warm.values),
            "window": self.sums.state_dict(),
            "ledger": self.ledger.state_dict(),
        }

    def load_state_dict(self, states: Sequence[Mapping[str, Any]], rank: int) -> None:
        """Continue from the states of all workers of a group.

        `rank` is the place whose state is ours, or -1 where this group has another size than the saved one.

        Raises:
            StateError: the state is of another model.
        """
        own = states[rank]["residuals"] if rank >= 0 else rescaled([state["residuals"] for state in states])
        unexpected = sorted(set(own) - self._decided)
        if unexpected:
            raise StateError(f"saved residuals do not match the model: unexpected {unexpected}; was the model changed?")
        self.feedback.values = dict(own)
        self._warm.values = dict(states[max(rank, 0)]["warm"])
        self.sums.load_state_dict([state["window"] for state in states], rank)
        self.ledger.load_state_dict(states[max(rank, 0)]["ledger"])

    def _level(self, layer: str) -> Level:
        return self.plan.get(layer, DENSE)

    def _stack(self, layers: tuple[Layer, ...]) -> Stack:
        level = self._level(layers[0].name)
        row = COMPRESSORS[level.method]
        gradient = layers[0].gradient
        shape = (gradient.shape[0], -1) if row.matrices else (-1,)
        parts = [layer.gradient.reshape(shape).to(working_dtype(gradient)) for layer in layers]
        # stack copies: the flow and the residual must not alias the bucket
        compensated = torch.stack(parts)
        for layer, part in zip(layers, compensated.unbind(0), strict=True):
            self.feedback.compensate_(layer.name, part)
            if not row.feedback:
                self.feedback.settle(layer.name)
        warm = self._warm_start(layers, level, compensated) if row.warm_start else None
        flow = load(row.flow)(compensated, Context(options=level.options, warm=warm))
        return Stack(layers=layers, level=level, compensated=compensated, warm=warm, flow=flow)

    def _warm_start(self, layers: tuple[Layer, ...], level: Level, stack: Tensor) -> Tensor:
        make = load(str(COMPRESSORS[level.method].warm_start))
        shape = tuple(stack.shape[1:])
        values = [
            make(self._warm.get(layer.name), shape, level.options, draw=seeded(self._seed, f"warm:{layer.name}"))
            for layer in layers
        ]
        return torch.stack([value.to(stack) for value in values])


@cache
def load(path: str) -> Callable[..., Any]:
    """The function that a table names as `module:function`."""
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function
