"""Rounds of local steps: optimizer steps that each worker takes by itself, and the exchange that
ends them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from accordion.base.errors import HookError, StateError
from accordion.compress.compression_engine import Engine
from accordion.compress.step_signals import Signal, raised_signals
from accordion.config import Config
from accordion.hook.ddp_source import DdpSource
from accordion.hook.gradient_source import GradientSource
from accordion.hook.layers import named_layers
from accordion.hook.parameter_changes import ParameterChanges
from accordion.hook.simulated_module import ParallelModule
from accordion.hook.simulated_source import SimulatedSource
from accordion.hook.trained_layers import parameters_of
from accordion.policies import POLICIES
from accordion.session.coordination import Coordinator
from accordion.session.optimizer_steps import OptimizerSteps
from accordion.session.round_times import RoundTime, RoundTimes
from accordion.session.signal_requests import Requests
from accordion.session.skipped_steps import (
    SkippedInARow,
    skipped_locally_sentence,
    skipped_sentence,
)


class Rounds:
    """Rounds of a session that exchanges gradients in every step, or has no peers: none.

    Args:
        source: the session's gradients.
        engine: compresses what is exchanged.
        requests: what this worker raises.
        rank: this worker's.
    """

    decided = 1
    """Steps of a round, as decided."""
    length = 1
    """Steps of a round that is taken; 1 if gradients are exchanged in every step."""
    steps = 0
    """Local steps of the running round so far."""
    is_full = False
    """Whether the running round has all its steps."""

    def __init__(
        self, source: GradientSource, engine: Engine, requests: Requests, *, rank: int
    ) -> None:
        self._gradients, self._engine, self._requests = source, engine, requests
        self._rank = rank
        self._skipped = SkippedInARow()

    @property
    def begins(self) -> bool:
        """Whether the next step begins a round of local steps: all workers have the same
        parameters.
        """
        return self.length > 1 and not self.steps

    def median_times(self) -> RoundTime | None:
        """Return this worker's times since the last decision; None if none were taken, by any
        worker.
        """
        return None

    def set_length(self, length: int) -> None:
        """Change the length between two rounds; every worker does, to the same."""
        self.decided = length

    def begin_step(self) -> frozenset[Signal]:
        """Begin a step; return the signals of all workers, or of a local step `NOT_FINITE` if this
        worker's gradients are not.

        Raises:
            HookError: there are no gradients since the last step.
            Exception: their exchange failed.
        """
        announced = raised_signals(self._gradients.take_signals())
        self._requests.drop_seen()
        return announced

    def keep_step(self, *, taken: bool) -> None:
        """Keep or drop what the exchange of the step's gradients staged; warn if too many in a row
        were skipped.
        """
        self._skipped.observe(
            lambda number: skipped_sentence(number, self._engine.broken_layers(), rank=self._rank),
            taken=taken,
        )
        if taken:
            self._engine.restore_unused(self._gradients.unused_layers())
            self._engine.commit_step()
        else:
            self._engine.rollback_step()

    def end(self) -> frozenset[Signal]:
        """End the running round; return the signals of all workers.

        If a worker's change was not finite, all go back to the parameters before the round.

        Raises:
            Exception: the exchange failed.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """End a round that has begun, before its last step; signals wait for the next one.

        Raises:
            Exception: the exchange failed.
        """

    def momentum(self) -> list[Tensor]:
        """Return the momentum of the outer steps on the CPU; empty without one.

        Raises:
            StateError: a round is running.
        """
        return []

    def load_momentum(self, saved: Sequence[Tensor]) -> None:
        """Continue with a saved momentum; an empty one starts from zero. A round that is running is
        given up.
        """


