"""`attach` and `Session`: compression in an ordinary training script, with ten added lines.

    session = attach(ddp_model, Config(method="powersgd"), optimizer=optimizer)
    for epoch in range(epochs):
        for batch in data:
            loss(ddp_model, batch).backward()
            session.step()                         # in place of optimizer.step()
            optimizer.zero_grad()
        session.end_epoch(lr=lr(epoch), next_lr=lr(epoch + 1))

Every worker makes the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.distributed import ProcessGroup

from accordion.base.errors import OverrideError
from accordion.base.messages import Ack, Decision, LayerInfo, Override, Report, plan_digest, to_json
from accordion.compress.ledger import Ledger
from accordion.compress.step_signals import Signal, raised_signals
from accordion.config import Config
from accordion.decide.controller import Controller, Decider
from accordion.decide.detector import window_is_due, window_is_full
from accordion.hook.layers import decided_layers
from accordion.hook.module_checks import (
    check_attachable,
    check_rate_known,
    device_of,
    inner_module,
    unwrap_module,
)
from accordion.hook.sharded_module import check_sharded
from accordion.hook.worker_networks import create_engine, networks_of
from accordion.policies import POLICIES
from accordion.session.coordination import Coordinator
from accordion.session.create_source import create_source
from accordion.session.decision_maker import DecisionMaker
from accordion.session.local_rounds import create_rounds
from accordion.session.measured_exchanges import MeasuredExchanges
from accordion.session.optimizer_steps import Optimizers, OptimizerSteps, StepMode
from accordion.session.saved_states import (
    State,
    load_on_all_workers,
    merge_states,
    parse_decision,
    serialize_state,
)
from accordion.session.signal_requests import Requests
from accordion.session.step_results import StepResult, Switch
from accordion.session.training_warnings import watch_run


def attach(
    module: torch.nn.Module,
    config: Config,
    optimizer: Optimizers | None = None,
    *,
    scaler: GradScaler | None = None,
    step: StepMode = "session",
    decider: Decider | None = None,
    global_batch: int = 0,
    epochs: int | None = None,
    overlap: bool = True,
    replicate_group: ProcessGroup | None = None,
) -> Session:
    """Compress the gradients of a DistributedDataParallel module, or between the replicas of an
    FSDP2 module, from now on.

    Every worker calls this with equal arguments, before the first forward pass. A process without
    peers may pass a module that is not wrapped; its gradients are observed and not changed.

    Args:
        module: the module, wrapped in DistributedDataParallel or sharded by `fully_shard`.
        config: settings of compression, policy and detector.
        optimizer: the module's optimizer, or a list of all if there are several.
        scaler: the GradScaler of the training loop, if it has one.
        step: which side takes the optimizer's steps; see `optimizer_steps.StepMode`.
        decider: decides on rank 0 in place of the session's own controller.
        global_batch: samples per step over all workers, for the reports; 0 if unknown.
        epochs: length of the run; if it is too short for the detector's window, a warning is issued
            at once instead of at the end of the session.
        overlap: whether to exchange gradients in parallel with the backward pass.
        replicate_group: of a sharded module, the group of the workers that hold the same part.

    Raises:
        ConfigError: `config` is not a `Config`.
        HookError: the module already has a hook, is not wrapped although there are peers, or uses
            an unsupported feature, such as sparse gradients; a scaler, local steps or
            `step="optimizer"` were given without an optimizer, or local steps with a scaler; the
            optimizers do not hold exactly the module's trainable parameters; another worker got
            different arguments; or a job runs the script.
    """
    module = inner_module(module)
    check_attachable(module, config, decider)
    check_sharded(module, replicate_group)
    if step == "optimizer":
        config = config.for_unchanged_loop()
    steps = OptimizerSteps(step, module=module, optimizer=optimizer, scaler=scaler)
    session = Session(
        module,
        config,
        steps,
        decider=decider,
        global_batch=global_batch,
        epochs=epochs,
        overlap=overlap,
        replicate_group=replicate_group,
    )
    steps.follow_optimizers(
        session.pass_boundary,
        session.finish_boundary,
        has_gradients=lambda: session.source.has_gradients,
    )
    return session


class Session:
    """Session of one worker in a group that trains with Accordion; `attach` creates it."""

    name = ""
    """Name of this session in saved files and metrics, for scripts with several sessions."""
    on_boundary: Callable[[StepResult], None] | None = None
    """Called on every rank with each step boundary's result, and a switch of `finish_round`."""
    lr: float | None = None
    """Learning rate of the schedule in this epoch, before batch scaling and warm-up.

    None uses the optimizer's rate.
    """
    steps = 0
    """Number of steps since the start of the job, including skipped ones."""
    skipped_steps = 0
    """Number of steps that were skipped because a gradient was not finite."""
    epoch = 0
    """Current epoch."""
    _begun: StepResult | None = None
    """Local step that the training loop is taking."""

    def __init__(
        self,
        module: torch.nn.Module,
        config: Config,
        optimizer_steps: OptimizerSteps,
        *,
        decider: Decider | None,
        global_batch: int,
        epochs: int | None,
        overlap: bool,
        replicate_group: ProcessGroup | None = None,
    ) -> None:
        self._config, self._optimizer_steps = config, optimizer_steps
        self.layers: tuple[LayerInfo, ...] = decided_layers(unwrap_module(module))
        self._networks = networks = networks_of(module, replicate_group)
        self.rank, self.world_size = networks.everyone.rank, networks.everyone.world_size
        self._engine = create_engine(module, self.layers, networks, seed=config.seed)
        self._engine.measures_sent_share = POLICIES[config.policy].uses_sent_share
        self.controller = Controller(config, self.layers)
        """Controller of this session, up to date on rank 0 only."""
        self.decision: Decision = self.controller.decision
        """Decision in force."""
        self.global_batch = global_batch
        """Samples per step over all workers, as decided or as set by the caller; 0 if unknown."""
        self._requests = Requests()
        self._decisions = DecisionMaker(config, self.controller, decider)
        self._coordinator = Coordinator(networks, self.ledger, device_of(module))
        # This comes before the exchanges get a process group of their own, in which workers with
        # different settings would block.
        arguments = {"overlap": overlap, "step": optimizer_steps.mode}
        self._coordinator.require_equal((config, self.layers, arguments))
        self.source = create_source(
            module,
            self._engine,
            optimizer_steps,
            raised=self._requests.take,
            pass_skipped_step=self._pass_skipped_step,
            overlap=overlap,
            buckets_per_exchange=config.buckets_per_exchange,
            replicate_group=replicate_group,
        )
        shared: dict[str, Any] = {"coordinator": self._coordinator, "requests": self._requests}
        self.rounds = create_rounds(
            module, self.source, self._engine, config=config, steps=optimizer_steps, **shared
        )
        plans = self.controller.uniform_plans() if POLICIES[config.policy].uses_costs else {}
        self._measured = MeasuredExchanges(self.source, self.rounds, self._coordinator, plans=plans)
        self._adopt_decision(self.decision)
        self._measured.probe_link()
        self._watcher = None
        if self.rank == 0 and decider is None:
            self._watcher = watch_run(self, config, networks, epochs=epochs)

    @property
    def ledger(self) -> Ledger:
        """Bytes of this worker since the start of the job."""
        return self._engine.ledger

    @property
    def communicate_s(self) -> float:
        """Seconds since `attach` for which training waited for exchanges and for slower workers.

        Exchanges in parallel with the backward pass, or with local steps, are not included.
        """
        return self._measured.waited_s + self._networks.seconds

    @property
    def encoded_s(self) -> float:
        """Part of `communicate_s` in which gradients were encoded and decoded instead of sent."""
        return self._measured.encoded_s

    @property
    def link(self) -> Mapping[str, float]:
        """Measured link between the workers, as in `Report.link`."""
        return {} if self._measured.link is None else self._measured.link.speed()

    @property
    def receive_s_by_rank(self) -> tuple[float, ...]:
        """Seconds that 64 KiB lately took from the rank before to each rank; empty while it is not
        measured.
        """
        return self._measured.receive_s_by_rank

    def request(self, signal: Signal) -> None:
        """Raise a signal, which all workers see at the end of the next step that starts.

        Any rank may call this, from any thread.
        """
        self._requests.add(signal)

    def override(self, overrides: Sequence[Override]) -> None:
        """Replace the overrides from the end of the running step, or round of local steps, on.

        Rank 0 calls this, from any thread.

        Raises:
            OverrideError: an override names an unknown target, level or layer, two have one id, or
                this is not rank 0; the previous overrides stay.
        """
        if self.rank != 0:
            raise OverrideError(
                f"override() was called on rank {self.rank}, but rank 0 decides for all; call it"
                " there, under `if session.rank == 0:`"
            )
        self._decisions.replace_overrides(overrides)
        self.request(Signal.DECISION)

    def step(self) -> StepResult:
        """Pass a step boundary: take the optimizer's step and apply what workers signalled.

        The step is skipped on all workers if a gradient was not finite on one; a local step only on
        that one. Which side takes the optimizer's step depends on `step` of `attach`.

        Raises:
            HookError: no gradients were exchanged since the last step, a layer became trainable
                after `attach`, the session follows the optimizer's steps by itself, or the workers
                scale the loss differently.
            ReportError: windows are counted in steps and the learning rate is unknown.
            ReportError, ConfigError: a decision was due and failed; see `end_epoch`.
            RuntimeError: another worker is gone.
        """
        self._optimizer_steps.check_step_call()
        result = self.pass_boundary()
        self._optimizer_steps.prepare_loop_step(taken=result.taken)
        return result

    def pass_boundary(self) -> StepResult:
        """Pass a step boundary without the optimizer's step; a followed optimizer calls this.

        If the training loop takes the step and it is local, `finish_boundary` passes the rest.

        Raises:
            Exception: the errors of `step`.
        """
        self._optimizer_steps.check_step_ended(self._begun)
        begun = self._begin_step()
        # A step that is not taken changes nothing that the end of a round could exchange.
        if self._optimizer_steps.mode == "session" or not self.rounds.steps or not begun.taken:
            return self._end_step(begun)
        self._begun = begun
        return begun

    def finish_boundary(self) -> None:
        """Pass the rest of a local step's boundary, once the training loop has taken the step.

        Raises:
            Exception: the errors of `step`.
        """
        begun, self._begun = self._begun, None
        if begun is not None:
            self._end_step(begun)

    def finish_round(self) -> Switch | None:
        """End a round of local steps early on all workers, so that they have the same parameters,
        as for a checkpoint; return the switch of a window that ended within the round.

        Raises:
            HookError: the training loop has not taken the optimizer's step of this local step.
        """
        self._optimizer_steps.check_step_ended(self._begun)
        begun = self.rounds.steps
        self.rounds.finish()
        switch = self._close_full_window(last=begun)
        if switch is not None and self.on_boundary is not None:
            self.on_boundary(StepResult(taken=True, announced=frozenset(), switch=switch))
        return switch

    def end_epoch(self, *, lr: float, next_lr: float) -> Switch:
        """Report the epoch and switch to the decision for the next one; every worker calls this.

        `lr` and `next_lr` are the schedule's rates of this epoch and the next, before batch scaling
        and warm-up.

        Raises:
            ReportError: a rate is negative or not finite, or rank 0 could not decide; rank 0 raises
                the cause, such as the decider's error.
            ConfigError: on rank 0, the policy chooses an unknown level.
            RuntimeError: another worker is gone.
        """
        with self._coordinator.warn_of_wait("end_epoch"):
            self.finish_round()
            switch = self._close_window(epoch_end=True, lr=lr, next_lr=next_lr)
        if self._watcher is not None:
            self._watcher.observe_epoch(switch.decision)
        self.epoch += 1
        self.lr = float(next_lr)
        return switch

    def state_dict(self) -> dict[str, Any]:
        """Return this worker's state between steps, for scripts in which every rank saves its own.

        Tensors are on the CPU, so that any machine can load them, with `weights_only=True`. Only
        rank 0's state contains the controller's.

        Raises:
            StateError: a round of local steps is running; see `finish_round`.
        """
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "shards": self._networks.num_shards,
            "steps": self.steps,
            "skipped_steps": self.skipped_steps,
            "epoch": self.epoch,
            "lr": self.lr,
            "decision": to_json(self.decision),
            "controller": self.controller.state_dict() if self.rank == 0 else None,
            "engine": self._engine.state_dict(),
            "outer_momentum": self.rounds.momentum(),
        }

    def gather_state_dict(self) -> dict[str, Any] | None:
        """Return the states of all workers on rank 0 and None elsewhere; every worker calls this.

        It holds the residuals of all workers; of many, save each rank's `state_dict()` instead.

        Raises:
            RuntimeError: another worker is gone.
        """
        payloads = self._coordinator.gather_on_rank_0(serialize_state(self.state_dict()))
        return None if payloads is None else merge_states(payloads)

    def load_state_dict(self, states: Sequence[State] | State | Callable[[], State]) -> None:
        """Continue from the saved states of a group; every worker calls this.

        Pass the states of all workers in rank order, or the result of `gather_state_dict`. If the
        world size is the saved one, each worker may pass only its own state. With another world
        size every worker starts with the mean of the saved residuals, so that no residual is lost.
        A function is called for this worker's state.

        Raises:
            StateError: on some worker the states are incomplete, out of order, or of another model;
                raised on all workers, and nothing is changed on any.
        """
        self.rounds.settle()
        loaded = load_on_all_workers(
            self._engine, self.controller, states, coordinator=self._coordinator, rounds=self.rounds
        )
        self._decisions.proposal = None
        decision = parse_decision(loaded["decision"])
        self._adopt_decision(
            decision if self._measured.follows_plans else replace(decision, exchange_plan=()),
            loaded=True,
        )
        self.rounds.load_momentum(loaded["outer_momentum"])
        self.steps, self.skipped_steps = loaded["steps"], loaded["skipped_steps"]
        self.epoch, self.lr = loaded["epoch"], loaded["lr"]

    def _pass_skipped_step(self, signals: Tensor) -> bool:
        """Pass the boundary of a step that the loop's scaler skipped; return False for others."""
        is_skipped = Signal.NOT_FINITE in raised_signals(signals)
        if self._optimizer_steps.mode == "session" or not is_skipped:
            return False
        self.pass_boundary()
        return True

    def _begin_step(self) -> StepResult:
        """Take or skip a step, but for the end of its round; return what is known of it."""
        self._optimizer_steps.layers.check()
        check_rate_known(self._config, self.lr, self._optimizer_steps.learning_rate())
        announced = self.rounds.begin_step()
        taken = Signal.NOT_FINITE not in announced
        self.steps += 1
        self.skipped_steps += not taken
        self.rounds.keep_step(taken=taken)
        self._optimizer_steps.finish_step(taken=taken)
        return StepResult(taken=taken, announced=announced, switch=None)

    def _end_step(self, begun: StepResult) -> StepResult:
        """End the round if it is full, and follow what was announced."""
        last = max(1, self.rounds.steps)
        ends = self._config.ends_warm_up(self.steps) or self._config.ends_start(self.steps)
        is_due = ends or window_is_full(self._config.detector, self.steps, last=last)
        announced = begun.announced | self.rounds.end_step(waits=is_due)
        taken = Signal.NOT_FINITE not in announced
        if self._watcher is not None:
            self._watcher.observe_step(self.decision.level_by_layer, self.ledger)
        switch = None
        if Signal.DECISION in announced or ends:
            place = {"epoch": self.epoch, "step": self.steps}
            decide = partial(self._decisions.decide_at_boundary, self.decision, **place)
            switch = self._apply_decision(decide)
        self._plan_exchanges()
        switch = self._close_full_window(last=last) or switch
        result = StepResult(taken=taken, announced=announced - {Signal.NOT_FINITE}, switch=switch)
        if self.on_boundary is not None:
            self.on_boundary(result)
        return result

    def _close_full_window(self, *, last: int) -> Switch | None:
        """Close a window that ended in the `last` steps, unless a round of local steps runs."""
        if self.rounds.steps or not window_is_full(self._config.detector, self.steps, last=last):
            return None
        lr = (self._optimizer_steps.learning_rate() or 0.0) if self.lr is None else self.lr
        return self._close_window(epoch_end=False, lr=lr, next_lr=lr)

    def _close_window(self, *, epoch_end: bool, lr: float, next_lr: float) -> Switch:
        self._measured.probe_link()
        # A window without a finite step stays open.
        sums, detector = self._engine.sums, self._config.detector
        steps = sums.steps
        closes = steps > 0 and window_is_due(detector, self.epoch, epoch_end=epoch_end)
        kind = detector.statistic
        measured = self._coordinator.average_window(sums, self.layers, kind) if closes else {}
        if epoch_end and kind == "paper":
            sums.clear()
        report = Report(
            epoch=self.epoch,
            step=self.steps,
            epoch_end=epoch_end,
            world_size=self.world_size,
            global_batch=self.global_batch,
            lr=float(lr),  # a number of numpy could not be loaded back with weights_only
            next_lr=float(next_lr),
            local_steps=self.rounds.length,
            window_steps=steps,
            statistic_kind=kind,
            **measured,
            **self._measured.report_fields(self.layers, in_force=self._engine.plan),
        )
        return self._apply_decision(lambda: self._decisions.decide_report(report))

    def _plan_exchanges(self) -> None:
        if self.rounds.length == 1 and (proposal := self._measured.propose_plan()) is not None:
            self._decisions.proposal = proposal
            self.request(Signal.DECISION)

    def _apply_decision(self, decide: Callable[[], Decision]) -> Switch:
        """Let rank 0 decide, apply the decision on all ranks, and gather their acknowledgements."""

        def decide_all() -> Decision:
            decision = decide()
            plan = decision.exchange_plan or self.decision.exchange_plan
            return replace(decision, exchange_plan=plan)

        self.rounds.finish()
        decision = self._coordinator.share_decision(decide_all)
        self._adopt_decision(decision)
        batch = self.global_batch if self._config.batch else None
        own = Ack(rank=self.rank, step=self.steps, digest=self._digest(batch))
        return Switch(decision=decision, acks=self._coordinator.gather_acks(own))

    def _digest(self, batch: int | None) -> str:
        plan, length, held = self._measured.plan, self.rounds.decided, self.decision.optimizer
        return plan_digest(self._engine.plan, batch, plan, local_steps=length, optimizer=held)

    def _adopt_decision(self, decision: Decision, *, loaded: bool = False) -> None:
        self._measured.follow_decision(decision, before=self._engine.plan)
        self.decision, self._engine.plan = decision, decision.level_by_layer
        self.rounds.set_length(decision.local_steps, loaded=loaded)
        self.global_batch = decision.global_batch or self.global_batch


__all__ = ["Session", "StepResult", "Switch", "attach"]
