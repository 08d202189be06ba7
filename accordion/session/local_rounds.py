"""Rounds of local steps: optimizer steps that each worker takes by itself, and the exchange that
ends them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from accordion.base.errors import HookError, StateError
from accordion.base.local_steps import LocalSteps
from accordion.compress.compression_engine import Engine
from accordion.compress.step_signals import Signal, raised_signals
from accordion.config import Config
from accordion.hook.gradient_source import GradientSource, LocalGradientSource
from accordion.hook.parameter_changes import ParameterChanges
from accordion.hook.sharded_module import local_part
from accordion.hook.simulated_module import SimulatedDataParallel
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

    def __init__(
        self, source: GradientSource, engine: Engine, requests: Requests, *, rank: int
    ) -> None:
        self._gradients, self._engine, self._requests = source, engine, requests
        self._rank = rank
        self._skipped, self._undone = SkippedInARow(), SkippedInARow()

    @property
    def are_parameters_equal(self) -> bool:
        """Whether all workers have the same parameters."""
        return True

    @property
    def begins(self) -> bool:
        """Whether the next step begins a round of local steps from parameters that all share."""
        return self.length > 1 and self.are_parameters_equal

    @property
    def undone_in_a_row(self) -> int:
        """Rounds that all workers undid since the last one that they kept."""
        return self._undone.number

    def median_times(self) -> RoundTime | None:
        """Return this worker's times since the last decision; None if none were taken, by any
        worker.
        """
        return None

    def set_length(self, length: int, *, loaded: bool = False) -> None:  # noqa: ARG002
        """Change the length between two rounds; every worker does, to the same. It may be that of a
        state that has just been loaded.
        """
        self.decided = length

    def begin_step(self) -> frozenset[Signal]:
        """Begin a step; return the signals of all workers, or of a local step `NOT_FINITE` if the
        gradients of this replica are not.

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

    def end_step(self, *, waits: bool) -> frozenset[Signal]:  # noqa: ARG002
        """End a full round; return the signals of all workers if an exchange has ended.

        If a worker's change was not finite, all go back to the parameters before the round. If
        there are other signals, all have the same parameters.

        Args:
            waits: whether a full round's exchange ends in the call, whatever the settings.

        Raises:
            Exception: the exchange failed.
        """
        return frozenset()

    def settle(self) -> None:
        """Wait for an exchange that runs beside steps, before other collectives or another state.

        Raises:
            Exception: the exchange failed.
        """

    def finish(self) -> None:
        """End a round that has begun, before its last step; the next step announces its signals.

        Raises:
            Exception: the exchange failed.
        """

    def momentum(self) -> list[Tensor]:
        """Return the momentum of the outer steps on the CPU; empty without one.

        Raises:
            StateError: a round is running.
        """
        return []

    def check_momentum(self, saved: object) -> None:
        """Check that a saved momentum can be loaded.

        Raises:
            StateError: it is of other parameters.
        """

    def load_momentum(self, saved: Sequence[Tensor]) -> None:
        """Continue with a saved momentum; an empty one starts from zero. A round that is running is
        given up.
        """


