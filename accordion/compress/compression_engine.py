"""Compression state of one worker: which flow each layer runs, residuals, warm starts, byte counts.

`Engine.exchange` averages buckets over a network. It consists of `observe_gradients`,
`build_stacks`, `hold_updates` and `write_updates`, which tests call one by one to run several
engines in lockstep in one process. `commit_step` or `rollback_step` ends a step. `feedback.py` has
the law of residuals, and why averages are written only at the end of a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from accordion.base.errors import StateError
from accordion.base.messages import LayerInfo, Level
from accordion.base.wire import Context, Flow, Request, Scratch
from accordion.compress.exchange import BucketNetwork, run_flows
from accordion.compress.feedback import Feedback
from accordion.compress.layer_stacks import Bucket, Layer, Stack, StackBuffers
from accordion.compress.layer_tensors import (
    DoubleBuffer,
    StagedTensors,
    memory_order_view,
    working_dtype,
)
from accordion.compress.ledger import OVERHEAD, Ledger
from accordion.compress.statistics import GradientSums, seeded_generator
from accordion.compress.step_signals import Signal, mark_nonfinite_, signal_flow, zero_signals
from accordion.compressors import COMPRESSORS, load_function

DENSE = Level(name="none", method="none")
"""Level of layers that the plan does not name."""
STACKED_BELOW = 1 << 17
"""Layers with at least this many values get a flow of their own, which writes into the bucket.

Smaller layers of equal shape share a flow, because their cost is dominated by the number of calls.
"""
MEASURE_EVERY_STEPS = 7
"""Interval at which the energy that compression sends is measured. It shares no factor with the
periods of methods that alternate; a measured step reads gradients and residuals once more.
"""
REDUCED_ALONE_BYTES = 1 << 20
"""Uncompressed buckets from this size on are reduced in place in every exchange.

Smaller ones share a collective with other buckets or the step's signals, because its round trip
costs more than a copy of their values.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBackup:
    """State of an engine before another state was loaded."""

    residuals: dict[str, Tensor]
    warm: dict[str, Tensor]
    window: Mapping[str, Any]
    ledger: Mapping[str, Any]
    steps: int


