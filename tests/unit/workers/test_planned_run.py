"""Plans of whole jobs, of a model whose exchanges have round numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from accordion.base.messages import LayerInfo, Level
from accordion.compress.ledger import OVERHEAD, Ledger
from accordion_workers.records.contract import JobSpec
from accordion_workers.training.planned_run import PlannedRun, Stretch, list_assumptions, plan_run

DENSE, COMPRESSED = 1000, {8: 250, 4: 125}
SAMPLES = 640
STEPS = 10


@dataclass(frozen=True)
class Model:
    """A model of one layer."""

    layers = (LayerInfo(name="fc", shape=(25, 10)),)
    window_bytes = 100

    def count_exchange(self, level_by_layer: Mapping[str, Level]) -> Ledger:
        level, ledger = level_by_layer.get("fc"), Ledger(2)
        bits = int(level.options.get("bits", 0)) if level is not None else 0
        ledger.total.wire, ledger.by_layer[OVERHEAD].wire = COMPRESSED.get(bits, DENSE) + 7, 7
        ledger.total.dense_wire = DENSE
        return ledger


def spec(**parts: Any) -> JobSpec:
    training = {"epochs": 4, "lr_decay": {"at": [2], "factor": 0.5}, **parts.pop("training", {})}
    qsgd = {"method": "qsgd", "low": {"bits": 8}, "high": {"bits": 4}}
    default = {"compression": qsgd, "policy": {"name": "by_rate"}}
    return JobSpec.model_validate(
        {"task": {"name": "digits-mlp"}, "training": training, **default, **parts}
    )


def plans(job: JobSpec) -> list[PlannedRun]:
    return [plan_run(job, one, Model(), samples=SAMPLES) for one in list_assumptions(job)]


def gradients(run: PlannedRun) -> list[int]:
    return [row.sent_bytes for row in run.epochs]


def test_epochs_have_the_rate_the_rounds_and_the_levels_that_follow_from_the_spec():
    (run,) = plans(spec(local_steps={"low": 4, "high": 16, "start_steps": 3}))
    assert run.assumed == ""
    found = [(row.epoch, row.epochs, row.lr, row.local_steps) for row in run.epochs]
    assert found == [(0, 1, 0.1, (1, 4)), (1, 1, 0.1, (4,)), (2, 2, 0.05, (8,))]
    assert [row.layers_by_level for row in run.epochs] == [{"low": 1}, {"low": 1}, {"high": 1}]
    # Three exchanges of the start and two rounds of 4 and 3 steps; rounds of 4, 4 and 2 steps.
    assert [row.exchanges for row in run.epochs] == [5, 3, 2]
    assert gradients(run) == [5 * 250, 3 * 250, 2 * 125]
    assert run.uncompressed_bytes == 4 * STEPS * DENSE


@pytest.mark.parametrize(
    ("window", "closed"),
    [({"epochs": 1}, 4), ({"epochs": 3}, 1), ({"epochs": 9}, 0), ({"steps": 4}, 10)],
)
def test_signals_and_the_windows_that_end_are_planned_too(window, closed):
    (run,) = plans(spec(policy={"name": "fixed", "window": window}))
    assert run.control_bytes == 4 * STEPS * 7 + 100 * closed
    assert run.sent_bytes == 4 * STEPS * 125 + run.control_bytes


def test_of_windows_that_end_in_one_round_the_last_one_counts():
    window = {"policy": {"name": "fixed", "window": {"steps": 2}}}
    (run,) = plans(spec(**window, training={"epochs": 1}, local_steps={"low": 5}))
    assert run.control_bytes == 2 * 7 + 2 * 100


def test_what_is_decided_in_the_job_is_planned_low_and_high():
    low, high = plans(
        spec(
            policy={"name": "two_level", "window": {"steps": 2}},
            local_steps={"low": 5, "start_steps": 8},
        )
    )
    assert low.assumed == "all layers at low"
    assert high.assumed == "all layers at high"
    # A start of 8 steps, and its epoch's last round of 2; then two rounds in each epoch.
    assert gradients(low) == [(8 + 1) * 250, 2 * 250, 2 * 250]
    assert gradients(high) == [(8 + 1) * 125, 2 * 125, 2 * 125]


def test_a_policy_that_follows_the_link_is_planned_without_compression_and_rounds():
    equal = {"method": "qsgd", "low": {"bits": 4}, "high": {"bits": 4}}
    most, least = plans(
        spec(policy={"name": "cost_aware"}, compression=equal, local_steps={"low": 5})
    )
    assert most.assumed == "no compression, an exchange in every step"
    assert least.assumed == "all layers at high, rounds as long as local_steps allows"
    assert sum(row.sent_bytes * row.epochs for row in most.epochs) == 4 * STEPS * DENSE
    assert sum(row.sent_bytes * row.epochs for row in least.epochs) == 4 * 2 * 125
    assert [row.local_steps for row in most.epochs] == [(1,), (1,)]
    (without, _) = plans(spec(policy={"name": "cost_aware"}))
    assert without.assumed == "no compression"


def test_a_batch_that_may_grow_is_planned_at_both_sizes_with_their_rates():
    grows = spec(batch={"low": 64, "high": 128}, training={"epochs": 1})
    small, large = plans(grows)
    assert (small.assumed, large.assumed) == ("64 samples a step", "128 samples a step")
    found = [(run.epochs[0].steps, run.epochs[0].lr) for run in (small, large)]
    assert found == [(10, 0.1), (5, 0.2)]


def test_levels_that_send_equally_much_need_no_assumption():
    equal = {"method": "qsgd", "low": {"bits": 4}, "high": {"bits": 4}}
    (run,) = plans(spec(policy={"name": "two_level"}, compression=equal))
    assert [row.layers_by_level for row in run.epochs] == [{}, {}]
    assert gradients(run) == [STEPS * 125, STEPS * 125]


def test_epochs_of_a_cosine_that_are_alike_share_a_row_and_drops_do_not():
    cosine = {"epochs": 4, "lr_decay": {"shape": "cosine"}}
    (gradual,) = plans(spec(policy={"name": "fixed"}, training=cosine))
    (dropping,) = plans(spec(policy={"name": "fixed"}))
    assert [(row.epoch, row.epochs) for row in gradual.epochs] == [(0, 4)]
    assert (gradual.epochs[0].lr, gradual.epochs[0].last_lr) == (pytest.approx(0.0853553), 0.0)
    assert [(row.epoch, row.epochs) for row in dropping.epochs] == [(0, 2), (2, 2)]


@pytest.mark.parametrize("first", range(8))
@pytest.mark.parametrize("every", [None, 1, 3, 4, 50])
def test_rounds_before_a_checkpoint_are_counted_as_if_step_by_step(first, every):
    local = spec(local_steps={"low": 3}).config().local_steps
    stretch = Stretch(
        epoch=0,
        first_step=first,
        num_steps=17,
        fall=1.0,
        level_by_layer={},
        saved_every=every,
        windows=0,
    )
    rounds, taken = 0, 0
    for step in range(first + 1, first + 18):
        taken += 1
        if taken == 3 or step == first + 17 or (every is not None and step % every == 0):
            rounds, taken = rounds + 1, 0
    assert stretch.count_exchanges(local) == rounds
