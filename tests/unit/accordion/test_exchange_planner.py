"""The planner beside simulated training, whose link and buckets are known."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

import pytest

from accordion.base.link_model import WHOLE_BUCKET, CollectiveTiming, LinkModel
from accordion.hook.exchange_plan import LevelCost, Plan
from accordion.hook.exchange_planner import (
    MAX_HOLD_STEPS,
    SETTLING_STEPS,
    WINDOW_STEPS,
    ExchangePlanner,
    Proposal,
)
from accordion.hook.exchange_timing import ExchangeTiming

LATE = LinkModel(world_size=2, latency_s=0.008, bytes_per_s=5e6)
FAST = LinkModel(world_size=2, latency_s=1e-5, bytes_per_s=1e9)
ONE_LOOK = SETTLING_STEPS + WINDOW_STEPS


@dataclass
class Training:
    """Training of two workers whose clock this test moves."""

    link: LinkModel
    buckets: int = 9
    backward_s: float = 0.05
    """Seconds from one bucket to the next."""
    encode_s: float = 0.002
    payload: int = 10_000
    payload_ratio: int = 3
    """Payload of the second round, over that of the first."""
    joined_penalty_s: float = 0.0
    """Seconds that joining two buckets costs and that no model knows of."""
    slowed_s: float | None = None
    """Seconds that encoding a bucket beside the backward pass costs besides its own; None: it has a
    processor of its own.
    """
    plan: Plan = ()
    steps: int = 0
    now: float = 100.0
    proposals: list[Proposal] = field(default_factory=list)
    planner: ExchangePlanner = field(default_factory=lambda: ExchangePlanner(2))

    def __post_init__(self) -> None:
        self.plan = self.plan or (1,) * self.buckets
        self.probe()

    def probe(self) -> None:
        """Time an empty all-reduce, as sessions do at `attach` and after each decision."""
        self.planner.set_probe(self.link.seconds_for("all-reduce", 0))

    def train(self, steps: int) -> None:
        for _ in range(steps):
            proposal = self.planner.observe_step(self.step())
            if proposal is not None:
                self.proposals.append(proposal)
                self.plan = proposal.plan

    def step(self) -> list[ExchangeTiming]:
        self.steps += 1
        ready = [self.now + place * self.backward_s for place in range(self.buckets)]
        exchanges, start, end = [], 0, self.now
        for stop in accumulate(self.plan):
            if self.slowed_s is not None:
                delay_s = (stop - start) * (self.encode_s + self.slowed_s)
                ready[stop:] = [at + delay_s for at in ready[stop:]]
            begin = max(end, ready[stop - 1])
            exchanges.append(self.exchange(tuple(ready[start:stop]), begin))
            start, end = stop, exchanges[-1].ended_s
        self.now = end + 0.1
        return exchanges

    def exchange(self, ready_s: tuple[float, ...], begin: float) -> ExchangeTiming:
        number = len(ready_s)
        collectives = tuple(
            CollectiveTiming(
                kind="all-reduce",
                name=name,
                payload=number * size,
                seconds=self.link.seconds_for("all-reduce", number * size),
            )
            for name, size in (
                ("mean 0", self.payload),
                ("mean 1", self.payload_ratio * self.payload),
            )
        )
        seconds = sum(item.seconds for item in collectives) + number * self.encode_s
        return ExchangeTiming(
            ready_s=ready_s,
            values=(1000,) * number,
            started_s=begin,
            ended_s=begin + seconds + (number - 1) * self.joined_penalty_s,
            collectives=collectives,
        )


def test_on_a_link_with_latency_the_buckets_join_after_one_window():
    training = Training(LATE, backward_s=0.001)
    training.train(ONE_LOOK - 1)
    assert not training.proposals
    training.train(1)
    assert training.plan == (9,)
    reason = training.proposals[0].reason
    assert "9 buckets of gradients are averaged in one exchange instead of 9" in reason
    assert "40 Mbit/s and 8 ms per message" in reason


def test_where_the_backward_pass_hides_the_exchanges_nothing_changes():
    training = Training(FAST)
    training.train(5 * ONE_LOOK)
    assert not training.proposals
    assert training.plan == (1,) * 9


def test_a_plan_that_was_confirmed_stays():
    training = Training(LATE, backward_s=0.001)
    training.train(40 * ONE_LOOK)
    assert len(training.proposals) == 1


def test_a_plan_that_turns_out_slower_is_given_up_for_good():
    training = Training(LATE, backward_s=0.001, joined_penalty_s=0.1)
    training.train(40 * ONE_LOOK)
    first, back, *others = training.proposals
    assert first.plan != (1,) * 9
    assert back.plan == (1,) * 9
    assert "measured" in back.reason
    assert training.plan == (1,) * 9
    assert not others


ENCODING = {"backward_s": 0.01, "encode_s": 0.009}
"""Encoding takes about as long as the backward pass."""


def test_one_exchange_is_tried_where_encoding_and_backward_share_a_processor():
    """Encoding and the backward pass slow each other down by 4 ms a bucket."""
    training = Training(FAST, **ENCODING, slowed_s=0.004)
    training.train(ONE_LOOK)
    [trial] = training.proposals
    assert (trial.plan, trial.is_trial) == ((9,), True)
    assert "72 ms are encoding beside it" in trial.reason
    training.train(40 * ONE_LOOK)
    assert training.plan == (9,)
    assert len(training.proposals) == 1


@pytest.mark.parametrize("slowed_s", [0.0, 0.0005])
def test_one_exchange_that_saves_too_little_is_given_up_after_a_window(slowed_s):
    training = Training(FAST, **ENCODING, slowed_s=slowed_s)
    training.train(2 * ONE_LOOK)
    assert [proposal.plan for proposal in training.proposals] == [(9,), (1,) * 9]
    training.train(40 * ONE_LOOK)
    assert training.plan == (1,) * 9
    assert len(training.proposals) == 2


def test_a_trial_during_which_levels_change_ends_with_the_plan_before_it():
    training = Training(FAST, **ENCODING, slowed_s=0.004)
    training.train(ONE_LOOK + 5)
    assert training.plan == (9,)
    training.planner.restart_window()
    training.train(ONE_LOOK)
    assert training.plan == (1,) * 9
    assert "levels or the link changed" in training.proposals[-1].reason


def test_a_trial_that_never_came_into_force_does_not_end():
    """At the end of a warm-up, the proposal before it is dropped."""
    training = Training(FAST, **ENCODING, slowed_s=0.004)
    training.train(ONE_LOOK - 1)
    assert training.planner.observe_step(training.step()).is_trial
    training.planner.restart_window()
    training.train(ONE_LOOK)
    assert [proposal.is_trial for proposal in training.proposals] == [True]


@pytest.mark.parametrize(
    ("link", "encode_s"),
    [(LinkModel(world_size=2, latency_s=1e-5, bytes_per_s=4e6), 0.009), (FAST, 0.0005)],
    ids=["slow link", "little encoding"],
)
def test_one_exchange_is_not_tried_where_it_cannot_be_faster(link, encode_s):
    training = Training(link, backward_s=0.02, encode_s=encode_s, slowed_s=0.004)
    training.train(10 * ONE_LOOK)
    assert not any(proposal.is_trial for proposal in training.proposals)


def test_the_plan_follows_a_link_that_changes_both_ways():
    training = Training(FAST, backward_s=0.001)
    training.train(2 * ONE_LOOK)
    before = training.plan
    training.link = LATE
    training.probe()
    training.train(2 * ONE_LOOK)
    assert training.plan == (9,)
    training.link = FAST
    training.probe()
    training.train(SETTLING_STEPS + MAX_HOLD_STEPS)
    separate, joined = (Training(FAST, backward_s=0.001, plan=plan) for plan in (before, (9,)))
    spans = [
        exchanges[-1].ended_s - exchanges[0].ready_s[0]
        for exchanges in (separate.step(), joined.step(), training.step())
    ]
    assert spans[2] <= 1.05 * min(spans[:2])


def test_exchanges_of_different_sizes_show_a_new_latency_without_a_probe():
    training = Training(FAST, backward_s=0.001, payload_ratio=9)
    training.train(2 * ONE_LOOK)
    training.link = LATE
    training.train(2 * ONE_LOOK)
    assert training.plan == (9,)


@pytest.mark.parametrize(("change_s", "expected_s"), [(0.0015, 0.008), (0.02, 0.018)])
def test_only_a_large_change_of_the_probe_changes_the_latency(change_s, expected_s):
    training = Training(LATE, backward_s=0.001, payload_ratio=9)
    training.train(ONE_LOOK)
    training.payload_ratio = 1
    training.planner.set_probe(2 * LATE.latency_s + change_s)
    training.train(3 * ONE_LOOK)
    assert training.planner.link is not None
    assert training.planner.link.latency_s == pytest.approx(expected_s)


def test_waiting_for_another_worker_now_and_then_does_not_change_the_plan():
    training = Training(FAST, backward_s=0.001, payload_ratio=9)
    training.train(2 * ONE_LOOK)
    before = list(training.proposals)
    for step in range(10 * ONE_LOOK):
        training.link = LATE if step % 10 == 0 else FAST
        training.train(1)
    assert training.proposals == before
    assert training.planner.link is not None
    assert training.planner.link.latency_s == pytest.approx(FAST.latency_s, rel=0.1)


@pytest.mark.parametrize(("latency_s", "changes"), [(0.0008, 0), (0.004, 1)])
def test_a_plan_that_saves_little_is_not_worth_a_change(latency_s, changes):
    link = LinkModel(world_size=2, latency_s=latency_s, bytes_per_s=1e12)
    training = Training(link, buckets=2, backward_s=0.0, encode_s=0.05, payload_ratio=9)
    training.train(3 * ONE_LOOK)
    assert len(training.proposals) == changes


def test_half_a_millisecond_is_not_worth_a_change():
    link = LinkModel(world_size=2, latency_s=0.0001, bytes_per_s=1e12)
    training = Training(link, buckets=2, backward_s=0.0, encode_s=0.0, payload_ratio=9)
    training.train(3 * ONE_LOOK)
    assert not training.proposals


def test_an_uncompressed_bucket_beside_the_signals_shows_the_true_link():
    link = LinkModel(world_size=2, latency_s=0.0001, bytes_per_s=125e6)
    planner, now = ExchangePlanner(2), 0.0
    for _ in range(ONE_LOOK):
        step = []
        for index in range(3):
            sizes = {WHOLE_BUCKET: 25_000_000} | ({"mean 0": 20} if index == 2 else {})
            collectives = tuple(
                CollectiveTiming(
                    kind="all-reduce",
                    name=name,
                    payload=size,
                    seconds=link.seconds_for("all-reduce", size),
                )
                for name, size in sizes.items()
            )
            ended_s = now + sum(item.seconds for item in collectives)
            step.append(
                ExchangeTiming(
                    ready_s=(now,),
                    values=(6_250_000,),
                    started_s=now,
                    ended_s=ended_s,
                    collectives=collectives,
                )
            )
            now = ended_s
        planner.observe_step(step)
    assert planner.link is not None
    assert planner.link.bytes_per_s == pytest.approx(link.bytes_per_s, rel=0.01)


def test_steps_with_larger_payloads_in_between_do_not_distort_the_link():
    training = Training(LATE, backward_s=0.05)
    for step in range(ONE_LOOK):
        training.payload = 100_000 if step % 5 == 0 else 10_000
        training.train(1)
    assert training.planner.link is not None
    assert training.planner.link.bytes_per_s == pytest.approx(LATE.bytes_per_s, rel=0.01)
    assert training.planner.link.latency_s == pytest.approx(LATE.latency_s, rel=0.01)


def test_a_step_lasts_from_one_end_of_its_exchanges_to_the_next():
    training = Training(FAST, backward_s=0.05)
    training.train(ONE_LOOK)
    wait_s = training.planner.wait_s
    assert training.planner.step_s == pytest.approx(0.1 + 8 * 0.05 + wait_s)
    training.planner.restart_window()
    assert training.planner.step_s is None


def test_new_levels_are_measured_from_the_start():
    training = Training(FAST)
    training.train(ONE_LOOK)
    assert training.planner.wait_s is not None
    training.planner.restart_window()
    assert training.planner.wait_s is None
    training.payload = 1000
    training.train(ONE_LOOK - 1)
    assert training.planner.wait_s is None
    training.train(1)
    assert training.planner.wait_s == pytest.approx(2 * 2e-5 + 4000 / 1e9 + 0.002, rel=0.01)


def test_spans_of_a_faster_time_do_not_revert_a_plan():
    training = Training(LATE, backward_s=0.001)
    training.train(2 * ONE_LOOK)
    assert training.plan == (9,)
    for turn in range(20):
        training.encode_s = 0.002 * 1.2**turn
        training.train(MAX_HOLD_STEPS)
    assert len(training.proposals) == 1


def test_a_thousand_buckets_keep_few_timings():
    training = Training(LATE, buckets=1000, backward_s=0.0001, encode_s=1e-5)
    training.train(ONE_LOOK - 1)
    kept = sum(type(item) is ExchangeTiming for item in gc.get_objects())
    assert kept <= 2500
    training.train(1)
    assert training.proposals
    assert len(training.plan) < 100


def test_a_model_with_one_bucket_has_no_other_plan_and_its_costs_are_measured():
    training = Training(LATE, buckets=1, payload_ratio=9)
    training.train(3 * ONE_LOOK)
    assert not training.proposals
    assert training.planner.link is not None
    assert training.planner.link.latency_s == pytest.approx(LATE.latency_s)
    cost = LevelCost(encode_s=0.001, payloads={("all-reduce", "mean 0"): 1000.0})
    assert training.planner.predict_waits({"low": [cost]}, in_force="low")["low"] > 0.0


def test_steps_without_exchanges_measure_nothing():
    planner = ExchangePlanner(2)
    for _ in range(3 * ONE_LOOK):
        assert planner.observe_step([]) is None
    assert planner.link is None


def test_exchanges_that_send_nothing_are_left_as_they_are():
    planner = ExchangePlanner(2)
    silent = ExchangeTiming(
        ready_s=(0.0,), values=(10,), started_s=0.0, ended_s=0.1, collectives=()
    )
    for _ in range(2 * ONE_LOOK):
        assert planner.observe_step([silent, silent]) is None


def test_a_plan_is_held_longer_with_every_change_up_to_a_limit():
    training = Training(LATE, backward_s=0.001)
    changes = []
    for turn in range(2000):
        training.link = LATE if len(training.proposals) % 2 == 0 else FAST
        training.probe()
        before = len(training.proposals)
        training.train(10)
        if len(training.proposals) > before:
            changes.append(turn)
    gaps = [later - earlier for earlier, later in pairwise(changes)]
    assert gaps
    assert gaps[-1] >= MAX_HOLD_STEPS // 10


def costs(*, encode_s: float, payload: int, buckets: int = 9) -> list[LevelCost]:
    payloads = {("all-reduce", "mean 0"): payload, ("all-reduce", "mean 1"): 3 * payload}
    return [LevelCost(encode_s=encode_s, payloads=payloads) for _ in range(buckets)]


def test_the_wait_at_the_level_in_force_is_predicted_as_it_is_measured():
    training = Training(LATE, backward_s=0.001)
    training.train(4 * ONE_LOOK)
    levels = {
        "now": costs(encode_s=training.encode_s, payload=training.payload),
        "ten times": costs(encode_s=training.encode_s, payload=10 * training.payload),
    }
    waits = training.planner.predict_waits(levels, in_force="now")
    assert waits["now"] == pytest.approx(training.planner.wait_s, rel=0.01)
    assert waits["ten times"] > 2 * waits["now"]


def test_encoding_beside_training_takes_as_much_longer_at_every_level():
    training = Training(FAST, backward_s=0.001, encode_s=0.02)
    training.train(ONE_LOOK)
    alone = {
        "now": costs(encode_s=0.01, payload=training.payload),
        "other": costs(encode_s=0.03, payload=training.payload),
    }
    waits = training.planner.predict_waits(alone, in_force="now")
    assert waits["other"] == pytest.approx(3 * waits["now"], rel=0.05)
    again = training.planner.predict_waits(alone, in_force=None)
    assert again == waits


def test_a_level_that_hardly_encodes_does_not_tell_how_long_others_take():
    """Handing a bucket over takes 2 ms where its encoding takes 0.1 ms; it is not 20 times that."""
    training = Training(FAST, backward_s=0.001, encode_s=0.002)
    training.train(ONE_LOOK)
    alone = {
        "now": costs(encode_s=0.0001, payload=training.payload),
        "other": costs(encode_s=0.01, payload=training.payload),
    }
    waits = training.planner.predict_waits(alone, in_force="now")
    assert waits == training.planner.predict_waits(alone, in_force=None)
    assert waits["other"] < 9 * 0.02


def test_nothing_is_predicted_before_a_window_or_for_other_buckets():
    training = Training(LATE)
    levels = {"now": costs(encode_s=0.001, payload=1)}
    assert training.planner.predict_waits(levels, in_force="now") == {}
    training.train(ONE_LOOK)
    other = {"now": costs(encode_s=0.001, payload=1, buckets=8)}
    assert training.planner.predict_waits(other, in_force="now") == {}


def test_a_large_probe_gives_the_bandwidth_that_small_payloads_hide():
    training = Training(LATE, backward_s=0.001, payload=10, payload_ratio=9)
    fast_for_few = replace(LATE, bytes_per_s=1e12)
    training.link = fast_for_few
    training.train(ONE_LOOK)
    large = CollectiveTiming(
        kind="all-reduce",
        name="probe",
        payload=1_000_000,
        seconds=LATE.seconds_for("all-reduce", 1_000_000) - LATE.seconds_for("all-reduce", 0),
    )
    training.planner.set_probe(LATE.seconds_for("all-reduce", 0), large)
    assert training.planner.link is not None
    assert training.planner.link.bytes_per_s == pytest.approx(LATE.bytes_per_s)
    training.train(ONE_LOOK)
    assert training.planner.link.bytes_per_s == pytest.approx(LATE.bytes_per_s)
    assert training.planner.link.latency_s == pytest.approx(LATE.latency_s, rel=0.01)


def test_the_link_is_measured_anew_in_every_window_while_a_plan_is_held():
    training = Training(LATE, backward_s=0.001, payload_ratio=9)
    for _ in range(6):  # each change doubles the steps for which a plan is held
        training.link = FAST if training.link == LATE else LATE
        training.train(MAX_HOLD_STEPS + ONE_LOOK)
    assert len(training.proposals) >= 4
    slow = replace(LATE, bytes_per_s=1e6)
    training.link = slow
    training.train(2 * WINDOW_STEPS)
    assert training.planner.link is not None
    assert training.planner.link.bytes_per_s == pytest.approx(1e6, rel=0.01)