class LocalRounds(Rounds):
    """Rounds of a session with local steps.

    All workers have the same parameters before a round and after it. In between, each worker steps
    along its own gradients, with its own optimizer state and its own buffers. A worker without
    peers takes no rounds: its steps are everybody's.

    Args:
        module: the module, wrapped in DistributedDataParallel or simulated.
        source: its gradients.
        engine: compresses the changes of a round.
        coordinator: averages the optimizers' state.
        requests: what this worker raises.
        optimizers: the module's optimizers.
        nesterov: as in `ParameterChanges`.
    """

    def __init__(
        self,
        module: ParallelModule,
        source: DdpSource | SimulatedSource,
        engine: Engine,
        *,
        coordinator: Coordinator,
        requests: Requests,
        optimizers: tuple[Optimizer, ...],
        nesterov: bool,
    ) -> None:
        super().__init__(source, engine, requests, rank=coordinator.rank)
        self._module, self._source = module, source
        self._coordinator, self._optimizers = coordinator, optimizers
        self._parameters = {
            name: one for name, one in named_layers(module.module).items() if one.requires_grad
        }
        self._changes = ParameterChanges(self._parameters, source.exchanges, nesterov=nesterov)
        self._broadcasts_buffers = module.broadcast_buffers
        self._broken: list[str] = []
        """Layers whose gradient is not finite in this local step."""
        self._undone = SkippedInARow()
        self._times = RoundTimes()

    @property
    def is_full(self) -> bool:  # type: ignore[override]  # the others' is a constant
        """Implements `Rounds`."""
        return self.steps >= self.length

    def median_times(self) -> RoundTime | None:
        """Implements `Rounds`."""
        return self._times.medians()

    def set_length(self, length: int) -> None:
        """Implements `Rounds`."""
        if length == 1 < self.length:
            # One optimizer state for all again, as in data-parallel training.
            self._coordinator.average_(list(_optimizer_state(self._optimizers)))
        if (length > 1) != (self.length > 1):
            self._engine.sums.clear()  # changes of parameters do not add up with gradients
        self._times.clear()
        self.decided = self.length = length
        self._source.is_local = length > 1

    def begin_step(self) -> frozenset[Signal]:
        """Implements `Rounds`."""
        if self.length == 1:
            self._times.pass_exchanged_step(self._source.exchanges.waited_s)
            return super().begin_step()
        self._source.take_local_gradients()
        if not self.steps:
            self._changes.begin()
            self._module.broadcast_buffers = False
        else:
            # The exchange counts what one step would have sent without compression.
            for name, parameter in self._parameters.items():
                self._engine.ledger.count_dense_equivalent(name, parameter.numel())
        self.steps += 1
        self._times.pass_local_step()
        gradients = {
            name: one.grad for name, one in self._parameters.items() if one.grad is not None
        }
        norms = torch._foreach_norm(list(gradients.values()))
        are_finite = torch.stack([norm.float() for norm in norms]).isfinite().tolist()
        self._broken = [
            name for name, finite in zip(gradients, are_finite, strict=True) if not finite
        ]
        return frozenset({Signal.NOT_FINITE}) if self._broken else frozenset()

    def keep_step(self, *, taken: bool) -> None:
        """Implements `Rounds`."""
        if self.length == 1:
            super().keep_step(taken=taken)
            return
        self._skipped.observe(
            lambda number: skipped_locally_sentence(number, self._broken, rank=self._rank),
            taken=taken,
        )

    def check_forward(self, module: nn.Module) -> None:
        """Check, before a forward pass, that no evaluation sees the parameters of one worker.

        Raises:
            HookError: the model is evaluated within a round.
        """
        if module.training or torch.is_grad_enabled() or not self.steps:
            return
        raise HookError(
            f"the model is evaluated within a round of local steps, of which {self.steps} were"
            " taken, so every worker has its own parameters; call session.finish_round() on all"
            " workers before"
        )

    def end(self) -> frozenset[Signal]:
        """Implements `Rounds`."""
        # So that the statistic, which has no scale, is the change by step.
        self._engine.loss_scale = float(self.steps)
        self._begin_anew()
        with self._times.exchange():
            announced = raised_signals(self._changes.exchange())
        self._requests.drop_seen()
        is_kept = Signal.NOT_FINITE not in announced
        self._undone.observe(
            lambda number: skipped_sentence(
                number, self._engine.broken_layers(), rank=self._rank, is_round=True
            ),
            taken=is_kept,
        )
        if is_kept:
            self._engine.commit_step()
            self._changes.apply()
        else:
            self._engine.rollback_step()
            self._changes.undo()
        return announced

    def finish(self) -> None:
        """Implements `Rounds`."""
        if self.steps:
            self._requests.are_held = True
            self.end()
            self._requests.are_held = False

    def momentum(self) -> list[Tensor]:
        """Implements `Rounds`."""
        if self.steps:
            raise StateError(
                f"a round of local steps is running, of which {self.steps} were taken, so every"
                " worker has its own parameters; call session.finish_round() on all workers before"
                " they save their state"
            )
        return self._changes.momentum()

    def load_momentum(self, saved: Sequence[Tensor]) -> None:
        """Implements `Rounds`."""
        self._begin_anew()
        self._changes.load_momentum(saved)

    def _begin_anew(self) -> None:
        self.steps = 0
        self._module.broadcast_buffers = self._broadcasts_buffers


