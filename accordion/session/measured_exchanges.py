"""Measured exchanges of a session: its link, its exchange plan, and the costs of its levels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from accordion.base.link_model import LinkModel
from accordion.base.messages import Decision, LayerInfo, Level
from accordion.compress.layer_stacks import Layer
from accordion.hook.exchange_plan import LevelCost, Plan
from accordion.hook.exchange_planner import ExchangePlanner, Proposal
from accordion.hook.exchange_scheduler import Exchange
from accordion.hook.gradient_source import GradientSource
from accordion.hook.level_costs import measure_levels, share_waits
from accordion.session.coordination import Coordinator
from accordion.session.local_rounds import Rounds
from accordion.session.round_times import RoundTime


class MeasuredExchanges:
    """Times the exchanges of a session; where they follow plans, it also measures the link and
    proposes a plan.

    All ranks probe the link together. The planner is on rank 0.

    Args:
        source: whose gradients are exchanged.
        rounds: those of the session.
        coordinator: probes the link.
        plans: plans of levels whose costs reports contain, by name; empty if the policy uses none.
    """

    def __init__(
        self,
        source: GradientSource,
        rounds: Rounds,
        coordinator: Coordinator,
        *,
        plans: Mapping[str, Mapping[str, Level]],
    ) -> None:
        self.receive_s_by_rank: tuple[float, ...] = ()
        """Seconds that 64 KiB lately took from the rank before to each rank; empty while it is not
        measured.
        """
        self._rounds, self._coordinator = rounds, coordinator
        self._plans = plans
        self._exchanges, self._gradient_bytes = source.exchanges, source.gradient_bytes
        self.follows_plans = self._exchanges is not None and self._exchanges.can_plan
        """Whether exchanges follow a plan, and the link is measured."""
        self._planner: ExchangePlanner | None = None
        self._level_costs: dict[str, list[LevelCost]] | None = None
        self._buckets: list[tuple[Layer, ...]] = []
        """Layers of the running step's buckets, as long as levels are to be measured with them."""
        self._last_buckets: list[tuple[Layer, ...]] = []
        """Layers of the last step's buckets."""
        exchanges = self._exchanges
        if exchanges is not None and exchanges.can_plan and coordinator.rank == 0:
            self._planner = ExchangePlanner(exchanges.network.world_size)
            exchanges.network.on_collective = self._planner.add_collective
            exchanges.on_exchange = partial(self._add_exchange, self._planner)

    @property
    def plan(self) -> Plan:
        """Plan that the exchanges follow."""
        return () if self._exchanges is None else self._exchanges.exchange_plan

    def follow_decision(self, decision: Decision, *, before: Mapping[str, Level]) -> None:
        """Follow a decision's plan from the next step on, before rounds change.

        Measurements of other levels, those in force `before`, are dropped, and those of gradients
        when rounds begin or end.
        """
        changes_rounds = (decision.local_steps > 1) != (self._rounds.length > 1)
        if self._planner is not None and (decision.level_by_layer != before or changes_rounds):
            self._planner.restart_window()
        if self._exchanges is not None:
            self._exchanges.exchange_plan = decision.exchange_plan

    @property
    def waited_s(self) -> float:
        """Seconds for which training waited for exchanges, encoding included; on GPUs, only the
        host's time.
        """
        return 0.0 if self._exchanges is None else self._exchanges.waited_s

    @property
    def encoded_s(self) -> float:
        """Part of `waited_s` in which gradients were encoded and decoded instead of sent."""
        return 0.0 if self._exchanges is None else self._exchanges.encoded_s

    @property
    def link(self) -> LinkModel | None:
        """Measured network; None on ranks without a planner, and before it is measured."""
        return None if self._planner is None else self._planner.link

    def probe_link(self) -> None:
        """Measure the link between two steps; all ranks call this together."""
        if not self.follows_plans:
            return
        latency_s, large = self._coordinator.probe_latency(), None
        if self._plans:
            large = self._coordinator.probe_bandwidth(self.waited_s, self._gradient_bytes)
        if self._planner is not None:
            self._planner.set_probe(latency_s, large)
        self.receive_s_by_rank = self._coordinator.probe_neighbors()

    def propose_plan(self) -> Proposal | None:
        """Return a better exchange plan, if the planner found one; called once after each step."""
        return None if self._planner is None else self._planner.end_step()

    def report_fields(
        self, layers: Sequence[LayerInfo], *, in_force: Mapping[str, Level]
    ) -> dict[str, Any]:
        """Return the fields of a report that this rank measured; empty like `link`.

        All ranks call this together. `in_force` has the levels of the last window. If there are
        plans, the first call that finds a measured link takes up to `level_costs.MAX_SECONDS`.
        """
        rounds, planner = self._measured_rounds(), self._planner
        if planner is None or planner.link is None:
            return rounds
        waits = self._predict_waits(planner, planner.link, in_force) if self._plans else {}
        return {
            "cost_s_by_layer": share_waits(waits, layers),
            "exchange_wait_s": planner.wait_s,
            "step_s": planner.step_s,
            "beside_s": planner.beside_s,
            "link": planner.link.speed(),
            **rounds,
        }

    def _measured_rounds(self) -> dict[str, float]:
        """Return a report's fields about rounds, the same on all ranks; empty without local steps.

        The slowest worker waits for no other, so its exchange is the shortest. Asking all workers
        sends a message, so only a policy with costs is told.
        """
        own = self._rounds.median_times()
        if own is None or not self._plans:
            return {}
        texts = self._coordinator.gather_texts(json.dumps(asdict(own)))
        times = [RoundTime(**json.loads(text)) for text in texts]
        wait_s = min(one.exchange_s for one in times) / self._rounds.length
        return {
            "exchange_wait_s": wait_s,
            "step_s": wait_s + max(one.step_s for one in times),
        }

    def _predict_waits(
        self, planner: ExchangePlanner, link: LinkModel, in_force: Mapping[str, Level]
    ) -> dict[str, float]:
        """Return the seconds for which a step would wait for exchanges at each plan of levels."""
        if self._level_costs is None:
            self._level_costs = measure_levels(
                self._last_buckets, self._plans, world_size=link.world_size
            )
            self._last_buckets = []  # it would hold a step's gradients
        names = (name for name, plan in self._plans.items() if plan == in_force)
        return planner.predict_waits(self._level_costs, in_force=next(names, None))

    def _add_exchange(self, planner: ExchangePlanner, exchange: Exchange) -> None:
        if self._plans and self._level_costs is None:
            self._buckets += [bucket.layers for bucket in exchange.buckets]
            if exchange.is_last:
                self._last_buckets, self._buckets = self._buckets, []
        planner.add_exchange(
            exchange.ready_s,
            [bucket.buffer.numel() for bucket in exchange.buckets],
            started_s=exchange.started_s,
            ended_s=exchange.ended_s,
        )
