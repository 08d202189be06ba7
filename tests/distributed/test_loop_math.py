"""What is trained does not depend on who trains it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.loop_jobs import Result, equal, parameters, run_job, saved, spec
from workers.contract import JobSpec
from workers.run import seeded
from workers.sampler import batch_at, cut, epoch_order, loss_weight, num_batches, seed_of, share
from workers.tasks import TASKS, TaskRow
from workers.tasks.base import load_task
from workers.tasks.digits import DigitsMlp

JOBS = Path(__file__).parents[2] / "deploy" / "jobs"
PLAIN = spec(training={"epochs": 2, "warmup": {"epochs": 1}}, compression={"method": "none"})


def plain_ddp(rank: int, job: JobSpec) -> list[torch.Tensor]:
    """The same job as anyone would write it with DDP: no Accordion, no loop of ours."""
    world, training, task = dist.get_world_size(), job.training, load_task(job.task)
    with seeded(seed_of("model", training.seed), "cpu"):
        ddp = DistributedDataParallel(task.model(), broadcast_buffers=False)
    sgd = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    data = task.train_data()
    steps = num_batches(len(data), training.global_batch)
    for step in range(training.epochs * steps):
        order = epoch_order(len(data), seed=training.seed, epoch=step // steps)
        batch = batch_at(
            step % steps * training.global_batch, num_samples=len(data), global_batch=training.global_batch
        )
        mine = share(cut(batch, training.micro_batch), rank=rank, world_size=world)
        sgd.param_groups[0]["lr"] = 0.1 * min(1.0, step // steps + batch.stop / len(data))
        sgd.zero_grad()
        for piece in mine:
            ddp.require_backward_grad_sync = piece is mine[-1]
            inputs, targets = data.batch(order[piece.start : piece.stop])
            (cross_entropy(ddp(inputs), targets) * loss_weight(piece, batch, world_size=world)).backward()
        sgd.step()
    return [parameter.detach().clone() for parameter in ddp.module.parameters()]


@pytest.mark.parametrize("workers", [1, 2])
def test_without_compression_a_job_ends_with_the_bits_of_plain_ddp(run_group, tmp_path, workers):
    ours = run_group(workers, run_job, tmp_path, PLAIN)
    theirs = run_group(workers, plain_ddp, PLAIN)
    assert all(equal(our.parameters, their) for our, their in zip(ours, theirs, strict=True))


def test_all_workers_end_with_the_same_bits(run_group, tmp_path):
    one, other = run_group(2, final_parameters, tmp_path, spec())
    assert equal(one, other)


def final_parameters(rank: int, storage: Path, job: JobSpec) -> list[torch.Tensor]:
    run_job(rank, storage, job)
    return parameters(saved(rank, storage, job))


class Shaky(DigitsMlp):
    """Digits in float64 with dropout and noisy inputs: everything that a seed has to hold still."""

    def model(self) -> torch.nn.Module:
        torch.set_default_dtype(torch.float64)
        try:
            return torch.nn.Sequential(super().model(), torch.nn.Dropout(0.2))
        finally:
            torch.set_default_dtype(torch.float32)

    def train_data(self) -> Any:
        return Noisy(super().train_data())

    def eval_data(self) -> Any:
        return Noisy(super().eval_data())


class Noisy:
    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = self.data.batch(indices)
        return inputs.double() + 0.01 * torch.randn(inputs.shape, dtype=torch.float64), targets


def run_shaky(rank: int, storage: Path, parts: Mapping[str, Any]) -> Result:
    rows = dict(TASKS)
    TASKS["shaky"] = TaskRow(summary="", task=f"{__name__}:Shaky", options=TASKS["digits-mlp"].options)  # type: ignore[index]
    try:
        return run_job(rank, storage, spec("shaky", {"hidden": 16}, compression={"method": "none"}, **parts))
    finally:
        TASKS.clear()  # type: ignore[attr-defined]
        TASKS.update(rows)  # type: ignore[attr-defined]


def test_one_two_and_three_workers_train_the_same_model_to_1e_minus_9(run_group, tmp_path):
    """The last batch has 29 samples, two micro-batches: the third worker's share is empty."""
    ends = [run_group(n, run_shaky, tmp_path / str(n), {"training": {"clip_norm": 1.0}})[0] for n in (1, 2, 3)]
    for end in ends[1:]:
        for one, other in zip(ends[0].parameters, end.parameters, strict=True):
            # float64 sums in another order; measured 3e-15 over 460 steps
            assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


def test_the_loss_and_the_metrics_do_not_depend_on_the_number_of_workers(run_group, tmp_path):
    ends = [run_group(n, run_shaky, tmp_path / str(n), {})[0].link.of("epoch")[-1] for n in (1, 3)]
    assert ends[0].loss == pytest.approx(ends[1].loss, rel=1e-9)
    assert ends[0].metrics["accuracy"] == pytest.approx(ends[1].metrics["accuracy"])


def test_accumulating_smaller_micro_batches_trains_the_same_model(run_group, tmp_path):
    whole, small = (
        run_group(
            1,
            run_job,
            tmp_path / str(size),
            spec(training={"micro_batch": size}, compression={"method": "none"}, workers={"max": 1}),
        )[0]
        for size in (64, 10)
    )
    for one, other in zip(whole.parameters, small.parameters, strict=True):
        # fp32 sums in another order, grown by 46 steps of training
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-4)


def test_another_seed_trains_another_model(run_group, tmp_path):
    one, other = (run_group(1, run_job, tmp_path / str(s), spec(training={"seed": s}))[0] for s in (0, 1))
    assert not equal(one.parameters, other.parameters)


def job_file(name: str) -> JobSpec:
    """A job of deploy/jobs at full speed."""
    job = yaml.safe_load((JOBS / name).read_text())
    job["task"]["options"]["min_step_s"] = 0.0
    return JobSpec.model_validate(job)


def levels(result: Result) -> str:
    """One letter an epoch: l, h, or m where the layers differ."""
    by_epoch = [set(record.level_by_layer.values()) for record in result.link.of("epoch")]
    return "".join("m" if len(names) > 1 else names.pop()[0] for names in by_epoch)


def test_the_demo_reads_95_of_100_digits_right_and_shows_both_regimes(run_group, tmp_path):
    result = run_group(2, run_job, tmp_path, job_file("digits.yaml"))[0]
    assert result.link.of("epoch")[-1].metrics["accuracy"] >= 0.95
    assert levels(result) == "llllllhhhhhhllhhllhh"


def test_the_watched_demo_is_light_at_first_and_after_each_drop_of_the_rate_and_strong_elsewhere(run_group, tmp_path):
    run = levels(run_group(2, run_job, tmp_path, job_file("digits-watch.yaml"))[0])
    assert run[:20] == "l" * 6 + "h" * 14
    # in between the gradients say how long the first drop is felt: changes near the threshold differ by processor
    assert (run[20:22], run[30:32], run[32:]) == ("ll", "hh", "llhhhhhh")