class LocalRounds(Rounds):
    """Rounds of a session with local steps.

    All workers have the same parameters before a round and after it. In between, each worker steps
    along its own gradients, with its own optimizer state and its own buffers; where FSDP2 shards
    the model, each replica does. One without others takes no rounds: its steps are everybody's.

    With `overlap`, the exchange of a round runs beside the first steps of the next one, and their
    parameters meet again only where a round's end is waited for.

    Args:
        source: gradients of the module.
        engine: compresses the changes of a round.
        coordinator: averages the optimizers' state.
        requests: what this worker raises.
        optimizers: the module's optimizers.
        nesterov: as in `ParameterChanges`.
        overlap: as in `LocalSteps`.
    """

    def __init__(
        self,
        source: LocalGradientSource,
        engine: Engine,
        *,
        coordinator: Coordinator,
        requests: Requests,
        optimizers: tuple[Optimizer, ...],
        nesterov: bool,
        overlap: int,
    ) -> None:
        super().__init__(source, engine, requests, rank=coordinator.rank)
        self._source = source
        self._coordinator, self._optimizers = coordinator, optimizers
        self._parameters = source.parameters
        self._held = {name: local_part(one).detach() for name, one in self._parameters.items()}
        """What this worker holds of the parameters."""
        self._changes = ParameterChanges(
            self._held, source.exchanges, nesterov=nesterov, overlaps=overlap > 0
        )
        self._overlap = overlap
        self._is_exchanging = False
        """Whether the exchange of the round before the running one has not ended."""
        self._seen: frozenset[Signal] = frozenset()
        """Signals that an exchange brought where nobody acted on them."""
        self._broken: list[str] = []
        """Layers whose gradient is not finite in this local step."""
        self._times = RoundTimes()

    @property
    def are_parameters_equal(self) -> bool:
        """Implements `Rounds`."""
        return not self.steps and not self._is_exchanging

    def median_times(self) -> RoundTime | None:
        """Implements `Rounds`."""
        return self._times.medians()

    def set_length(self, length: int, *, loaded: bool = False) -> None:
        """Implements `Rounds`."""
        if length == 1 < self.length and not loaded:
            # One optimizer state for all again, as in data-parallel training.
            state = list(_optimizer_state(self._optimizers, self._parameters.values()))
            _average_state(state, self._coordinator)
        if (length > 1) != (self.length > 1) and not loaded:
            self._engine.sums.clear()  # changes of parameters do not add up with gradients
        self._times.clear()
        self.decided = self.length = length
        self._source.is_local = self._engine.ledger.counts_changes = length > 1

    def begin_step(self) -> frozenset[Signal]:
        """Implements `Rounds`."""
        if self.length == 1:
            self._times.pass_exchanged_step(self._source.exchanges.waited_s)
            return super().begin_step()
        self._source.take_local_gradients()
        if self.begins:
            self._changes.begin()
            self._source.keep_own_buffers(keeps=True)
        self.steps += 1
        self._times.pass_local_step()
        gradients = {
            name: local_part(one.grad)
            for name, one in self._parameters.items()
            if one.grad is not None
        }
        norms = torch._foreach_norm(list(gradients.values()))
        are_finite = torch.stack([norm.float() for norm in norms]).isfinite().tolist()
        self._broken = [
            name for name, finite in zip(gradients, are_finite, strict=True) if not finite
        ]
        is_broken = self._coordinator.is_any_shard(bool(self._broken))
        return frozenset({Signal.NOT_FINITE}) if is_broken else frozenset()

    def keep_step(self, *, taken: bool) -> None:
        """Implements `Rounds`."""
        if self.length == 1:
            super().keep_step(taken=taken)
            return
        self._skipped.observe(
            lambda number: skipped_locally_sentence(
                number, self._broken, rank=self._rank, num_shards=self._coordinator.num_shards
            ),
            taken=taken,
        )

    def check_forward(self, module: nn.Module) -> None:
        """Check, before a forward pass, that no evaluation sees the parameters of one worker.

        Raises:
            HookError: the model is evaluated within a round or during its exchange.
        """
        if module.training or torch.is_grad_enabled() or self.are_parameters_equal:
            return
        raise HookError(
            f"the model is evaluated while {self._describe_round()}, so every worker has its own"
            " parameters; call session.finish_round() on all workers before"
        )

    def _describe_round(self) -> str:
        if self.steps:
            return f"a round of local steps is running, of which {self.steps} were taken"
        return "the exchange of a round of local steps is running (overlap)"

    def end_step(self, *, waits: bool) -> frozenset[Signal]:
        """Implements `Rounds`."""
        announced, self._seen = self._seen, frozenset()
        if self._is_exchanging and self.steps >= min(self._overlap, self.length):
            announced |= self._end_exchange()
        if announced - {Signal.NOT_FINITE}:
            self.finish()
        if self.length > 1 and self.steps >= self.length:
            self._start_exchange()
            if waits or not self._overlap:
                announced |= self._end_exchange()
        return announced

    def _start_exchange(self) -> None:
        """Hand over what the running round has changed; the next one begins."""
        # So that the statistic, which has no scale, is the change by step.
        self._engine.loss_scale = float(self.steps)
        # The exchange counts what one step would have sent without compression.
        self._count_dense_equivalent(self.steps - 1)
        self.steps = 0
        self._is_exchanging = True
        with self._times.exchange():
            self._changes.start_exchange()
            if not self._overlap:  # with it, nobody asks for the times
                self._changes.wait()

    def _end_exchange(self) -> frozenset[Signal]:
        """Wait for the mean of a round's changes, and move to it; return the signals of all."""
        announced = raised_signals(self._changes.end_exchange())
        self._is_exchanging = False
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
            self._count_dense_equivalent(self.steps)
            self.steps = 0
        if not self.steps:
            self._source.keep_own_buffers(keeps=False)
        return announced

    def _count_dense_equivalent(self, steps: int) -> None:
        """Count local steps; not during an exchange, which counts too."""
        for name, parameter in self._held.items():
            self._engine.ledger.count_dense_equivalent(name, parameter.numel(), steps=steps)

    def settle(self) -> None:
        """Implements `Rounds`."""
        if self._is_exchanging:
            self._changes.wait()

    def finish(self) -> None:
        """Implements `Rounds`."""
        if self._is_exchanging:
            self._seen |= self._end_exchange() - {Signal.NOT_FINITE}
        if self.steps:
            self._start_exchange()
            self._seen |= self._end_exchange() - {Signal.NOT_FINITE}

    def momentum(self) -> list[Tensor]:
        """Implements `Rounds`."""
        if not self.are_parameters_equal:
            raise StateError(
                f"{self._describe_round()}, so every worker has its own parameters; call"
                " session.finish_round() on all workers before they save their state"
            )
        return self._changes.momentum()

    def check_momentum(self, saved: object) -> None:
        """Implements `Rounds`."""
        self._changes.check_momentum(saved)

    def load_momentum(self, saved: Sequence[Tensor]) -> None:
        """Implements `Rounds`."""
        if self._is_exchanging:
            self._changes.end_exchange()
            self._engine.rollback_step()
        self.steps, self._is_exchanging = 0, False
        self._source.keep_own_buffers(keeps=False)
        self._changes.load_momentum(saved)


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
        _check_overlap(module, local)
    if local is None or coordinator.num_replicas == 1 or source.exchanges is None:
        return Rounds(source, engine, requests, rank=coordinator.rank)
    _check_measurable(source, config)
    rounds = LocalRounds(
        source,
        engine,
        coordinator=coordinator,
        requests=requests,
        optimizers=steps.optimizers,
        nesterov=local.outer == "nesterov",
        overlap=local.overlap,
    )
    # Not a module inside a wrapper: a hook would be saved with it, and TorchScript refuses it.
    # The check comes before FSDP2's hook, which gathers parameters.
    module.register_forward_pre_hook(_ForwardCheck(rounds), prepend=True)
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


