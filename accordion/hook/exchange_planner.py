"""Measures the exchanges of rank 0's steps and proposes exchange plans; stdlib only.

Predictions propose a plan, and measurements confirm or revert it: the span of a step, from its
first complete bucket to the end of its last exchange, is remembered for every plan that was in
force.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from accordion.base.link_model import (
    CollectiveTiming,
    LinkModel,
    count_messages,
    fit_link,
    separates_latency,
    wire_bytes,
)
from accordion.base.messages import Decision
from accordion.hook.exchange_plan import BucketCost, LevelCost, Plan, choose_plan, predict_end
from accordion.hook.exchange_timing import (
    ExchangeTiming,
    Step,
    bucket_costs,
    collective_samples,
    median_span_s,
    median_step_s,
    median_wait_s,
)

_LEAST_ENCODE_SHARE = 0.25
"""Share of the slowest level's encoding below which a level tells nothing about how much longer
encoding takes beside training: handing a bucket over would count as a multiple of it.
"""
SETTLING_STEPS = 3
"""Steps after a change of plan or levels that are not measured: they allocate buffers."""
WINDOW_STEPS = 20
"""Steps in a measurement window."""
MAX_HOLD_STEPS = 320
"""Largest number of steps for which a plan is held, which doubles with every change of plan."""
MAX_KEPT_EXCHANGES = 2000
"""Number of timings that are kept; with more exchanges per step, a window has fewer steps."""
MIN_SAVING = 0.05
"""Fraction of the span that another plan must save; medians of 20 steps differ by less."""
MIN_SAVING_S = 0.0005
"""Seconds that another plan must save."""
PROBE_NOISE_S = 0.001
"""Seconds per message by which two probes of the same link differ on busy hosts."""
SPAN_CHANGE_FACTOR = 1.25
"""Factor by which the span of a plan must change before the remembered spans of other plans are
dropped: the link or the hosts have changed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A plan that should replace the one in force."""

    plan: Plan
    reason: str
    is_trial: bool = False
    """Whether the plan is only tried, because no model says whether it is faster."""

    def as_decision(self, before: Decision, *, epoch: int, step: int) -> Decision:
        """Return the decision that changes nothing but the exchange plan."""
        return replace(
            before,
            epoch=epoch,
            step=step,
            cause="link",
            reason=self.reason,
            change_by_layer=dict.fromkeys(before.change_by_layer),
            exchange_plan=self.plan,
        )


class ExchangePlanner:
    """Chooses the exchange plan of a session; it runs on rank 0.

    Args:
        world_size: number of workers, at least 2.
    """

    def __init__(self, world_size: int) -> None:
        self.link: LinkModel | None = None
        """Link in the last window; None before the first one ends."""
        self.wait_s: float | None = None
        """Seconds from the last gradient to the last average; None before a window ends."""
        self.step_s: float | None = None
        """Seconds of a whole step; None before a window ends."""
        self._world_size = world_size
        self._probe_s = 0.0
        """Last measured duration of a small all-reduce."""
        self._large_probe: CollectiveTiming | None = None
        """Bytes of the last large all-reduce; None if the bandwidth is fitted to the exchanges."""
        self._samples: list[CollectiveTiming] = []
        """Collectives of the last window."""
        self._latency_s: float | None = None
        """Latency from the last window whose payloads separated it from bandwidth."""
        self._reference_probe_s = 0.0
        """`_probe_s` in that window."""
        self._collectives: list[CollectiveTiming] = []
        self._step: list[ExchangeTiming] = []
        """Exchanges of the running step; the collectives are those of the running exchange."""
        self._plan: Plan = ()  # of the last step
        self._window: deque[Step] = deque(maxlen=WINDOW_STEPS)
        """Last steps with this plan and these levels."""
        self._steps_to_skip = SETTLING_STEPS
        self._observed = 0
        """Steps since the last evaluation."""
        self._held = 0
        """Measured steps with this plan."""
        self._hold_steps = WINDOW_STEPS
        """Steps after which another plan may be proposed."""
        self._before_trial: Plan | None = None
        """Plan before the one that is being tried; None if none is."""
        self._costs: list[BucketCost] = []
        """Costs by bucket in the last window."""
        self._encode_factor = 1.0
        """Seconds of encoding beside training, over those beside no other work."""
        self._first_spans: dict[Plan, float] = {}
        """First measured span of each plan in `_spans`."""
        self._spans: dict[Plan, float] = {}
        """Last measured spans by plan, in seconds."""

    @property
    def beside_s(self) -> float | None:
        """Seconds of a step in which it encoded beside the backward pass; None before a window
        ends.
        """
        if not self._costs:
            return None
        encode_s = sum(cost.encode_s for cost in self._costs[: -self._plan[-1]])
        return min(encode_s, self._costs[-1].ready_s)

    def set_probe(self, seconds: float, large: CollectiveTiming | None = None) -> None:
        """Set the measured durations of a small all-reduce between two steps, and of the bytes of
        a large one.

        The small one shows a change of latency if all collectives of a step have about the same
        payload. The large one gives the bandwidth: payloads of compressed gradients are too small
        to predict from them how long uncompressed gradients would take.
        """
        self._probe_s, self._large_probe = seconds, large
        if large is not None and self._samples:
            self.link = self._fit(self._samples)

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

    def restart_window(self) -> None:
        """Drop the measurements of earlier levels; called between steps when levels change."""
        self._window.clear()
        self._costs.clear()
        self._forget_spans()
        self._steps_to_skip, self._observed = SETTLING_STEPS, 0
        self.wait_s = self.step_s = None

    def observe_step(self, exchanges: Step) -> Proposal | None:
        """Observe a step's exchanges, in their order; return another plan if one is better."""
        plan = tuple(len(exchange.ready_s) for exchange in exchanges)
        if not plan:
            return None
        if plan != self._plan:
            self._plan, self._steps_to_skip, self._observed, self._held = plan, SETTLING_STEPS, 0, 0
            steps = max(1, min(WINDOW_STEPS, MAX_KEPT_EXCHANGES // len(plan)))
            self._window = deque(maxlen=steps)
        if self._steps_to_skip:
            self._steps_to_skip -= 1
            return None
        self._window.append(exchanges)
        self._observed += 1
        self._held += 1
        if self._observed < WINDOW_STEPS:
            return None
        self._observed = 0
        if self._before_trial == plan:  # the trial was proposed and never came into force
            self._before_trial = None
        proposal, before_trial = self._evaluate(), self._before_trial
        self._before_trial = None
        if proposal is None or (self._held < self._hold_steps and before_trial is None):
            return None
        self._before_trial = plan if proposal.is_trial else None
        if before_trial is None:
            self._hold_steps = min(2 * self._hold_steps, MAX_HOLD_STEPS)
        return proposal

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
        link, measured = self.link, self._costs
        if link is None or any(len(costs) != len(measured) for costs in levels.values()):
            return {}
        if in_force is not None:
            alone_s = {name: sum(cost.encode_s for cost in costs) for name, costs in levels.items()}
            training_s = sum(cost.encode_s for cost in measured)
            if alone_s[in_force] > _LEAST_ENCODE_SHARE * max(alone_s.values()) and training_s > 0.0:
                self._encode_factor = training_s / alone_s[in_force]
        waits = {}
        for name, costs in levels.items():
            expected = [
                replace(
                    bucket,
                    encode_s=self._encode_factor * cost.encode_s,
                    payloads=cost.payloads,
                )
                for bucket, cost in zip(measured, costs, strict=True)
            ]
            end = predict_end(expected, choose_plan(expected, link), link)
            waits[name] = end - expected[-1].ready_s
        return waits

    def _evaluate(self) -> Proposal | None:
        """Measure the window; propose the plan with the shortest span if it saves enough."""
        steps = list(self._window)
        self._samples = collective_samples(steps)
        if not self._samples:
            return None
        self.link = link = self._fit(self._samples)
        self.wait_s, self.step_s = median_wait_s(steps), median_step_s(steps)
        self._costs = bucket_costs(steps, self._costs)
        span_s = median_span_s(steps)
        self._remember_span(span_s)
        if self._before_trial is not None:
            return self._end_trial(self._before_trial, link, span_s=span_s)
        plan = choose_plan(self._costs, link)
        expected_s = self._spans.get(plan)
        if expected_s is None:
            now_s, then_s = (predict_end(self._costs, one, link) for one in (self._plan, plan))
            expected_s = max(0.0, span_s - now_s + then_s)
        fastest = min(self._spans, key=self._spans.__getitem__)
        if self._spans[fastest] < expected_s:
            plan, expected_s = fastest, self._spans[fastest]
        if not _saves_enough(span_s, expected_s):
            return self._propose_trial(link, span_s)
        reason = self._reason(plan, link, span_s=span_s, expected_s=expected_s)
        return Proposal(plan=plan, reason=reason)

    def _propose_trial(self, link: LinkModel, span_s: float) -> Proposal | None:
        """Propose to try one exchange after the backward pass, if that may be as fast.

        Where encoding and the backward pass share a processor, they delay each other, by more than
        the time of either: the model knows neither this nor what is left without it. At best, the
        gradients are complete earlier by all encoding that came before.
        """
        plan, beside_s = (len(self._costs),), self.beside_s or 0.0
        if plan in self._spans:
            return None
        now_s, then_s = (predict_end(self._costs, one, link) for one in (self._plan, plan))
        least_s = span_s - now_s + then_s - beside_s
        if beside_s < MIN_SAVING * span_s or least_s > (1.0 + MIN_SAVING) * span_s:
            return None
        reason = (
            f"{len(self._costs)} buckets of gradients are averaged in one exchange instead of"
            f" {len(self._plan)}, to measure whether encoding slows the backward pass down: of"
            f" {_format_ms(span_s)} from the first gradient to the last average,"
            f" {_format_ms(beside_s)} are encoding beside it"
        )
        return Proposal(plan=plan, reason=reason, is_trial=True)

    def _end_trial(self, former: Plan, link: LinkModel, *, span_s: float) -> Proposal | None:
        """Propose the fastest plan before the trial, unless the tried one saves enough; the former
        one, if nothing is left to compare with.
        """
        before = {plan: seconds for plan, seconds in self._spans.items() if plan != self._plan}
        if not before:
            reason = (
                f"{len(self._costs)} buckets of gradients are averaged in"
                f" {_count_exchanges(former)} again, because levels or the link changed while one"
                " exchange was tried"
            )
            return Proposal(plan=former, reason=reason)
        plan = min(before, key=before.__getitem__)
        if _saves_enough(before[plan], span_s):
            return None
        reason = self._reason(plan, link, span_s=span_s, expected_s=before[plan])
        return Proposal(plan=plan, reason=reason)

    def _fit(self, samples: Sequence[CollectiveTiming]) -> LinkModel:
        if self._large_probe is not None:
            sent = wire_bytes("all-reduce", self._large_probe.payload, self._world_size)
            speed = sent / self._large_probe.seconds
            return fit_link(samples, self._world_size, bytes_per_s=speed)
        if separates_latency(samples):
            link = fit_link(samples, self._world_size)
            self._latency_s, self._reference_probe_s = link.latency_s, self._probe_s
            return link
        messages = count_messages("all-reduce", self._world_size)
        if self._latency_s is None:
            latency_s = self._probe_s / messages
        else:
            # A message takes longer beside the backward pass than in a probe, on any link by about
            # as much, so the probe only shows the change.
            change_s = (self._probe_s - self._reference_probe_s) / messages
            latency_s = self._latency_s
            if abs(change_s) > PROBE_NOISE_S:
                latency_s = max(0.0, latency_s + change_s)
        return fit_link(samples, self._world_size, latency_s=latency_s)

    def _remember_span(self, span_s: float) -> None:
        smaller, larger = sorted((span_s, self._first_spans.setdefault(self._plan, span_s)))
        if larger > SPAN_CHANGE_FACTOR * smaller:
            self._forget_spans()
            self._first_spans[self._plan] = span_s
        self._spans[self._plan] = span_s

    def _forget_spans(self) -> None:
        self._spans.clear()
        self._first_spans.clear()

    def _reason(self, plan: Plan, link: LinkModel, *, span_s: float, expected_s: float) -> str:
        source = "measured" if plan in self._spans else "predicted"
        return (
            f"{len(self._costs)} buckets of gradients are averaged in {_count_exchanges(plan)}"
            f" instead of {len(self._plan)}: {source} {_format_ms(expected_s)} instead of"
            f" {_format_ms(span_s)} from the first gradient to the last average, at {link}"
        )


def _saves_enough(span_s: float, expected_s: float) -> bool:
    return span_s - expected_s > max(MIN_SAVING * span_s, MIN_SAVING_S)


def _count_exchanges(plan: Plan) -> str:
    return "one exchange" if len(plan) == 1 else f"{len(plan)} exchanges"


def _format_ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
