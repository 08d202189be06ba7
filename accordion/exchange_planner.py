"""Measures the exchanges of rank 0's steps and proposes exchange plans; stdlib only.

A plan is proposed from predictions and kept only if the measurement confirms it: `span`, the time
from the first complete bucket to the end of the last exchange, is remembered for every plan that
was tried, and a plan that turns out slower than another one is given up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles

from accordion.exchange_plan import BucketCost, LevelCost, Plan, choose_plan, predict_end
from accordion.link_model import (
    CollectiveKind,
    CollectiveTiming,
    Ring,
    count_messages,
    fit_ring,
    separates_latency,
)

SETTLING_STEPS = 3
"""Steps after a change of plan that are not measured."""
WINDOW_STEPS = 20
"""Steps between two looks at the plan; doubled with every change, up to `LONGEST_WINDOW`."""
LONGEST_WINDOW = 320
PROBE_NOISE_S = 0.002
"""Seconds by which two probes of the same link differ on busy hosts."""
LEAST_SAVING = 0.05
"""Part of the span by which another plan must be shorter."""
LEAST_SAVING_S = 0.0005
"""Seconds by which another plan must be shorter."""
OTHER_NETWORK = 1.5
"""Factor by which the predicted seconds of a step's collectives, each bucket's alone, change when
remembered spans no longer hold: another link, or other levels.
"""

_Collective = tuple[CollectiveKind, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeTiming:
    """One measured exchange."""

    ready_s: tuple[float, ...]
    """When each of its buckets was handed over, by `time.perf_counter`."""
    values: tuple[int, ...]
    """Values of each bucket."""
    started_s: float
    ended_s: float
    collectives: tuple[CollectiveTiming, ...]
    """Its collectives in their order."""

    @property
    def encode_s(self) -> float:
        """Seconds outside collectives."""
        return self.ended_s - self.started_s - sum(item.seconds for item in self.collectives)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A plan that should replace the one in force."""

    plan: Plan
    reason: str


