"""Whole training steps on one card: nothing waits for it, and a session saves, resumes, and runs
under autocast and compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from accordion.compressors import COMPRESSORS
from accordion.config import Config, DetectorConfig, Window
from accordion.session.session import Session, attach
from tests.distributed import small

EACH_EPOCH = DetectorConfig(window=Window(epochs=1))


class Training:
    """A model on the card, wrapped and attached."""

    def __init__(
        self, rank: int, card: torch.device, config: Config, bucket_mb: float = 0.04
    ) -> None:
        torch.manual_seed(0)
        self.rank, self.card = rank, card
        self.ddp = DistributedDataParallel(
            small.SmallNet().to(card), device_ids=[card], bucket_cap_mb=bucket_mb
        )
        self.model: Any = self.ddp
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.05, momentum=0.9)
        self.session: Session = attach(self.ddp, config, optimizer=self.optimizer)

    def step(self, number: int, around: Any = nullcontext) -> None:
        """One step; `around` is entered for the forward and the backward pass."""
        inputs, labels = (part.to(self.card) for part in small.batch(self.rank, number))
        with around():
            cross_entropy(self.model(inputs), labels).backward()
        self.session.step()
        self.optimizer.zero_grad()

    def parameters(self) -> list[torch.Tensor]:
        """Copies on the CPU."""
        return [parameter.detach().cpu() for parameter in self.ddp.module.parameters()]


def _with_nccl(world_size: int = 1) -> None:
    dist.destroy_process_group()
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=world_size)


@contextmanager
def _no_waits() -> Iterator[None]:
    """Raise where the host would wait for the card."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _pass_without_waits(rank: int, method: str, card: torch.device) -> int:
    _with_nccl()
    training = Training(rank, card, Config(method=method, detector=EACH_EPOCH))
    for number in range(3):
        training.step(number)
    for number in range(3, 6):
        training.step(number, _no_waits)
    return training.session.steps


@pytest.mark.parametrize("method", sorted(set(COMPRESSORS) - {"adacomp"}))
def test_the_host_waits_for_nothing_during_a_pass(run_group, card, method):
    assert run_group(1, _pass_without_waits, method, card) == [6]


def _resumed(rank: int, method: str, card: torch.device) -> tuple[list[torch.Tensor], ...]:
    config = Config(method=method, detector=EACH_EPOCH, buckets_per_exchange=1)
    first = Training(rank, card, config)
    for number in range(3):
        first.step(number)
    saved = [first.session.gather_state_dict()]
    dist.broadcast_object_list(saved, device=torch.device("cpu"))
    second = Training(rank, card, config)
    second.ddp.load_state_dict(first.ddp.state_dict())
    second.optimizer.load_state_dict(deepcopy(first.optimizer.state_dict()))
    second.session.load_state_dict(saved[0])
    for number in range(3, 6):
        first.step(number)
        second.step(number)
    return first.parameters(), second.parameters()


@pytest.mark.parametrize("method", sorted(COMPRESSORS))
def test_a_session_that_resumes_goes_on_with_the_same_bits(run_group, card, method):
    for undisturbed, resumed in run_group(2, _resumed, method, card):
        assert all(torch.equal(a, b) for a, b in zip(undisturbed, resumed, strict=True))


def _in_bf16(rank: int, card: torch.device, *, compiled: bool) -> float:
    _with_nccl()
    config = Config(method="powersgd", detector=EACH_EPOCH)
    training = Training(rank, card, config, bucket_mb=25)
    if compiled:
        training.model = torch.compile(training.ddp)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        for number in range(4):
            training.step(number)
    return float(sum(parameter.double().square().sum() for parameter in training.parameters()))


def _compiled(rank: int, card: torch.device) -> float:
    return _in_bf16(rank, card, compiled=True)


def _eager(rank: int, card: torch.device) -> float:
    return _in_bf16(rank, card, compiled=False)


def test_a_compiled_model_trains_in_bf16_as_without(run_group, card):
    (eager,), (compiled,) = run_group(1, _eager, card), run_group(1, _compiled, card)
    assert compiled == pytest.approx(eager, rel=1e-3)


def _skipped(rank: int, method: str, card: torch.device) -> tuple[int, list[torch.Tensor]]:
    training = Training(rank, card, Config(method=method, detector=EACH_EPOCH))
    training.step(0)
    before = training.parameters()
    with torch.no_grad():
        weight = training.ddp.module.last.weight
        handle = weight.register_hook(lambda grad: grad * (torch.inf if rank == 1 else 1.0))
    training.step(1)
    handle.remove()
    kept = all(torch.equal(a, b) for a, b in zip(before, training.parameters(), strict=True))
    training.step(2)
    return training.session.skipped_steps + 10 * kept, training.parameters()


@pytest.mark.parametrize("method", sorted(COMPRESSORS))
def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_step_on_both(run_group, card, method):
    (first, one), (second, other) = run_group(2, _skipped, method, card)
    assert first == second == 11
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _with_policy(rank: int, policy: str, card: torch.device) -> int:
    training = Training(rank, card, Config(method="powersgd", policy=policy, detector=EACH_EPOCH))
    for number in range(16):
        training.step(number)
        if number % 4 == 3:
            training.session.end_epoch(lr=0.05, next_lr=0.05)
    return training.session.epoch


@pytest.mark.parametrize("policy", ["two_level", "gain", "adaqs", "entropy", "cost_aware"])
def test_a_policy_decides_over_epochs_on_a_card(run_group, card, policy):
    assert run_group(2, _with_policy, policy, card) == [4, 4]
