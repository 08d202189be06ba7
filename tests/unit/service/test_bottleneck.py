"""What holds a job up, from the phases that it reports."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion_service.domain.performance.bottleneck import (
    Bottleneck,
    find_bottleneck,
    find_slow_link,
)
from accordion_service.domain.performance.step_profile import Cause, JobSettings, StepProfile

EVEN = {"compute": 0.08, "optimize": 0.01, "communicate": 0.005, "load": 0.005}
"""Seconds by phase of a job that nothing holds up."""


UNBALANCED = JobSettings(is_balanced=False)


def found(phases: dict[str, float], **more: Any) -> Bottleneck:
    answer = find_bottleneck(StepProfile(step_s_by_phase=EVEN | phases, **more))
    assert answer is not None
    return answer


@pytest.mark.parametrize(
    ("phase", "cause"),
    [
        ("communicate", Cause.LINK),
        ("encode", Cause.ENCODING),
        ("load", Cause.DATA_LOADING),
        ("evaluate", Cause.EVALUATION),
        ("checkpoint", Cause.CHECKPOINTS),
        ("decide", Cause.DECISIONS),
        ("wait", Cause.PACING),
    ],
)
def test_the_largest_phase_besides_computing_is_named_with_its_share(phase, cause):
    rest = sum(EVEN.values()) - EVEN.get(phase, 0.0)
    answer = found({phase: rest / 3})
    assert answer.cause == cause
    assert answer.share == pytest.approx(0.25)
    assert "25% of each step" in answer.sentence
    assert answer.change is not None
    assert answer.change.is_upper_bound
    assert answer.change.speedup == pytest.approx(4 / 3)


@pytest.mark.parametrize("policy", ["two_level", "cost_aware"])
def test_one_worker_waits_for_no_network_and_is_not_told_to_measure_one(policy):
    answer = found(
        {"communicate": 0.03},
        num_workers=1,
        methods=frozenset({"powersgd"}),
        settings=JobSettings(method="powersgd", policy=policy),
    )
    assert (answer.cause, answer.seconds_by_cause.keys() & {Cause.LINK}) == (Cause.ENCODING, set())
    assert answer.change is not None
    assert answer.change.text == (
        "Override the layers to method=none: one worker exchanges no gradients"
    )
    uncompressed = found({"communicate": 0.03}, num_workers=1, methods=frozenset({"none"}))
    assert (uncompressed.cause, uncompressed.change) == (Cause.COMPUTE, None)


def test_workers_of_one_host_wait_for_a_processor_and_not_for_the_network():
    answer = found({"communicate": 0.03}, num_workers=4, num_hosts=1, link_text="1.7 ms a message")
    assert answer.cause == Cause.PROCESSOR
    assert "network" not in answer.sentence
    assert "all workers run on one host" in answer.sentence
    assert answer.change is not None
    assert answer.change.text == "Use fewer workers, or a host with more free processors"


def test_without_a_large_part_nothing_holds_the_job_up():
    answer = found({})
    assert (answer.cause, answer.change, answer.rank) == (Cause.COMPUTE, None, None)
    assert answer.sentence == (
        "Nothing holds this job up: computing takes 90% of each step (90 ms of 0.1 s)."
    )


def test_a_part_of_a_tenth_is_named_and_a_smaller_one_is_not():
    rest = sum(EVEN.values())
    assert found({"evaluate": rest / 8.9}).cause == Cause.EVALUATION
    assert found({"evaluate": rest / 9.1}).cause == Cause.COMPUTE


@pytest.mark.parametrize("phases", [{}, {"compute": 0.0}])
def test_unknown_phases_give_no_answer(phases):
    assert find_bottleneck(StepProfile(step_s_by_phase=phases)) is None


def test_the_slow_worker_is_told_from_the_link_by_what_each_rank_computes():
    answer = found({"communicate": 0.3}, compute_s_by_rank=(0.085, 0.335, 0.09))
    assert (answer.cause, answer.rank) == (Cause.SLOW_WORKER, 1)
    assert answer.seconds_by_cause[Cause.SLOW_WORKER] == pytest.approx(0.335 - 0.0875)
    assert answer.seconds_by_cause[Cause.LINK] == pytest.approx(0.3 - (0.335 - 0.0875))
    assert answer.sentence.startswith("Worker 1 holds this job up: waiting takes 63% of")
    assert "worker 1 computes for 0.34 s, the others for 88 ms" in answer.sentence
    assert answer.change is not None
    assert answer.change.text == "Run worker 1 on a machine as fast as the others"


def test_a_slow_rank_0_is_found_in_its_own_computing_and_loading():
    answer = found({"compute": 0.1, "load": 0.3}, compute_s_by_rank=(0.4, 0.1))
    assert (answer.cause, answer.rank) == (Cause.SLOW_WORKER, 0)
    assert answer.seconds_by_cause[Cause.SLOW_WORKER] == pytest.approx(0.3)
    assert answer.step_s == pytest.approx(0.415)


def test_waiting_for_the_slowest_worker_is_no_more_than_what_rank_0_waited():
    answer = found({"communicate": 0.05}, compute_s_by_rank=(0.1, 9.0))
    assert answer.seconds_by_cause[Cause.SLOW_WORKER] == pytest.approx(0.05)
    assert answer.seconds_by_cause[Cause.LINK] == 0.0


@pytest.mark.parametrize("seconds", [(), (0.1,), (0.0, 0.5)], ids=["none", "one", "some unknown"])
def test_without_every_ranks_time_a_slow_worker_is_not_excluded(seconds):
    answer = found({"communicate": 0.3}, compute_s_by_rank=seconds)
    assert (answer.cause, answer.rank) == (Cause.LINK, None)
    assert "this may include waiting for a slower worker" in answer.sentence


@pytest.mark.parametrize(
    ("seconds", "link"),
    [
        ((), ()),
        ((0.001, 0.5), ()),
        ((0.001, 0.001, 0.001), ()),
        ((0.001, 0.05, 0.001), (0, 1)),
        ((0.05, 0.001, 0.001, 0.001), (3, 0)),
        ((0.001, 0.05, 0.06), (1,)),
        ((0.06, 0.001, 0.05), (2,)),
        ((0.05, 0.06, 0.001, 0.001), (0,)),
        ((0.05, 0.001, 0.06, 0.001), ()),
        ((0.05, 0.05, 0.05), ()),
        ((0.0005, 0.0054, 0.0005), ()),
        ((0.02, 0.05, 0.02), ()),
    ],
)
def test_a_slow_link_is_found_if_all_slow_ones_in_the_ring_share_a_worker(seconds, link):
    assert find_slow_link(seconds) == link


@pytest.mark.parametrize(
    ("seconds", "rank", "link"),
    [
        ((0.001, 0.04, 0.05), 1, "the network of worker 1"),
        ((0.001, 0.001, 0.05), None, "the link from worker 1 to worker 2"),
    ],
)
def test_one_slow_link_is_named(seconds, rank, link):
    answer = found(
        {"communicate": 0.1}, compute_s_by_rank=(0.08, 0.08, 0.08), receive_s_by_rank=seconds
    )
    assert (answer.cause, answer.rank) == (Cause.SLOW_LINK, rank)
    assert answer.sentence.endswith(f"; {link} takes 50 ms for 64 KiB, the fastest link 1 ms.")
    assert answer.change is not None
    assert answer.change.text == f"Make {link} as fast as the others"


def test_workers_that_are_about_as_slow_are_named_together():
    answer = found({"communicate": 0.2}, compute_s_by_rank=(0.1, 0.3, 0.29, 0.1, 0.1))
    assert answer.sentence.startswith("Workers 1 and 2 hold this job up: waiting takes ")
    assert answer.change is not None
    assert answer.change.text == "Run workers 1 and 2 on a machine as fast as the others"


@pytest.mark.parametrize(
    ("seconds", "is_uneven"), [((0.2, 0.1, 0.1), True), ((0.4, 0.1, 0.1), False)]
)
def test_a_worker_with_a_larger_share_of_the_batch_is_not_called_slow(seconds, is_uneven):
    answer = found({"compute": seconds[0]}, compute_s_by_rank=seconds, shares_by_rank=(2, 1, 1))
    assert (answer.cause, answer.rank) == (Cause.SLOW_WORKER, 0)
    assert answer.change is not None
    assert ("training.global_batch" in answer.change.text) == is_uneven


def test_balancing_is_suggested_where_it_is_off_with_what_it_gains():
    """Two workers that compute for 0.1 and 0.3 s would both compute for 0.15 s."""
    times = {"compute_s_by_rank": (0.1, 0.3), "shares_by_rank": (4, 4)}
    answer = found({"compute": 0.1, "communicate": 0.2}, **times, settings=UNBALANCED)
    assert answer.cause == Cause.SLOW_WORKER
    assert answer.change is not None
    assert "workers.balance true" in answer.change.text
    assert answer.change.speedup == pytest.approx(answer.step_s / (answer.step_s - 0.15))
    one_each = {**times, "shares_by_rank": (1, 1), "settings": UNBALANCED}
    for other in (times, one_each):
        answer = found({"compute": 0.1, "communicate": 0.2}, **other)
        assert answer.change is not None
        assert answer.change.text == "Run worker 1 on a machine as fast as the others"


def test_the_measured_link_is_part_of_the_sentence():
    answer = found({"communicate": 0.1}, link_text="96 Mbit/s and 0.2 ms per message")
    assert "takes 51% of each step (0.1 s of 0.2 s), at 96 Mbit/s" in answer.sentence
    known = found({"communicate": 0.1}, compute_s_by_rank=(0.1, 0.1))
    assert "slower worker" not in known.sentence


WAITS = {"none": 0.3, "half": 0.16, "low": 0.05, "high": 0.04}


def change_of(
    levels: set[str],
    waits: dict[str, float] | None = None,
    *,
    phases: dict[str, float] | None = None,
    spec: dict[str, Any] | None = None,
    **more: Any,
) -> Any:
    return found(
        phases or {"communicate": 0.1},
        levels=frozenset(levels),
        wait_s_by_level=WAITS if waits is None else waits,
        settings=JobSettings(**spec or {}),
        **more,
    ).change


def test_the_level_with_the_shortest_predicted_wait_is_suggested_with_its_gain():
    step_s = sum(EVEN.values()) - EVEN["communicate"] + 0.1
    change = change_of({"half"})
    assert change.text == "Override the layers to high, where a step waits 40 ms"
    assert change.speedup == pytest.approx(step_s / (step_s - 0.16 + 0.04))
    assert not change.is_upper_bound
    assert change_of({"half", "low"}).is_upper_bound


def test_a_level_that_saves_little_is_not_suggested_but_a_larger_batch():
    step_s = sum(EVEN.values()) - EVEN["communicate"] + 0.1
    for change in (change_of({"high"}), change_of({"low"}, WAITS | {"low": 0.049})):
        assert change.text.startswith("No level is known to be faster on this link; a global")
        assert change.speedup == pytest.approx(2 * step_s / (2 * step_s - 0.1))


def test_levels_without_a_prediction_get_no_suggestion():
    assert change_of({"rank=3"}) is None


POWERSGD = {"spec": {"method": "powersgd", "policy": "fixed"}, "methods": frozenset({"powersgd"})}


def test_a_level_is_named_as_an_override_takes_it():
    change = change_of({"high"}, {"none": 0.01, "high": 0.1})
    assert change.text == "Override the layers to method=none, where a step waits 10 ms"


@pytest.mark.parametrize("levels", [{"low"}, {"high"}, {"low", "high"}])
@pytest.mark.parametrize("method", ["none", "half"])
def test_a_job_whose_method_has_no_stronger_level_is_started_again(method, levels):
    change = change_of(
        levels, {}, spec={"method": method, "has_levels": False}, methods=frozenset({method})
    )
    assert change.text.startswith("Start the job with compression.method powersgd and policy.name")
    assert "measures whether that is faster" in change.text
    assert change.is_upper_bound


def test_without_predictions_a_stronger_level_is_tried_or_its_costs_are_measured():
    change = change_of({"low", "high"}, {}, **POWERSGD)
    assert change.text == (
        "Override the layers to high to see whether it is faster, or start the job with policy.name"
        " cost_aware, which measures what each level costs"
    )
    strongest = change_of({"high"}, {}, **POWERSGD)
    assert strongest.text.startswith("The layers are at their strongest level; a global batch")


def test_a_method_with_one_level_is_at_its_strongest():
    change = change_of(
        {"low"}, {}, spec={"method": "signsgd", "has_levels": False}, methods=frozenset({"signsgd"})
    )
    assert change.text.startswith("The layers are at their strongest level")


@pytest.mark.parametrize(("level", "trade"), [("none", "sends less"), ("low", "may send less")])
def test_a_level_that_gain_rejected_is_suggested_with_what_it_costs(level, trade):
    spec = {"method": "powersgd", "policy": "gain", "least_share": 0.4}
    change = change_of({level}, {}, spec=spec)
    assert f"to high, which {trade} of a gradient than the 40% of policy.options" in change.text
    assert change.text.endswith("so accuracy may fall")
    assert "compression.method" not in change.text


def test_cost_aware_without_costs_is_told_how_it_gets_them():
    cost_aware = {"method": "powersgd", "policy": "cost_aware"}
    assert change_of({"low"}, {}, spec=cost_aware).text.startswith("Wait for the next decision")
    unmeasured = change_of({"low"}, {}, spec={**cost_aware, "is_plan_measured": False})
    assert "compression.buckets_per_exchange auto" in unmeasured.text


COST_AWARE = {"method": "powersgd", "policy": "cost_aware"}


def test_a_level_that_cost_aware_chose_itself_is_not_changed():
    """It knows more than the waits: how much a level slows the rest of a step down."""
    change = change_of({"half"}, spec=COST_AWARE)
    assert change.text.startswith("No level is known to be faster on this link; a global batch")
    held = change_of({"half"}, spec=COST_AWARE, is_overridden=True)
    assert held.text == "Override the layers to high, where a step waits 40 ms"


def test_of_critical_layers_only_stronger_levels_are_suggested_with_what_they_cost():
    waits = WAITS | {"none": 0.001}
    change = change_of({"half"}, waits, spec=COST_AWARE, is_critical=True)
    assert change.text == (
        "Override the layers to high although some are critical, so that accuracy may fall, where a"
        " step waits 40 ms"
    )
    nothing_stronger = change_of(
        {"half"}, {"none": 0.001, "half": 0.16}, spec=COST_AWARE, is_critical=True
    )
    assert "a global batch twice as large" in nothing_stronger.text


def test_what_is_not_compressed_is_not_compressed_less():
    phases = {"encode": 0.05}
    uncompressed = {"method": "none", "has_levels": False}
    assert (
        change_of({"low"}, {}, phases=phases, spec=uncompressed, methods=frozenset({"none"}))
        is None
    )
    half = change_of({"low"}, {}, phases=phases, spec=uncompressed, methods=frozenset({"half"}))
    assert half.text.startswith("Override the layers to method=none")


def test_encoding_less_is_suggested_unless_the_link_would_take_longer_than_it_saves():
    phases = {"encode": 0.05}
    change = change_of({"high"}, {}, phases=phases, **POWERSGD)
    assert change.text.startswith("Override the layers to method=none to see whether it is faster")
    assert change_of({"high"}, {}, phases=phases, uncompressed_s=0.08, **POWERSGD) == change
    assert change_of({"high"}, {}, phases=phases, uncompressed_s=0.14, **POWERSGD) is None


def test_no_change_is_suggested_whose_gain_noise_would_hide():
    """A larger batch saves half of the exchanges: of 12 % of a step, 6 %."""
    part = sum(EVEN.values()) - EVEN["communicate"]
    phases = {"communicate": 0.12 / 0.88 * part}
    assert found(phases).cause == Cause.LINK
    assert change_of({"high"}, {}, phases=phases, **POWERSGD) is None


@pytest.mark.parametrize("waits", [WAITS, {}])
def test_a_job_that_has_ended_is_not_overridden(waits):
    for level, method in (("half", "powersgd"), ("none", "none")):
        change = change_of(
            {level}, waits, spec={"method": method, "policy": "fixed"}, has_ended=True
        )
        assert change.text.startswith("Start the job with ")
    waiting = {"method": "powersgd", "policy": "cost_aware"}
    assert change_of({"low"}, {}, spec=waiting, has_ended=True) is None


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.0997, "100 ms"), (0.0994, "99 ms"), (1.26, "1.3 s"), (150.0, "150 s")]
)
def test_times_are_rounded_without_an_exponent(seconds, said):
    answer = found({"communicate": seconds, "compute": 0.0})
    assert f" ({said} of " in answer.sentence


def test_on_gpus_exchanging_is_part_of_computing():
    answer = found({"communicate": 0.3, "encode": 0.2}, times_exchanges=False)
    assert answer.cause == Cause.COMPUTE
    assert set(answer.seconds_by_cause).isdisjoint({Cause.LINK, Cause.ENCODING})
    assert "on GPUs this includes exchanging gradients" in answer.sentence
    assert answer.step_s == pytest.approx(sum(EVEN.values()) - EVEN["communicate"] + 0.5)


def test_what_else_a_script_does_is_said_to_count_as_computing():
    own = "this includes what else the script does in a step"
    for more in ({"is_guest": True}, {"settings": JobSettings(has_script=True)}):
        assert own in found(EVEN, **more).sentence
    assert own not in found(EVEN).sentence


TIMES = st.floats(0.0, 100.0)


@given(
    st.fixed_dictionaries(dict.fromkeys([*EVEN, "encode", "evaluate", "wait"], TIMES)),
    st.lists(TIMES, max_size=4),
    st.booleans(),
)
def test_the_parts_add_up_to_the_step_and_none_is_negative(phases, seconds, is_timed):
    profile = StepProfile(
        step_s_by_phase=phases, compute_s_by_rank=seconds, times_exchanges=is_timed
    )
    answer = find_bottleneck(profile)
    if answer is None:
        assert sum(phases.values()) == 0.0
        return
    assert answer.step_s == pytest.approx(sum(phases.values()))
    assert min(answer.seconds_by_cause.values()) >= 0.0
    assert 0.0 <= answer.share <= 1.0 + 1e-9
    assert answer.change is None or answer.change.speedup >= 1.0


@pytest.mark.parametrize("phase", ["evaluate", "checkpoint", "load"])
def test_a_guest_run_is_advised_without_fields_of_a_job_file(phase):
    change = found({phase: 1.0}, is_guest=True).change
    assert change is not None
    assert "." not in change.text
    if phase != "load":
        own = found({phase: 1.0}).change
        assert own is not None
        assert "." in own.text


def test_neither_a_clone_nor_balancing_is_suggested_for_a_guest_run():
    settings = JobSettings(method="none", is_balanced=False)
    link = found({"communicate": 1.0}, is_guest=True, settings=settings).change
    assert link is not None
    assert "clone" not in link.text
    ranks = {"compute_s_by_rank": (0.1, 0.4), "shares_by_rank": (2, 2)}
    slow = found({"communicate": 0.4}, is_guest=True, settings=settings, **ranks).change
    assert slow is not None
    assert "balance" not in slow.text
