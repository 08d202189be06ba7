"""What rank 0 of a session decides, and from what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from accordion.base.messages import Decision, Override, Report
from accordion.config import Config
from accordion.decide.controller import Controller, Decider
from accordion.decide.override_types import check_types
from accordion.hook.exchange_planner import Proposal


class DecisionMaker:
    """Decides on reports and, at step boundaries, on the end of the warm-up or of the start before
    local steps, changed overrides and proposed exchange plans.
    """

    def __init__(self, config: Config, controller: Controller, decider: Decider | None) -> None:
        self._config, self._controller, self._decider = config, controller, decider
        self._overrides: tuple[Override, ...] = ()
        self._overrides_changed = False
        self.proposal: Proposal | None = None
        """Exchange plan to decide on at the next step boundary."""

    def replace_overrides(self, overrides: Sequence[Override]) -> None:
        """Replace the overrides from the next step boundary on; any thread may call this.

        Raises:
            OverrideError: an override names an unknown target, level or layer, or two have one id;
                the previous ones stay.
        """
        check_types(overrides)
        for override in overrides:
            self._controller.check_override(override)
        self._overrides, self._overrides_changed = tuple(overrides), True

    def decide_report(self, report: Report) -> Decision:
        """Return the decision on a report.

        Raises:
            Exception: the decider's own errors, or those of `Controller.decide`.
        """
        proposal = self._controller.decide(report)
        return proposal if self._decider is None else self._decider(report, proposal)

    def decide_at_boundary(self, current: Decision, *, epoch: int, step: int) -> Decision:
        """Return the decision on the end of the warm-up or of the start before local steps, changed
        overrides, or the proposed plan.
        """
        proposal, self.proposal = self.proposal, None
        ends_warm_up = self._config.ends_warm_up(step)
        # The decision at the end of the warm-up, or on overrides, has the new length of rounds too.
        if self._config.ends_start(step) and not (ends_warm_up or self._overrides_changed):
            return self._controller.end_start(epoch=epoch, step=step)
        if ends_warm_up:
            # A plan that was measured at the warm-up's levels says nothing about those that follow.
            decision, proposal = self._controller.end_warm_up(epoch=epoch), None
            if not self._overrides_changed:
                return decision
        if proposal is None or self._overrides_changed:
            self._overrides_changed = False
            decision = self._controller.override(self._overrides, epoch=epoch, step=step)
        else:
            decision = proposal.as_decision(current, epoch=epoch, step=step)
        return decision if proposal is None else replace(decision, exchange_plan=proposal.plan)