class Engine:
    """Compresses one worker's gradients by the plan in force and keeps their state.

    `layers` are those whose level is decided; other layers are never compressed. `seed`, equal on
    all workers, seeds sketches, draws and warm starts.
    """

    def __init__(
        self, layers: Sequence[LayerInfo], *, seed: int, world_size: int, rank: int = 0
    ) -> None:
        self.feedback = Feedback()
        self.ledger = Ledger(world_size)
        self.sums = GradientSums({layer.name: torch.Size(layer.shape) for layer in layers}, seed)
        self.loss_scale = 1.0
        """Factor of the gradients in the buckets; residuals and statistic are kept without it."""
        self.combine_signals: Callable[[Tensor], None] | None = None
        """Replaces a worker's signals, (7,), by their mean over the workers that hold a model
        together, before the mean over the replicas; None if each worker holds a whole model.
        """
        self.measures_sent_share = False
        """Whether the window's sums also hold the energy that compression sends."""
        self._plan: Mapping[str, Level] = {}
        self._warm = StagedTensors()
        self._decided = {layer.name: math.prod(layer.shape) for layer in layers}
        self._seed, self._world_size, self._rank = seed, world_size, rank
        self._steps = 0
        self._buffers: dict[Any, StackBuffers] = {}
        self._used: set[Any] = set()
        self._shared: Scratch | None = None
        self._held: dict[tuple[str, ...], Stack] = {}
        """Stacks of this step whose updates are not written yet."""
        self._other_sum: Tensor | None = None
        """Sum over the step's gradients of layers that are not decided."""
        self._checked: list[tuple[tuple[str, ...], Tensor]] = []
        """Layers and scalars of the step; one that is not finite means that it cannot be sent."""

    @property
    def plan(self) -> Mapping[str, Level]:
        """Level by layer; layers that it does not name are sent dense."""
        return self._plan

    @plan.setter
    def plan(self, plan: Mapping[str, Level]) -> None:
        if plan != self._plan:
            self._buffers.clear()
            self._shared = None
        self._plan = plan

    def exchange(
        self,
        buckets: Sequence[Bucket],
        network: BucketNetwork,
        *,
        raised: Callable[[], frozenset[Signal]] | None = None,
    ) -> Tensor | None:
        """Average the gradients of buckets over the workers. The averages are written into all
        buckets of the step at its last call.

        Every worker calls this for the same buckets in the same order. Buckets of one call share
        collectives but no stacks, so with direct messages the averages of fp32 and fp64 gradients
        do not depend on which buckets share a call.

        Args:
            buckets: the buckets.
            network: exchanges tensors with the other workers.
            raised: given with the last bucket of a step; returns the signals that this worker
                raises.

        Returns:
            With `raised`, the signals averaged over the workers, (7,); otherwise None.
        """
        stacks: list[Stack] = []
        for bucket in buckets:
            self.observe_gradients(bucket.layers)
            is_large = bucket.buffer.nbytes >= REDUCED_ALONE_BYTES
            shares_nothing = len(buckets) == 1 and raised is None
            if (is_large or shares_nothing) and self._is_dense(bucket.layers):
                self._reduce_in_place(bucket, network)
            else:
                stacks += self.build_stacks(bucket.layers)
        if not stacks and raised is None:
            return None
        device, flows = buckets[-1].buffer.device, [stack.flow for stack in stacks]
        owners = [(stack.names, stack.level.method) for stack in stacks]
        if raised is not None:
            flows.append(signal_flow(lambda: self.own_signals(raised(), device)))
            owners.append(((OVERHEAD,), OVERHEAD))

        def count(index: int, request: Request) -> None:
            names, method = owners[index]
            self.ledger.count(names, request, method)

        with _without_autocast(device.type):
            results = run_flows(flows, network, count)
            self.hold_updates(stacks)
            if raised is None:
                return None
            signals: Tensor = results[-1]
            self.write_updates(is_skipped=signals[Signal.NOT_FINITE] != 0)
        mark_nonfinite_(buckets[-1].buffer, signals)
        return signals

    def own_signals(self, raised: frozenset[Signal], device: torch.device) -> Tensor:
        """Return this worker's signals, those raised and whether a gradient is not finite, (7,); of
        workers that hold a model together, their mean.
        """
        signals = zero_signals(device, loss_scale=self.loss_scale)
        signals[Signal.NOT_FINITE] = self._has_nonfinite_gradient()
        for signal in raised:
            signals[signal] = 1.0
        if self.combine_signals is not None:
            self.combine_signals(signals)
        return signals

    def observe_gradients(self, layers: Sequence[Layer]) -> None:
        """Add a bucket's raw gradients to the window's sums and count their dense bytes."""
        for layer in layers:
            if layer.name in self._decided:
                self._add_to_window(layer)
        self.observe_other_layers(layers)

    def observe_accumulated_gradient(self, layer: Layer) -> None:
        """Replace what the window holds of a layer in this step by its accumulated gradient."""
        if layer.name in self._decided:
            self.sums.forget(layer.name)
            self._add_to_window(layer)

    def observe_other_layers(self, layers: Sequence[Layer]) -> None:
        """Count dense bytes, and check layers for finite values that the window does not hold."""
        for layer in layers:
            self.ledger.count_dense_equivalent(layer.name, layer.gradient.numel())
            if layer.name not in self._decided:
                total = layer.gradient.sum(dtype=working_dtype(layer.gradient))
                self._other_sum = total if self._other_sum is None else self._other_sum + total

    def build_stacks(self, layers: Sequence[Layer]) -> list[Stack]:
        """Return the stacks of a bucket; small layers of equal level, shape and dtype share one.

        They are sorted by name: DDP changes the order in a bucket after its first step, which must
        change neither random draws nor the rounding of sums.
        """
        groups: dict[Any, list[Layer]] = {}
        for layer in sorted(layers, key=lambda layer: layer.name):
            level = self._level_of(layer.name)
            key = (
                level.method,
                tuple(level.options.items()),
                layer.gradient.shape,
                layer.gradient.dtype,
            )
            alone = COMPRESSORS[level.method].alone or layer.gradient.numel() >= STACKED_BELOW
            groups.setdefault((key, layer.name if alone else None), []).append(layer)
        return [self._build_stack(tuple(group)) for group in groups.values()]

    def hold_updates(self, stacks: Sequence[Stack]) -> None:
        """Hold what is left to do of stacks whose flows have exchanged all they send."""
        for stack in stacks:
            self._held[stack.names] = stack
            if self._measures_now(stack.level):
                self.sums.add_left(stack.names, stack.owed)
            if stack.warm is not None:
                for name, warm in zip(stack.names, stack.warm, strict=True):
                    self._warm.stage(name, warm)

    def write_updates(self, *, is_skipped: Tensor) -> None:
        """Write the averaged gradients into the buckets of the step; if `is_skipped`, restore the
        residuals before it.
        """
        may_skip = is_skipped.device.type != "cpu" or bool(is_skipped)
        for stack in self._held.values():
            for layer in stack.layers if may_skip else ():
                self.feedback.undo_(layer.name, when=is_skipped)
            next(stack.flow, None)
            for update, layer in zip(stack.update, stack.layers, strict=True):
                if update.data_ptr() != layer.gradient.data_ptr():
                    layer.gradient.copy_(update.view_as(layer.gradient))
                if COMPRESSORS[stack.level.method].feedback and self.loss_scale != 1.0:
                    layer.gradient.mul_(self.loss_scale)
        self._held.clear()

    def restore_unused(self, layers: Sequence[str]) -> None:
        """Restore the state of layers whose update DDP did not apply (see `Feedback.keeps_old`)."""
        for layer in layers:
            self.feedback.restore(layer)
            self._warm.restore(layer)

    def commit_step(self) -> None:
        """Make the staged residuals, warm starts and window sums of a taken step current."""
        for staged in (self.feedback, self._warm, self.sums):
            staged.commit()
        self._end_step()
        self._steps += 1

    def rollback_step(self) -> None:
        """Drop what a skipped step staged; its bytes stay counted."""
        for staged in (self.feedback, self._warm, self.sums):
            staged.rollback()
        self._end_step()

    def state_dict(self) -> dict[str, Any]:
        """Return all state but the plan, with tensors on the CPU, for `weights_only=True`."""
        return {
            "residuals": self.feedback.copy_to_cpu(),
            "warm": self._warm.copy_to_cpu(),
            "window": self.sums.state_dict(),
            "ledger": self.ledger.state_dict(),
            "steps": self._steps,
        }

    def back_up_state(self) -> EngineBackup:
        """Return the state that `load_state_dict` replaces; only the window's sums are copied."""
        return EngineBackup(
            residuals=self.feedback.values,
            warm=self._warm.values,
            window=self.sums.state_dict(),
            ledger=self.ledger.state_dict(),
            steps=self._steps,
        )

    def restore_backup(self, backup: EngineBackup) -> None:
        """Restore a backup; no step may have been taken since then."""
        self.feedback.values, self._warm.values = backup.residuals, backup.warm
        self.sums.load_state_dict(backup.window)
        self.ledger.restore(self.ledger.parse_tables(backup.ledger))
        self._steps = backup.steps

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            StateError: the state belongs to another model or cannot be read; nothing is changed.
        """
        try:
            self._load(state)
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise StateError(
                f"saved state cannot be read ({error!r}); pass what state_dict() returned"
            ) from error

    def _load(self, state: Mapping[str, Any]) -> None:
        self._check_residuals(state["residuals"])
        for layer, value in state["warm"].items():
            if layer not in self._decided or value.dim() != 2:
                raise StateError(
                    f"saved warm start of layer {layer!r} does not fit this model; was the model"
                    " changed?"
                )
        steps, ledger = int(state["steps"]), self.ledger.parse_tables(state["ledger"])
        self.sums.load_state_dict(state["window"])
        self.ledger.restore(ledger)
        self.feedback.values = {layer: value.clone() for layer, value in state["residuals"].items()}
        self._warm.values = {layer: value.clone() for layer, value in state["warm"].items()}
        self._steps = steps

    def _check_residuals(self, residuals: Mapping[str, Tensor]) -> None:
        unexpected = sorted(set(residuals) - set(self._decided))
        if unexpected:
            message = f"saved residuals do not match the model: unexpected {unexpected}"
            raise StateError(f"{message}; was the model changed?")
        for layer, residual in residuals.items():
            if residual.numel() != self._decided[layer]:
                raise StateError(
                    f"saved residual of layer {layer!r} has {residual.numel()} values, the layer"
                    f" has {self._decided[layer]}; was the model changed?"
                )

    def _is_dense(self, layers: Sequence[Layer]) -> bool:
        """Return whether no layer of the bucket is compressed."""
        return all(self._level_of(layer.name).method == "none" for layer in layers)

    def _reduce_in_place(self, bucket: Bucket, network: BucketNetwork) -> None:
        self.feedback.add_to_gradients_(bucket.layers, loss_scale=self.loss_scale)
        for layer in bucket.layers:
            self.ledger.count_dense(layer.name, layer.gradient)
        network.all_reduce_mean_(bucket.buffer)

    def _add_to_window(self, layer: Layer) -> None:
        self.sums.add(layer.name, memory_order_view(layer.gradient), scale=1.0 / self.loss_scale)

    def broken_layers(self) -> tuple[list[str], list[str]]:
        """Return the layers whose gradient in this step is not finite, or too large for fp32 sums,
        and those whose gradient does not fit into its format on the wire; waits for the device.
        """
        unsent = [name for names, value in self._checked if not value.isfinite() for name in names]
        return self.sums.broken_layers(), unsent

    def _has_nonfinite_gradient(self) -> Tensor:
        """Return whether a gradient of this step is not finite, as a bool on the device."""
        total = self.sums.step_total()
        if self._other_sum is not None:
            total = total + self._other_sum
        for _, value in self._checked:
            total = total + value.abs()
        return torch.isfinite(total).logical_not()

    def _end_step(self) -> None:
        self._other_sum = None
        self._checked.clear()
        # DDP may have changed its buckets: drop the buffers of stacks that this step did not use.
        self._buffers = {key: held for key, held in self._buffers.items() if key in self._used}
        self._used.clear()

    def _measures_now(self, level: Level) -> bool:
        is_due = self.measures_sent_share and self._steps % MEASURE_EVERY_STEPS == 0
        return is_due and COMPRESSORS[level.method].feedback

    def _level_of(self, layer: str) -> Level:
        return self._plan.get(layer, DENSE)

    def _build_stack(self, layers: tuple[Layer, ...]) -> Stack:
        level, first = self._level_of(layers[0].name), layers[0].gradient
        row, dtype = COMPRESSORS[level.method], working_dtype(first)
        shape = (first.shape[0], math.prod(first.shape[1:])) if row.matrices else (first.numel(),)
        buffers = self._buffers_for(layers, shape)
        if len(layers) == 1 and first.dtype == dtype and first.is_contiguous():
            update = first.view(1, *shape)
        else:
            room = self._shared_scratch(first.device) if row.feedback else buffers.scratch
            update = room.take("update", (len(layers), *shape), dtype)
        owed = buffers.owed if row.feedback else update
        warm = self._warm_start(layers, owed, buffers) if row.warm_start else None
        flow = self._run_flow(layers, buffers, owed=owed, update=update, warm=warm)
        return Stack(layers=layers, level=level, owed=owed, update=update, warm=warm, flow=flow)

    def _run_flow(
        self,
        layers: tuple[Layer, ...],
        buffers: StackBuffers,
        *,
        owed: Tensor,
        update: Tensor,
        warm: Tensor | None,
    ) -> Flow:
        """Write what the layers owe, then run the flow of their method."""
        level, names = self._level_of(layers[0].name), tuple(layer.name for layer in layers)
        row, shared = COMPRESSORS[level.method], self._shared_scratch(owed.device)
        gradient = None
        if row.raw_gradient:
            gradient = shared.take("gradient", owed.shape, owed.dtype)
            for part, layer in zip(gradient, layers, strict=True):
                layer.copy_gradient(part, scale=1.0 / self.loss_scale)
        if row.feedback:
            self.feedback.write_owed_(
                owed, layers, buffers, loss_scale=self.loss_scale, room=shared
            )
        else:
            self.feedback.write_whole_(owed, layers, loss_scale=self.loss_scale)
        if self._measures_now(level):
            self.sums.add_owed(names, owed)
        context = Context(
            options=level.options,
            update=update,
            scratch=buffers.scratch,
            shared=shared,
            warm=warm,
            step=self._steps,
            world_size=self._world_size,
            rank=self._rank,
            draw=partial(self._make_generator, names[0]),
            check_finite=partial(self._check_finite, names),
            kind=layers[0].kind,
            gradient=gradient,
        )
        return (yield from load_function(row.flow)(owed, context))

    def _buffers_for(self, layers: tuple[Layer, ...], shape: tuple[int, ...]) -> StackBuffers:
        key = (*(layer.name for layer in layers), shape, layers[0].gradient.dtype)
        self._used.add(key)
        if key not in self._buffers:
            self._buffers[key] = StackBuffers((len(layers), *shape), layers[0].gradient)
        return self._buffers[key]

    def _shared_scratch(self, device: torch.device) -> Scratch:
        self._shared = self._shared or Scratch(device)
        return self._shared

    def _check_finite(self, layers: tuple[str, ...], value: Tensor) -> None:
        self._checked.append((layers, value))

    def _make_generator(self, layer: str, whose: str) -> torch.Generator:
        owner = "" if whose == "shared" else f":{self._rank}"
        return seeded_generator(self._seed, f"flow:{layer}:{self._steps}{owner}")

    def _warm_start(self, layers: tuple[Layer, ...], owed: Tensor, buffers: StackBuffers) -> Tensor:
        level = self._level_of(layers[0].name)
        make = load_function(str(COMPRESSORS[level.method].warm_start))
        old = [self._warm.get(layer.name) for layer in layers]
        values = [
            make(
                value,
                tuple(owed.shape[1:]),
                level.options,
                draw=seeded_generator(self._seed, f"warm:{layer.name}"),
            )
            for value, layer in zip(old, layers, strict=True)
        ]
        if buffers.warm is None:
            buffers.warm = DoubleBuffer(
                torch.empty(len(layers), *values[0].shape, dtype=owed.dtype, device=owed.device)
            )
        warm = buffers.warm.spare(old[0])
        for part, value in zip(warm, values, strict=True):
            part.copy_(value)
        return warm


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    """Leave the script's autocast, which would round factors to 16 bits inside a backward pass."""
    is_cast = torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if is_cast else nullcontext()
