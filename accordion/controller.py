"""Detector, policy and overrides in one place: reports in, decisions out; stdlib only.

    controller = Controller(config, layers)
    decision = controller.decide(report)

Runs wherever it is put: in the Accordion actor for all jobs, and on rank 0 where that actor does not answer. Both give
the same answers to the same reports.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from accordion.config import Config
from accordion.detector import DetectorState, init_detector, update_detector
from accordion.errors import OverrideError, ReportError, StateError
from accordion.messages import (
    Decision,
    DecisionCause,
    LayerInfo,
    Level,
    Override,
    Report,
    decision_from_json,
    to_json,
)
from accordion.overrides import Placed, first_epoch, overlay, place
from accordion.policies import POLICIES

_SHOWN_ID = 13
"""Characters of an override's id in a sentence; the first 13 of a time-ordered UUID are its millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The last report, as little of it as tells whether another is the same, newer or older."""

    epoch: int
    step: int
    epoch_end: bool
    digest: str
    """Of everything in the report; it may hold NaN, which is equal to nothing and no JSON."""

    @property
    def order(self) -> tuple[int, int, bool]:
        return (self.epoch, self.step, self.epoch_end)


class Controller:
    """Decides the level of every layer.

    Args:
        config: the library's settings.
        layers: the layers that decisions speak of, those of two or more dimensions.
    """

    def __init__(self, config: Config, layers: Sequence[LayerInfo]) -> None:
        self.number = 0
        """Decisions made from reports so far."""
        self._config = config
        self._layers = tuple(layer.name for layer in layers)
        self._rungs = {level.name: level for level in config.ladder()}
        self._detector = init_detector(self._layers)
        self._placed: tuple[Placed, ...] = ()
        self._asked: _Asked | None = None
        self.policy_levels: Mapping[str, Level] = self._policy_levels(epoch=0)
        """What the policy alone would pick now."""
        self.decision = self._decision(epoch=0, step=0, cause="start", reason="a run starts critical")
        """In force."""
        self._answer = self.decision

    def decide(self, report: Report) -> Decision:
        """What holds after this report.

        The same report again gives the same answer, whatever happened in between.

        Raises:
            ReportError: the report is older than the last one, contradicts it, or is not of this model.
        """
        asked = _asked(report)
        if asked == self._asked:
            return self._answer
        self._check_order(asked)
        self._detector, result = update_detector(self._detector, report, self._config.detector)
        self._asked = asked
        self.number += 1
        epoch = report.epoch + 1 if report.epoch_end else report.epoch
        self.policy_levels = self._policy_levels(epoch)
        self.decision = self._answer = self._decision(
            epoch=epoch, step=report.step, cause=result.cause, reason=result.reason, changes=result.change_by_layer
        )
        return self.decision

    def check_override(self, override: Override) -> None:
        """Accept an override, or say why it cannot be applied.

        Raises:
            OverrideError: it names a level or a layer that this job does not have, or epochs that hold nothing.
        """
        place(override, self._config, self._layers, start=0)

    def override(self, overrides: Sequence[Override], *, epoch: int, step: int) -> Decision:
        """What holds from `step` of `epoch` on, with these overrides in place of the former ones.

        "Next epoch" is counted from the epoch in which an id is seen first.

        Raises:
            OverrideError: one of them cannot be applied; the former ones stay.
        """
        starts = {item.override.id: item.start for item in self._placed}
        self._placed = self._place(overrides, {o.id: starts.get(o.id, first_epoch(o, epoch)) for o in overrides})
        self.policy_levels = self._policy_levels(epoch)
        self.decision = self._decision(epoch=epoch, step=step, cause="override", reason=self._override_reason(epoch))
        return self.decision

    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs, as JSON."""
        return {
            "number": self.number,
            "detector": asdict(self._detector),
            "overrides": [{"start": item.start, "override": to_json(item.override)} for item in self._placed],
            "asked": asdict(self._asked) if self._asked else None,
            "answer": None if self._answer is self.decision else to_json(self._answer),
            "decision": to_json(self.decision),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another controller of the same settings and layers was saved.

        Raises:
            StateError: the state is of another model, or none of ours; nothing is changed then.
        """
        saved = _read(state)
        self._check_layers(saved.detector)
        try:
            placed = self._place(saved.overrides, saved.starts)
        except OverrideError as error:
            raise StateError(f"saved controller state does not fit this job: {error}") from error
        regimes = {layer: saved.detector.regime_by_layer[layer] for layer in self._layers}
        self._detector = replace(saved.detector, regime_by_layer=regimes)
        self._placed, self._asked, self.number = placed, saved.asked, saved.number
        self._answer, self.decision = saved.answer or saved.decision, saved.decision
        self.policy_levels = self._policy_levels(saved.decision.epoch)

    def _place(self, overrides: Sequence[Override], starts: Mapping[str, int]) -> tuple[Placed, ...]:
        return tuple(place(item, self._config, self._layers, start=starts[item.id]) for item in overrides)

    def _check_order(self, asked: _Asked) -> None:
        last = self._asked
        if last is not None and asked.order <= last.order:
            raise ReportError(
                f"gradient report of epoch {asked.epoch}, step {asked.step} does not come after the last one, of epoch "
                f"{last.epoch}, step {last.step}; reports only go forward, load an older state to go back"
            )

    def _check_layers(self, detector: DetectorState) -> None:
        saved, ours = set(detector.regime_by_layer), set(self._layers)
        if saved != ours:
            raise StateError(
                f"saved controller state is of another model: missing {sorted(ours - saved)}, "
                f"unexpected {sorted(saved - ours)}; load it into the model it was saved from"
            )

    def _override_reason(self, epoch: int) -> str:
        held = overlay(self._placed, epoch)
        if not held:
            return f"no override holds in epoch {epoch}: the policy decides"
        counts = Counter(item.override.id for item in held.values())
        return "; ".join(
            f"override {_shown(item.override.id)} holds {counts[item.override.id]} of {len(self._layers)} layers at "
            f"{item.level.name}{'' if item.override.until is None else f' until epoch {item.override.until}'}"
            for item in self._placed
            if item.override.id in counts
        )

    def _policy_levels(self, epoch: int) -> dict[str, Level]:
        choose = POLICIES[self._config.policy].choose
        names = choose(self._detector.regime_by_layer, epoch, self._config.policy_options)
        return {layer: self._rungs[name] for layer, name in names.items()}

    def _decision(
        self,
        *,
        epoch: int,
        step: int,
        cause: DecisionCause,
        reason: str,
        changes: Mapping[str, float | None] | None = None,
    ) -> Decision:
        held = overlay(self._placed, epoch)
        if held and cause != "override":
            reason = f"{reason}; {self._override_reason(epoch)}"
        return Decision(
            epoch=epoch,
            step=step,
            cause=cause,
            reason=reason,
            regime_by_layer=dict(self._detector.regime_by_layer),
            level_by_layer=dict(self.policy_levels) | {layer: item.level for layer, item in held.items()},
            change_by_layer=dict(changes) if changes is not None else dict.fromkeys(self._layers),
            override_by_layer={layer: item.override.id for layer, item in held.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    """A saved state, read but not yet compared with this job."""

    number: int
    detector: DetectorState
    overrides: tuple[Override, ...]
    starts: Mapping[str, int]
    asked: _Asked | None
    answer: Decision | None
    """None where it is the decision in force."""
    decision: Decision


def _read(state: Mapping[str, Any]) -> _Saved:
    try:
        return _Saved(
            number=int(state["number"]),
            detector=DetectorState(**state["detector"]),
            overrides=tuple(_override(item["override"]) for item in state["overrides"]),
            starts={item["override"]["id"]: int(item["start"]) for item in state["overrides"]},
            asked=_Asked(**state["asked"]) if state["asked"] else None,
            answer=decision_from_json(state["answer"]) if state["answer"] else None,
            decision=decision_from_json(state["decision"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"saved controller state cannot be read ({error!r}); give what state_dict() gave") from error


def _override(data: Mapping[str, Any]) -> Override:
    return Override(**{**data, "layers": tuple(data["layers"])})


def _asked(report: Report) -> _Asked:
    """Whole numbers become floats first: a report that went through JSON is the same report."""
    statistics = report.statistic_by_layer
    content = asdict(report) | {
        "lr": float(report.lr),
        "next_lr": float(report.next_lr),
        "statistic_by_layer": statistics and {layer: float(value) for layer, value in statistics.items()},
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return _Asked(epoch=report.epoch, step=report.step, epoch_end=report.epoch_end, digest=digest)


__all__ = ["Controller"]


def _shown(override_id: str) -> str:
    """As much of an id as tells two of them apart for people."""
    return override_id[:_SHOWN_ID]