def _check_overlap(module: nn.Module, local: LocalSteps) -> None:
    on_gpu = any(parameter.is_cuda for parameter in module.parameters())
    if local.overlap and on_gpu and not isinstance(module, SimulatedDataParallel):
        raise HookError(
            f"local_steps has overlap={local.overlap}, which was never tried on GPUs; leave it out,"
            " so that workers wait at the end of a round"
        )


def _check_measurable(source: LocalGradientSource, config: Config) -> None:
    if POLICIES[config.policy].uses_costs and not source.exchanges.can_plan:
        raise HookError(
            f"policy {config.policy} chooses the length of rounds of local steps by measured times,"
            " and exchanges are measured only on CPUs, beside the backward pass (overlap=True);"
            " choose another policy, such as by_rate"
        )


def _average_state(tensors: Sequence[Tensor], coordinator: Coordinator) -> None:
    """Replace the tensors of the optimizers' state by their means over the workers.

    Counts of steps differ where a worker skipped one; in fp64, means of equal ones are exact.
    """
    values = [one for one in tensors if one.dim()]
    counts = [one for one in tensors if not one.dim()]
    if counts:
        exact = torch.tensor(list(map(float, counts)), dtype=torch.float64, device="cpu")
        values.append(exact.to(values[0].device if values else counts[0].device))
    coordinator.average_(values)
    for count, mean in zip(counts, values[-1].tolist() if counts else [], strict=True):
        count.fill_(mean)


def _optimizer_state(
    optimizers: tuple[Optimizer, ...], exchanged: Iterable[Tensor]
) -> Iterator[Tensor]:
    """Return the floating point tensors of the optimizers' state about exchanged parameters, in the
    same order on all workers.
    """
    known = set(map(id, exchanged))
    states = [
        optimizer.state.get(parameter, {})
        for optimizer in optimizers
        for parameter in parameters_of([optimizer])
        if id(parameter) in known
    ]
    values = (state[key] for state in states for key in sorted(state, key=str))
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point():
            yield local_part(value)
