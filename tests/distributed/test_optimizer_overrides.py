"""People set the optimizer of a running job: all workers change at the same step, and go back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from accordion.base.messages import Decision, Override, Report, plan_digest
from accordion_workers.records.contract import DesiredState, JobSpec
from tests.distributed.code_jobs import run_own_script
from tests.distributed.loop_jobs import RecordingLink, Result, run_job, spec
from tests.distributed.test_own_code import order_of

NONE = 1e-30
"""A rate or a norm with which no parameter changes."""
PLAIN = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}


def job(**training: Any) -> JobSpec:
    return spec(training={"epochs": 4, "optimizer": {"lr": 0.05}, **training})


def by_hand(target: Any, level: Any, number: int = 1, **fields: Any) -> Override:
    return Override(id=f"o{number}", number=number, target=target, level=level, **fields)


def ordered(
    run_group: Any, storage: Any, job: JobSpec, *overrides: Override, after: Any = None
) -> Result:
    link = RecordingLink(orders=DesiredState(version=1, overrides=overrides), order_after=after)
    return run_group(2, run_job, storage, job, link)[0]


def rates(result: Result) -> list[float]:
    return [round(record.lr, 12) for record in result.link.of("epoch")]


def test_half_of_the_rate_holds_on_all_ranks_until_the_epoch_that_people_name(run_group, tmp_path):
    half = by_hand("lr", {"factor": 0.5}, until=3)
    result = ordered(run_group, tmp_path, job(lr_decay={"at": [2]}), half, after=("epoch", 0))
    assert rates(result) == [0.05, 0.025, 0.0025, 0.005]
    first = next(record for record in result.link.of("acks") if record.override_ids == ("o1",))
    decision = next(one.decision for one in result.link.of("decision") if one.decision.optimizer)
    digest = plan_digest(decision.level_by_layer, optimizer={"lr_factor": 0.5})
    assert (first.epoch, first.step) == (1, 24)
    assert [(ack.rank, ack.step, ack.digest) for ack in first.acks] == [
        (rank, 24, digest) for rank in (0, 1)
    ]
    assert result.link.of("decision")[-1].decision.optimizer == {}


class ReportedRates(RecordingLink):
    """Keeps the rates of the reports: of the epoch that ends, and of the next one."""

    def decide(self, report: Report, proposal: Decision, controller_state: Any) -> Decision:
        self.lines.append(f"{report.lr:g} {report.next_lr:g}")
        return proposal


def test_a_report_has_the_rate_of_the_epoch_in_which_an_override_begins_or_ends(
    run_group, tmp_path
):
    half = by_hand("lr", {"factor": 0.5}, apply_at=1, until=3)
    link = ReportedRates(orders=DesiredState(version=1, overrides=(half,)))
    result = run_group(2, run_job, tmp_path, job(), link)[0]
    told = [line for line in result.link.lines if line.startswith("0.0")]
    assert told == ["0.05 0.025", "0.025 0.025", "0.025 0.05", "0.05 0.05"]


def test_a_value_replaces_schedule_warm_up_and_growth_of_the_batch(run_group, tmp_path):
    growing = spec(
        training={"epochs": 3, "optimizer": {"lr": 0.05}, "warmup": {"epochs": 3}},
        batch={"low": 64, "high": 256},
    )
    orders = [by_hand("lr", 0.02, apply_at=1), by_hand("batch", "high", 2, apply_at=1)]
    assert rates(ordered(run_group, tmp_path, growing, *orders))[1:] == [0.02, 0.02]


def test_what_a_factor_makes_of_the_rate_stays_within_the_jobs_range(run_group, tmp_path):
    limited = job(override_ranges={"lr": [0.03, 0.08]}, lr_decay={"at": [3]})
    double = by_hand("lr", {"factor": 2}, apply_at=1)
    result = ordered(run_group, tmp_path, limited, double)
    assert rates(result) == [0.05, 0.08, 0.08, 0.01]
    told = [line for line in result.link.lines if "override_ranges.lr" in line]
    assert told == [
        "warning: the override's factor 2 asks for a learning rate of 0.1, and"
        " training.override_ranges.lr of the job file keeps it at 0.08"
    ]


@pytest.mark.parametrize("target", ["lr", "clip_norm"])
def test_nothing_is_learned_at_a_rate_or_a_norm_of_nearly_zero(run_group, tmp_path, target):
    held = by_hand(target, NONE, apply_at=1, until=3)
    result = ordered(run_group, tmp_path, job(optimizer=PLAIN), held)
    losses = [record.metrics["loss"] for record in result.link.of("epoch")]
    assert losses[0] == losses[1] == losses[2] > losses[3]


def test_weight_decay_shrinks_what_gradients_leave_as_it_is(run_group, tmp_path):
    still = job(optimizer=PLAIN, epochs=2)
    none = by_hand("clip_norm", NONE, apply_at=1)
    decay = by_hand("weight_decay", 1.0, 2, apply_at=1)
    kept = ordered(run_group, tmp_path / "kept", still, none)
    shrunk = ordered(run_group, tmp_path / "shrunk", still, none, decay)
    for one, other in zip(shrunk.parameters, kept.parameters, strict=True):
        torch.testing.assert_close(one, 0.9**23 * other, rtol=1e-4, atol=1e-7)


class StoppingLink(RecordingLink):
    """Cancels the job after epoch 1, beside the orders of its start."""

    def post(self, payload: Any) -> None:
        super().post(payload)
        if self.callback and payload.kind == "epoch" and payload.epoch == 1:
            self.callback(self.orders.model_copy(update={"version": 2, "stop": "cancel"}))


def test_a_job_that_is_stopped_and_goes_on_has_the_rate_that_people_set(run_group, tmp_path):
    half = by_hand("lr", {"factor": 0.5}, apply_at=1)
    link = StoppingLink(orders=DesiredState(version=1, overrides=(half,)))
    stopped = run_group(2, run_job, tmp_path, job(), link)[0]
    assert (stopped.outcome, rates(stopped)) == ("stopped", [0.05, 0.025])
    resumed = run_group(2, run_job, tmp_path, job(), None, 2)[0]
    assert rates(resumed) == [0.025, 0.025]


def test_rounds_of_local_steps_end_before_the_rate_changes(run_group, tmp_path):
    rounds = spec(
        training={"epochs": 2, "optimizer": {"lr": 0.05}},
        compression={"method": "half"},
        local_steps={"low": 5},
    )
    half = by_hand("lr", {"factor": 0.5})
    result = ordered(run_group, tmp_path, rounds, half, after=("epoch", 0))
    first = next(record for record in result.link.of("acks") if record.override_ids)
    assert (first.step, {ack.digest for ack in first.acks}) == (23 + 5, {first.digest})
    assert rates(result) == [0.05, 0.025]


SCHEDULED = """
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from accordion_workers import session
session.init_process_group("gloo")
inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
batches = session.batches(len(inputs))
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 4))
groups = [{"params": [model.module.weight]}, {"params": [model.module.bias], "lr": 0.01}]
optimizer = torch.optim.SGD(groups, lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
session.attach(model, optimizer, scheduler=scheduler)
for epoch in session.epochs(4):
    for rows in batches:
        optimizer.zero_grad()
        before = [one.detach().clone() for one in model.module.parameters()]
        loss = model(inputs[rows]).square().mean()
        session.backward(loss)
        session.step()
        moved = [
            float(((old - one) / one.grad).mean())
            for old, one in zip(before, model.module.parameters())
        ]
        print("rates", epoch, [round(one, 4) for one in moved])
    scheduler.step()
print("end", [group["lr"] for group in optimizer.param_groups])
"""


TWO = """optimizers = [torch.optim.SGD([group], lr=0.1) for group in groups]
optimizer = optimizers[0]
"""
"""Makes an optimizer of each group of `SCHEDULED`; only the first one has the schedule."""


PARTED = 'torch.distributed.fsdp.fully_shard(nn.Linear(4, 4), mesh=session.mesh["shard"])'
"""In place of the model of `SCHEDULED`: workers hold parts of it."""


def script_rates(
    run_group: Any, tmp_path: Any, *overrides: Override, script: str = SCHEDULED, **changes: Any
) -> tuple[Result, list[str]]:
    """What rank 0 of a script of 4 epochs says of the rates with which its parameters moved."""
    training = {"epochs": 4, "global_batch": 32, "micro_batch": 16}
    order = order_of(tmp_path, {"train.py": script}, training=training, **changes)
    link = RecordingLink(
        orders=DesiredState(version=1, overrides=overrides), order_after=("epoch", 0)
    )
    result = run_group(2, run_own_script, order, link)[0]
    return result, result.said.splitlines()


def test_an_override_sets_the_rates_of_a_script_and_its_schedule_goes_on(run_group, tmp_path):
    half = by_hand("lr", {"factor": 0.5}, until=3)
    result, said = script_rates(run_group, tmp_path, half)
    # The schedule halves the rates after two epochs; the override holds in epochs 1 and 2.
    expected = [[0.1, 0.01], [0.05, 0.005], [0.025, 0.0025], [0.05, 0.005]]
    # Two steps an epoch; what all workers are told in one holds from the next one on.
    assert said[1:8:2] == [f"rates {epoch} {rates}" for epoch, rates in enumerate(expected)]
    assert said[-1] == "end [0.025, 0.0025]"
    assert rates(result) == [0.1, 0.05, 0.025, 0.05]
    assert result.link.of("decision")[-1].decision.optimizer == {}


def test_a_value_is_the_rate_of_all_groups_of_a_script(run_group, tmp_path):
    result, said = script_rates(run_group, tmp_path, by_hand("lr", 0.02))
    assert said[3:8:2] == [f"rates {epoch} [0.02, 0.02]" for epoch in (1, 2, 3)]
    assert rates(result) == [0.1, 0.02, 0.02, 0.02]


def test_an_override_sets_the_rates_of_all_optimizers_of_a_script(run_group, tmp_path):
    two = SCHEDULED.replace("optimizer = torch.optim.SGD(groups, lr=0.1)\n", TWO)
    two = two.replace("attach(model, optimizer,", "attach(model, optimizers,")
    two = two.replace("zero_grad", "zero_grad(), optimizers[1].zero_grad")
    half = by_hand("lr", {"factor": 0.5}, until=3)
    result, said = script_rates(run_group, tmp_path, half, script=two)
    expected = [[0.1, 0.01], [0.05, 0.005], [0.025, 0.005], [0.05, 0.01]]
    assert said[1:8:2] == [f"rates {epoch} {rates}" for epoch, rates in enumerate(expected)]
    assert rates(result) == [0.1, 0.05, 0.025, 0.05]


def test_an_override_sets_the_rates_of_a_script_with_a_scaled_loss(run_group, tmp_path):
    scaler = "attach(model, optimizer, scaler=torch.amp.GradScaler('cpu', init_scale=4.0),"
    scaled = SCHEDULED.replace("attach(model, optimizer,", scaler)
    result, said = script_rates(run_group, tmp_path, by_hand("lr", 0.02, until=3), script=scaled)
    expected = [[0.1, 0.01], [0.02, 0.02], [0.02, 0.02], [0.05, 0.005]]
    assert said[1:8:2] == [f"rates {epoch} {rates}" for epoch, rates in enumerate(expected)]
    assert rates(result) == [0.1, 0.02, 0.02, 0.05]


def test_an_override_sets_the_rates_of_a_script_that_holds_a_part_of_its_model(run_group, tmp_path):
    parted = SCHEDULED.replace("import torch\n", "import torch.distributed.fsdp\n", 1)
    parted = parted.replace("DistributedDataParallel(nn.Linear(4, 4))", PARTED)
    parted = parted.replace("model.module.", "model.").replace(".detach()", ".to_local().detach()")
    parted = parted.replace("one) / one.grad)", "one.to_local()) / one.grad.to_local())")
    halves = {"workers": {"min": 2, "max": 2}, "parallelism": {"shard": 2}}
    half = by_hand("lr", {"factor": 0.5}, until=3)
    result, said = script_rates(run_group, tmp_path, half, script=parted, **halves)
    expected = [[0.1, 0.01], [0.05, 0.005], [0.025, 0.0025], [0.05, 0.005]]
    assert said[1:8:2] == [f"rates {epoch} {rates}" for epoch, rates in enumerate(expected)]
    assert rates(result) == [0.1, 0.05, 0.025, 0.05]


def test_an_optimizer_that_chooses_its_rate_trains_under_an_override(run_group, tmp_path):
    chosen = SCHEDULED.replace("torch.optim.SGD(groups, lr=0.1)", "Adafactor(model.parameters())")
    plain = chosen.replace(", scheduler=scheduler", "").replace("    scheduler.step()", "")
    lines = [one for one in plain.splitlines() if "StepLR" not in one]
    script = "\n".join(["from transformers import Adafactor", *lines])
    half = by_hand("lr", {"factor": 0.5})
    result, said = script_rates(run_group, tmp_path, half, script=script)
    assert said[-1] == "end [None]"
    assert rates(result) == [0.0] * 4
    told = [line for line in result.link.lines if "the optimizer of the script has none" in line]
    assert len(told) == 1


def test_an_epoch_that_ends_after_a_stop_has_the_rate_of_its_steps(run_group, tmp_path):
    training = {"epochs": 4, "global_batch": 32, "micro_batch": 16}
    rounds = {"compression": {"method": "half"}, "local_steps": {"low": 2}}  # one for each epoch
    order = order_of(tmp_path, {"train.py": SCHEDULED}, training=training, **rounds)
    half = by_hand("lr", {"factor": 0.5}, until=3)
    link = StoppingLink(orders=DesiredState(version=1, overrides=(half,)))
    assert run_group(2, run_own_script, order, link)[0].outcome == "stopped"
    resumed = run_group(2, run_own_script, order, None, 2)[0]
    assert rates(resumed) == [0.025, 0.05]