class _ForwardCheck:
    """Hook that checks forward passes; a copy or a pickle of it does nothing."""

    def __init__(self, rounds: LocalRounds | None = None) -> None:
        self._rounds = None if rounds is None else weakref.ref(rounds)

    def __call__(self, module: nn.Module, inputs: Any) -> None:  # noqa: ARG002
        rounds = None if self._rounds is None else self._rounds()
        if rounds is not None:
            rounds.check_forward(module)

    def __reduce__(self) -> tuple[type[_ForwardCheck], tuple[()]]:
        return _ForwardCheck, ()


def create_rounds(
    module: nn.Module,
    source: Any,
    engine: Engine,
    *,
    config: Config,
    steps: OptimizerSteps,
    coordinator: Coordinator,
    requests: Requests,
) -> Rounds:
    """Return the rounds of a session; none if it takes no local steps, or has no peers.

    Raises:
        HookError: the session cannot take local steps.
    """
    local = config.local_steps
    if local is not None:
        _check(module, steps)
    if local is None or coordinator.world_size == 1 or not isinstance(module, ParallelModule):
        return Rounds(source, engine, requests, rank=coordinator.rank)
    _check_measurable(source, config)
    is_sgd = all(isinstance(one, SGD) for one in steps.optimizers)
    rounds = LocalRounds(
        module,
        source,
        engine,
        coordinator=coordinator,
        requests=requests,
        optimizers=steps.optimizers,
        nesterov=local.outer == "nesterov"
        or (local.outer == "auto" and local.has_start and not is_sgd),
    )
    if steps.mode != "session":  # a loop that knows nothing of rounds
        module.register_forward_pre_hook(_ForwardCheck(rounds))
    return rounds


def _check(module: nn.Module, steps: OptimizerSteps) -> None:
    if not steps.sees_step_ends:
        raise HookError(
            "local_steps needs to know when the optimizer has stepped: give attach() the optimizer;"
            " if it is not one of torch, or wraps another that takes its steps, leave"
            ' step="session" and call session.step() in place of optimizer.step()'
        )
    if steps.scaler is not None:
        raise HookError(
            "local_steps cannot be combined with a GradScaler, whose scale would differ between the"
            " workers; train in bf16 or fp32"
        )
    if getattr(module, "find_unused_parameters", False):
        raise HookError(
            "local_steps cannot be combined with find_unused_parameters=True, with which"
            " DistributedDataParallel exchanges a message in every step; remove it, or in"
            " Transformers, which sets it, give TrainingArguments ddp_find_unused_parameters=False"
        )


def _check_measurable(source: DdpSource | SimulatedSource, config: Config) -> None:
    if POLICIES[config.policy].uses_costs and not source.exchanges.can_plan:
        raise HookError(
            f"policy {config.policy} chooses the length of rounds of local steps by measured times,"
            " and exchanges are measured only on CPUs, beside the backward pass (overlap=True);"
            " choose another policy, such as by_rate"
        )


def _optimizer_state(optimizers: tuple[Optimizer, ...]) -> Iterator[Tensor]:
    """Return the tensors of the optimizers' state that follow gradients, in the same order on all
    workers.
    """
    states = [
        optimizer.state.get(parameter, {})
        for optimizer in optimizers
        for parameter in parameters_of([optimizer])
    ]
    values = (state[key] for state in states for key in sorted(state, key=str))
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim():
            yield value
