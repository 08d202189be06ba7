"""Turns reports into decisions by detector, policy and overrides; stdlib only.

    controller = Controller(config, layers)
    decision = controller.decide(report)

It runs in the Accordion actor for all jobs, and on rank 0 if that actor is unresponsive. Both
return the same decision for the same report.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from accordion.base.errors import ConfigError, OverrideError, ReportError, StateError
from accordion.base.messages import (
    Decision,
    DecisionCause,
    LayerInfo,
    Level,
    Override,
    Report,
    decision_from_json,
    to_json,
)
from accordion.compressors import level_of
from accordion.config import Config
from accordion.decide.detector import (
    BatchState,
    DetectorResult,
    DetectorState,
    init_batch,
    init_detector,
    update_batch,
    update_detector,
)
from accordion.decide.last_report import LastReport, digest_report
from accordion.decide.overrides import (
    ResolvedOverride,
    describe_overrides,
    first_epoch,
    limit_rounds,
    overrides_by_layer,
    resolve_override,
    whole_model_override,
)
from accordion.decide.training_stage import TrainingStage
from accordion.decide.whole_model import (
    batch_fields,
    batch_growth,
    describe_growth,
    local_steps_fields,
    optimizer_fields,
    regimes_in_force,
)
from accordion.policies import POLICIES, UNCOMPRESSED, PolicyInput, check_policy

_DENSE = level_of("none", {}, name=UNCOMPRESSED)
_HALF = level_of("half", {}, name="half")


class Decider(Protocol):
    """Decides on rank 0 what comes into force, while the other ranks wait."""

    def __call__(self, report: Report, proposal: Decision, /) -> Decision:
        """Return the decision; `proposal` is that of rank 0's own controller.

        Raises:
            Exception: no decision is possible; it is raised on rank 0, and a `ReportError` with its
                message on the other ranks.
        """


class Controller:
    """Decides the level of every layer, and the global batch and local steps if the settings have
    them.

    Args:
        config: the library's settings.
        layers: the layers whose level is decided.

    Raises:
        ConfigError: a glob of `config.by_layer` applies to no layer, or the policy chooses an
            unknown level.
    """

    def __init__(self, config: Config, layers: Sequence[LayerInfo]) -> None:
        self.number = 0
        """Decisions made from reports so far."""
        self._config = config
        self._policy_options = check_policy(config.policy, config.policy_options)
        self._policy = POLICIES[config.policy]
        self._layers = tuple(layer.name for layer in layers)
        self._sizes = {layer.name: math.prod(layer.shape) for layer in layers}
        self._ladders = config.ladders(self._layers)
        self._detector = init_detector(self._layers)
        self._batch = init_batch()
        self._stage = TrainingStage()
        self._policy_state: Mapping[str, Any] = {}
        self._resolved: tuple[ResolvedOverride, ...] = ()
        self._asked: LastReport | None = None
        self.policy_levels: Mapping[str, Level] = self._policy_levels(epoch=0, step=0)
        """Levels that the policy alone, or the warm-up, would choose now."""
        self.decision = self._decision(
            epoch=0, step=0, cause="start", reason="a run starts critical"
        )
        """Decision in force."""
        self._answer = self.decision

    def decide(self, report: Report) -> Decision:
        """Return the decision after a report.

        The last report, given again, returns the same decision, whatever happened in between.

        Raises:
            ReportError: the report is older than the last one, contradicts it, or belongs to
                another model.
            ConfigError: the policy chooses an unknown level; nothing is changed.
        """
        asked = digest_report(report)
        if asked == self._asked:
            return self._answer
        self._check_order(asked)
        self._pass_warm_up(report)
        epoch = report.epoch + 1 if report.epoch_end else report.epoch
        detector, result = update_detector(self._detector, report, self._config.detector)
        batch, batch_reason = self._updated_batch(report)
        stage = self._stage.after(report, is_overridden=self._sets_rate(report.epoch, epoch))
        bare = self._policy_input(epoch, report.step, detector=detector, batch=batch, stage=stage)
        policy, told = self._policy, _add_report(bare, report, result)
        # What an override sends says nothing about the policy's own level.
        own = {
            layer: share
            for layer, share in told.sent_share_by_layer.items()
            if layer not in self.decision.override_by_layer
        }
        levels = {name: level.name for name, level in self.decision.level_by_layer.items()}
        told = replace(told, sent_share_by_layer=own, level_by_layer=levels)
        state = policy.observe_report(told)
        self.policy_levels = self._decide_levels(replace(bare, state=state), report.step)
        explanation = policy.explain_levels(replace(told, state=state))
        self._detector, self._batch, self._policy_state, self._asked = detector, batch, state, asked
        self._stage = stage
        self.number += 1
        reason = "; ".join(filter(None, (result.reason, batch_reason, explanation)))
        self.decision = self._answer = self._decision(
            epoch=epoch,
            step=report.step,
            cause=result.cause,
            reason=reason,
            changes=result.change_by_layer,
        )
        return self.decision

    def uniform_plans(self) -> dict[str, dict[str, Level]]:
        """Return the levels of all layers by name: `none`, `half` and the ladders' own names."""
        names = [_DENSE.name, _HALF.name, *(level.name for level in self._config.ladder())]
        return {
            name: {layer: self._level_named(layer, name) for layer in self._layers}
            for name in names
        }

    def planned_levels(self, epoch: int, *, step: int, fall: float) -> dict[str, Level]:
        """Return the levels in an epoch after the learning rate has fallen to 1 / `fall` of its
        peak, for a policy that `is_planned`, without overrides; no report is needed.
        """
        return self._decide_levels(replace(self._policy_input(epoch, step), rate_fall=fall), step)

    def check_override(self, override: Override) -> None:
        """Check that an override can be applied.

        Raises:
            OverrideError: the job does not have its level or a layer, or its interval is empty.
        """
        resolve_override(override, self._ladders, start=0, config=self._config)

    def override(self, overrides: Sequence[Override], *, epoch: int, step: int) -> Decision:
        """Replace the overrides; return the decision from `step` of `epoch` on.

        The start of an override with `next_epoch` is set when its id is first given.

        Raises:
            OverrideError: an override cannot be applied; the previous ones stay in force.
        """
        starts = {item.override.id: item.start for item in self._resolved}
        self._resolved = self._resolve_overrides(
            overrides, {o.id: starts.get(o.id, first_epoch(o, epoch)) for o in overrides}
        )
        self.policy_levels = self._policy_levels(epoch, step)
        nothing = f"no override holds in epoch {epoch}: the policy decides"
        reason = self._describe_overrides(epoch) or nothing
        self.decision = self._decision(epoch=epoch, step=step, cause="override", reason=reason)
        return self.decision

    def optimizer_settings(self, epoch: int) -> Mapping[str, float]:
        """Return what overrides set of the optimizer in an epoch, as in `Decision.optimizer`."""
        settings: Mapping[str, float] = optimizer_fields(self._resolved, epoch)["optimizer"]
        return settings

    def end_warm_up(self, *, epoch: int) -> Decision:
        """Return the decision at the end of the warm-up, which is in `epoch`.

        A controller that is only given reports ends it with the first report after it.
        """
        warm_up = self._config.warm_up
        if warm_up is None:
            return self.decision
        self.policy_levels = self._policy_levels(epoch, warm_up.steps)
        self.decision = self._decision(
            epoch=epoch,
            step=warm_up.steps,
            cause="warm_up",
            reason=f"the warm-up of {warm_up.steps} steps at {warm_up.level} ends",
        )
        return self.decision

    def end_start(self, *, epoch: int, step: int) -> Decision:
        """Return the decision at the end of the start of a run with local steps."""
        local = self._config.local_steps
        if local is None:
            return self.decision
        length = self._policy.decide_local_steps(self._policy_input(epoch, step))
        reason = f"the start of {step} steps ends: rounds of {length} local steps"
        self.decision = self._decision(epoch=epoch, step=step, cause="start", reason=reason)
        return self.decision

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`, as JSON."""
        return {
            "number": self.number,
            "detector": asdict(self._detector),
            "batch": asdict(self._batch),
            "policy": {"name": self._config.policy, "state": dict(self._policy_state)},
            "stage": asdict(self._stage),
            "overrides": [
                {"start": item.start, "override": to_json(item.override)} for item in self._resolved
            ],
            "asked": asdict(self._asked) if self._asked else None,
            "answer": None if self._answer is self.decision else to_json(self._answer),
            "decision": to_json(self.decision),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the saved state of a controller with the same settings and layers.

        Raises:
            StateError: the state belongs to another model or cannot be read; nothing is changed.
        """
        saved = _parse_state(state)
        self._check_layers(saved.detector)
        held = [limit_rounds(one, self._config.local_steps) for one in saved.overrides]
        try:
            resolved = self._resolve_overrides(held, saved.starts)
        except OverrideError as error:
            raise StateError(f"saved controller state does not fit this job: {error}") from error
        regimes = {layer: saved.detector.regime_by_layer[layer] for layer in self._layers}
        before = self._detector, self._policy_state, self._stage, self._batch, self._resolved
        self._detector = replace(saved.detector, regime_by_layer=regimes)
        # The state of another policy does not apply to this one, which starts from the beginning.
        self._policy_state = saved.policy_state if saved.policy == self._config.policy else {}
        self._stage, self._batch, self._resolved = saved.stage, saved.batch, resolved
        try:
            self.policy_levels = self._policy_levels(saved.decision.epoch, saved.decision.step)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            self._detector, self._policy_state, self._stage, self._batch, self._resolved = before
            raise StateError(
                f"saved state of policy {saved.policy!r} cannot be read ({error!r})"
            ) from error
        self._asked, self.number = saved.asked, saved.number
        self._answer, self.decision = saved.answer or saved.decision, saved.decision

    def _resolve_overrides(
        self, overrides: Sequence[Override], starts: Mapping[str, int]
    ) -> tuple[ResolvedOverride, ...]:
        return tuple(
            resolve_override(item, self._ladders, start=starts[item.id], config=self._config)
            for item in overrides
        )

    def _check_order(self, asked: LastReport) -> None:
        last = self._asked
        if last is not None and asked.order <= last.order:
            raise ReportError(
                f"gradient report of epoch {asked.epoch}, step {asked.step} does not come after the"
                f" last one, of epoch {last.epoch}, step {last.step}; reports only go forward, load"
                " an older state to go back"
            )

    def _check_layers(self, detector: DetectorState) -> None:
        saved, ours = set(detector.regime_by_layer), set(self._layers)
        if saved != ours:
            raise StateError(
                f"saved controller state is of another model: missing {sorted(ours - saved)}, "
                f"unexpected {sorted(saved - ours)}; load it into the model it was saved from"
            )

    def _describe_overrides(self, epoch: int) -> str:
        return describe_overrides(self._resolved, epoch, num_layers=len(self._layers))

    def _updated_batch(self, report: Report) -> tuple[BatchState, str]:
        if self._config.batch is None:
            return self._batch, ""
        return update_batch(self._batch, report, self._config.detector, batch=self._config.batch)

    def _policy_input(
        self,
        epoch: int,
        step: int,
        *,
        detector: DetectorState | None = None,
        batch: BatchState | None = None,
        stage: TrainingStage | None = None,
    ) -> PolicyInput:
        """Return the policy's input without a report; states that are not given are those in
        force.
        """
        detector, stage = detector or self._detector, stage or self._stage
        growth = self._batch_growth(epoch, batch or self._batch)
        return PolicyInput(
            epoch=epoch,
            regime_by_layer=regimes_in_force(
                detector.regime_by_layer, growth=growth, fall=stage.fall
            ),
            ladder_by_layer=self._ladders,
            size_by_layer=self._sizes,
            rate_fall=stage.fall,
            most_local_steps=stage.round_length(self._config.local_steps, step),
            options=self._policy_options,
            state=self._policy_state,
        )

    def _sets_rate(self, *epochs: int) -> bool:
        held = (whole_model_override(self._resolved, epoch, target="lr") for epoch in epochs)
        return any(one is not None for one in held)

    def _batch_growth(self, epoch: int, batch: BatchState) -> float:
        held = whole_model_override(self._resolved, epoch, target="batch")
        return batch_growth(self._config.batch, batch.level, held=held)

    def _policy_levels(self, epoch: int, step: int) -> dict[str, Level]:
        return self._decide_levels(self._policy_input(epoch, step), step)

    def _decide_levels(self, policy_input: PolicyInput, step: int) -> dict[str, Level]:
        names = self._policy.decide_levels(policy_input)
        if self._config.warm_up and self._config.is_warming_up(step):
            names = dict.fromkeys(self._layers, self._config.warm_up.level)
        return {layer: self._level_named(layer, names.get(layer)) for layer in self._layers}

    def _pass_warm_up(self, report: Report) -> None:
        """End the warm-up if the report comes after its end and `end_warm_up` was not called."""
        if self._config.is_warming_up(self.decision.step) and not self._config.is_warming_up(
            report.step
        ):
            self.end_warm_up(epoch=report.epoch)

    def _level_named(self, layer: str, name: str | None) -> Level:
        levels = {level.name: level for level in (*self._ladders[layer], _DENSE, _HALF)}
        if name not in levels:
            raise ConfigError(
                f"policy {self._config.policy} chooses {name!r} for layer {layer}; known are"
                f" {', '.join(levels)}"
            )
        return levels[name]

    def _decision(
        self,
        *,
        epoch: int,
        step: int,
        cause: DecisionCause,
        reason: str,
        changes: Mapping[str, float | None] | None = None,
    ) -> Decision:
        held, now = overrides_by_layer(self._resolved, epoch), self._policy_input(epoch, step)
        growth = describe_growth(self._batch_growth(epoch, self._batch), now.rate_fall)
        if cause != "override":
            reason = "; ".join(filter(None, (reason, self._describe_overrides(epoch))))
        reason = "; ".join(filter(None, (reason, growth)))
        if self._config.warm_up and self._config.is_warming_up(step):
            reason = f"{reason}; {self._config.warm_up.describe()}"
        return Decision(
            epoch=epoch,
            step=step,
            cause=cause,
            reason=reason,
            regime_by_layer=dict(now.regime_by_layer),
            level_by_layer=dict(self.policy_levels)
            | {layer: item.level_by_layer[layer] for layer, item in held.items()},
            change_by_layer=dict(changes) if changes is not None else dict.fromkeys(self._layers),
            override_by_layer={layer: item.override.id for layer, item in held.items()},
            policy_level_by_layer={layer: self.policy_levels[layer] for layer in held},
            **batch_fields(
                self._config.batch,
                self._batch.level,
                held=whole_model_override(self._resolved, epoch, target="batch"),
            ),
            **local_steps_fields(
                self._policy.decide_local_steps(now),
                held=whole_model_override(self._resolved, epoch, target="local_steps"),
            ),
            **optimizer_fields(self._resolved, epoch),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    """Parsed state, not yet compared with this job."""

    number: int
    detector: DetectorState
    batch: BatchState
    policy: str
    policy_state: Mapping[str, Any]
    stage: TrainingStage
    overrides: tuple[Override, ...]
    starts: Mapping[str, int]
    asked: LastReport | None
    answer: Decision | None
    """Last answer; None if it is the decision in force."""
    decision: Decision


def _parse_state(state: Mapping[str, Any]) -> _Saved:
    try:
        return _Saved(
            number=int(state["number"]),
            detector=DetectorState(**state["detector"]),
            batch=_parse_batch_state(state["batch"]),
            policy=state["policy"]["name"],
            policy_state=dict(state["policy"]["state"]),
            stage=TrainingStage(**state["stage"]),
            overrides=tuple(_parse_override(item["override"]) for item in state["overrides"]),
            starts={item["override"]["id"]: int(item["start"]) for item in state["overrides"]},
            asked=LastReport(**state["asked"]) if state["asked"] else None,
            answer=decision_from_json(state["answer"]) if state["answer"] else None,
            decision=decision_from_json(state["decision"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"saved controller state cannot be read ({error!r}); pass what state_dict() returned"
        ) from error


def _parse_batch_state(data: Mapping[str, Any]) -> BatchState:
    return BatchState(**{**data, "detector": DetectorState(**data["detector"])})


def _parse_override(data: Mapping[str, Any]) -> Override:
    return Override(**{**data, "layers": tuple(data["layers"])})


def _add_report(bare: PolicyInput, report: Report, result: DetectorResult) -> PolicyInput:
    return replace(
        bare,
        cause=result.cause,
        world_size=report.world_size,
        global_batch=report.global_batch,
        change_by_layer=result.change_by_layer,
        statistic_by_layer=report.statistic_by_layer,
        rms_by_layer=report.rms_by_layer,
        sent_share_by_layer=report.sent_share_by_layer,
        cost_s_by_layer=report.cost_s_by_layer,
        local_steps=report.local_steps,
        exchange_wait_s=report.exchange_wait_s,
        step_s=report.step_s,
        beside_s=report.beside_s,
        link=report.link,
    )


__all__ = ["Controller"]