class ExchangePlanner:
    """Chooses the exchange plan of a session; it runs on rank 0.

    Args:
        world_size: number of workers, at least 2.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._probe_s = 0.0
        """Last measured duration of an empty all-reduce."""
        self._latency_s: float | None = None
        """Latency when a window last told it from bandwidth."""
        self._probe_then_s = 0.0
        """`_probe_s` at that time."""
        self._collectives: list[CollectiveTiming] = []
        """Collectives of the running exchange."""
        self._step: list[ExchangeTiming] = []
        """Exchanges of the running step."""
        self._plan: Plan = ()
        self._window: list[Sequence[ExchangeTiming]] = []
        self._to_skip = SETTLING_STEPS
        self._window_steps = WINDOW_STEPS
        self._costs: list[BucketCost] = []
        """Costs by bucket in the last window."""
        self.ring: Ring | None = None
        """Network in the last window; None before the first one."""
        self.wait_s: float | None = None
        """Measured seconds from the last gradient to the last average; None before the first
        window ends.
        """
        self._encode_factor = 1.0
        """Seconds of encoding in training, over those beside no other work."""
        self._network_s = 0.0
        """Predicted seconds of a step's collectives when `_spans` was last emptied."""
        self._spans: dict[Plan, float] = {}
        """Measured spans by plan, in seconds."""

    def set_probe(self, seconds: float) -> None:
        """Set the measured duration of an empty all-reduce between two steps.

        It shows a change of the latency when all collectives of a step have about the same size.
        """
        self._probe_s = seconds

    def add_collective(self, timing: CollectiveTiming) -> None:
        """Add a collective of the running exchange."""
        self._collectives.append(timing)

    def add_exchange(
        self,
        ready_s: Sequence[float],
        values: Sequence[int],
        *,
        started_s: float,
        ended_s: float,
    ) -> None:
        """Add an exchange of the running step, with the collectives that were added before."""
        collectives, self._collectives = self._collectives, []
        self._step.append(
            ExchangeTiming(
                ready_s=tuple(ready_s),
                values=tuple(values),
                started_s=started_s,
                ended_s=ended_s,
                collectives=tuple(collectives),
            )
        )

    def end_step(self) -> Proposal | None:
        """End the step whose exchanges were added; return another plan if one is better."""
        exchanges, self._step = self._step, []
        return self.observe_step(exchanges)

    def observe_step(self, exchanges: Sequence[ExchangeTiming]) -> Proposal | None:
        """Observe a step's exchanges, in their order; return another plan if one is better."""
        plan = tuple(len(exchange.ready_s) for exchange in exchanges)
        if sum(plan) < 2:
            return None
        if plan != self._plan:
            self._plan, self._to_skip = plan, SETTLING_STEPS
            self._window.clear()
        if self._to_skip:
            self._to_skip -= 1
            return None
        self._window.append(exchanges)
        if len(self._window) < self._window_steps:
            return None
        proposal = self._close_window()
        self._window.clear()
        if proposal is not None:
            self._window_steps = min(2 * self._window_steps, LONGEST_WINDOW)
        return proposal

    def _close_window(self) -> Proposal | None:
        ring = self._measure(list(zip(*self._window, strict=True)))
        if ring is None:
            return None
        self.ring = ring
        self.wait_s = median(step[-1].ended_s - step[-1].ready_s[-1] for step in self._window)
        self._remember_span(ring)
        measured = self._spans[self._plan]
        plan = choose_plan(self._costs, ring)
        expected = self._spans.get(plan)
        if expected is None:
            saved = predict_end(self._costs, self._plan, ring) - predict_end(
                self._costs, plan, ring
            )
            expected = max(0.0, measured - saved)
        tried = min(self._spans, key=lambda tried: self._spans[tried])
        if self._spans[tried] < expected:
            plan, expected = tried, self._spans[tried]
        if measured - expected <= max(LEAST_SAVING * measured, LEAST_SAVING_S):
            return None
        return Proposal(
            plan=plan, reason=self._reason(plan, ring, measured_s=measured, expected_s=expected)
        )

    def predict_waits(
        self, levels: Mapping[str, Sequence[LevelCost]], *, in_force: str | None
    ) -> dict[str, float]:
        """Return the seconds for which a step would wait for exchanges at each of several levels.

        Args:
            levels: costs of every bucket, by the level's name.
            in_force: name of the level that all layers had in the last window; None if they had
                several.

        Returns:
            Seconds by the level's name; empty before a window was measured with as many buckets.
        """
        ring, measured = self.ring, self._costs
        if ring is None or any(len(costs) != len(measured) for costs in levels.values()):
            return {}
        if in_force is not None:
            alone_s = sum(cost.encode_s for cost in levels[in_force])
            training_s = sum(cost.encode_s for cost in measured)
            if alone_s > 0.0 and training_s > 0.0:
                self._encode_factor = training_s / alone_s
        waits = {}
        for name, costs in levels.items():
            expected = [
                BucketCost(
                    ready_s=bucket.ready_s,
                    encode_s=self._encode_factor * cost.encode_s,
                    payloads=cost.payloads,
                )
                for bucket, cost in zip(measured, costs, strict=True)
            ]
            end = predict_end(expected, choose_plan(expected, ring), ring)
            waits[name] = end - expected[-1].ready_s
        return waits

    def _measure(self, places: Sequence[Sequence[ExchangeTiming]]) -> Ring | None:
        """Measure the link and every bucket's costs; return None if nothing was sent.

        `places` are the window's exchanges by place in the step.
        """
        names = [_collectives_of(exchanges) for exchanges in places]
        samples = [timing for timings in names for timing in timings.values()]
        if not samples:
            return None
        ring = self._fit(samples)
        before, costs = self._costs, list[BucketCost]()
        firsts = [step[0].ready_s[0] for step in zip(*places, strict=True)]
        for exchanges, timings in zip(places, names, strict=True):
            known = before[len(costs) : len(costs) + len(exchanges[0].values)]
            costs += _split_costs(exchanges, timings, known=known, firsts=firsts)
        self._costs = costs
        return ring

    def _fit(self, samples: Sequence[CollectiveTiming]) -> Ring:
        if separates_latency(samples):
            ring = fit_ring(samples, self._world_size)
            self._latency_s, self._probe_then_s = ring.latency_s, self._probe_s
            return ring
        messages = count_messages("all-reduce", self._world_size)
        if self._latency_s is None:
            latency_s = self._probe_s / messages
        else:
            # Beside the backward pass a message takes longer than the probe, by about as much
            # whatever the link.
            change_s = self._probe_s - self._probe_then_s
            changed = abs(change_s) > PROBE_NOISE_S
            latency_s = max(0.0, self._latency_s + changed * change_s / messages)
        return fit_ring(samples, self._world_size, latency_s=latency_s)

    def _remember_span(self, ring: Ring) -> None:
        network_s = sum(
            ring.seconds_for(kind, payload)
            for cost in self._costs
            for (kind, _), payload in cost.payloads.items()
        )
        smaller, larger = sorted((network_s, self._network_s))
        if larger > OTHER_NETWORK * smaller:
            self._spans.clear()
            self._network_s = network_s
        self._spans[self._plan] = median(
            step[-1].ended_s - step[0].ready_s[0] for step in self._window
        )

    def _reason(self, plan: Plan, ring: Ring, *, measured_s: float, expected_s: float) -> str:
        source = "measured" if plan in self._spans else "predicted"
        return (
            f"{len(self._costs)} buckets of gradients are averaged in {_count_exchanges(plan)}"
            f" instead of {len(self._plan)}: {source} {_format_ms(expected_s)} instead of"
            f" {_format_ms(measured_s)} from the first gradient to the last average, at {ring}"
        )


def _collectives_of(exchanges: Sequence[ExchangeTiming]) -> dict[_Collective, CollectiveTiming]:
    """Return the collectives of one place in the step, with their mean payload and lower quartile
    of the seconds, which excludes most waiting for other workers.
    """
    found: dict[_Collective, list[CollectiveTiming]] = {}
    for exchange in exchanges:
        for timing in exchange.collectives:
            found.setdefault((timing.kind, timing.name), []).append(timing)
    return {
        collective: CollectiveTiming(
            kind=collective[0],
            name=collective[1],
            payload=fmean(timing.payload for timing in timings),
            seconds=_lower_quartile([timing.seconds for timing in timings]),
        )
        for collective, timings in found.items()
    }


def _split_costs(
    exchanges: Sequence[ExchangeTiming],
    timings: Mapping[_Collective, CollectiveTiming],
    *,
    known: Sequence[BucketCost],
    firsts: Sequence[float],
) -> list[BucketCost]:
    """Share out the costs of one exchange among its buckets.

    They are shared in proportion to the known costs of the buckets, or else to their values.
    """
    values = exchanges[0].values
    encode_s = max(0.0, median(exchange.encode_s for exchange in exchanges))
    encode = _share(encode_s, [cost.encode_s for cost in known], values)
    payloads: list[dict[_Collective, float]] = [{} for _ in values]
    for collective, timing in timings.items():
        weights = [cost.payloads.get(collective, 0.0) for cost in known]
        shares = _share(timing.payload, weights, values)
        for bucket, share in zip(payloads, shares, strict=True):
            if share > 0.0:
                bucket[collective] = share
    return [
        BucketCost(
            ready_s=median(
                exchange.ready_s[place] - first
                for exchange, first in zip(exchanges, firsts, strict=True)
            ),
            encode_s=encode[place],
            payloads=payloads[place],
        )
        for place in range(len(values))
    ]


def _share(total: float, known: Sequence[float], values: Sequence[int]) -> list[float]:
    weights = known if len(known) == len(values) and sum(known) > 0.0 else values
    whole = sum(weights)
    return [total * weight / whole for weight in weights]


def _lower_quartile(values: Sequence[float]) -> float:
    return quantiles(values, n=4, method="inclusive")[0] if len(values) > 1 else values[0]


def _count_exchanges(plan: Plan) -> str:
    return "one exchange" if len(plan) == 1 else f"{len(plan)} exchanges"


def _format_ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
