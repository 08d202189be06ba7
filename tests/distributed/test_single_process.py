"""A module without DistributedDataParallel, as Ray Train's `prepare_model` leaves it with one
worker.
"""

from __future__ import annotations

import copy
import gc
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from accordion.base.errors import HookError
from accordion.config import Config, DetectorConfig, Window
from accordion.decide.controller import Decider
from accordion.session.session import Session, attach
from tests.distributed import small

STEPS = 6


def _model() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return small.SmallNet()


def _attached(
    method: str = "powersgd",
    scaler: torch.amp.GradScaler | None = None,
    decider: Decider | None = None,
) -> tuple[torch.nn.Module, torch.optim.Optimizer, Session]:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session = attach(model, _config(method), optimizer=optimizer, scaler=scaler, decider=decider)
    return model, optimizer, session


def _config(method: str = "powersgd") -> Config:
    return Config(method=method, detector=DetectorConfig(window=Window(epochs=1)))


def _backward(model: torch.nn.Module, step: int, scaler: Any = None) -> None:
    inputs, labels = small.batch(0, step)
    loss = cross_entropy(model(inputs), labels)
    (loss if scaler is None else scaler.scale(loss)).backward()


def _values(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def _plain() -> list[torch.Tensor]:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        _backward(model, step)
        optimizer.step()
        optimizer.zero_grad()
    return _values(model)


def _bare(rank: int, method: str) -> tuple[Any, ...]:
    model, optimizer, session = _attached(method)
    switches = []
    for step in range(STEPS):
        _backward(model, step)
        assert session.step().taken
        optimizer.zero_grad()
        if step % 2:
            switches.append(session.end_epoch(lr=0.05, next_lr=0.05))
    payload = sum(
        count.payload for name, count in session.ledger.by_layer.items() if name != "(control)"
    )
    same = [torch.equal(a, b) for a, b in zip(_plain(), _values(model), strict=True)]
    return same, switches, payload, session.ledger.total.wire


@pytest.mark.parametrize("method", ["none", "powersgd"])
def test_a_bare_module_in_a_group_of_one_trains_as_without_us(run_group, method):
    ((same, switches, payload, wire),) = run_group(1, _bare, method)
    assert all(same)
    assert all(len(switch.acks) == 1 for switch in switches)
    assert all(change is not None for change in switches[-1].decision.change_by_layer.values())
    assert (payload, wire) == (0, 0)


def test_a_bare_module_without_a_process_group_trains_as_without_us():
    assert all(_bare(0, "powersgd")[0])


def test_the_statistic_is_that_of_the_accumulated_raw_gradient_before_it_is_clipped():
    reports = []
    model, optimizer, session = _attached(
        decider=lambda report, proposal: reports.append(report) or proposal
    )
    _backward(model, 99)
    optimizer.zero_grad()  # discarded, as a generator's pass leaves gradients in a discriminator
    for step in range(3):
        _backward(model, step)
    expected = {name: float(parameter.grad.norm()) for name, parameter in model.named_parameters()}
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    session.step()
    session.end_epoch(lr=0.05, next_lr=0.05)
    # layers of at most 1,024 values are kept as they are; others are sketched, to within 7 %
    for name, found in reports[0].statistic_by_layer.items():
        assert found == pytest.approx(expected[name], rel=1e-5 if name == "last.weight" else 0.1)


@pytest.mark.parametrize("unscaled", [False, True])
def test_a_scaler_skips_a_step_that_is_not_finite_and_goes_on(unscaled):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10**6)
    model, optimizer, session = _attached(scaler=scaler)
    before = _values(model)
    for step, taken in ((0, False), (1, True)):
        _backward(model, step, scaler)
        if not taken:
            model.last.bias.grad[0] = torch.inf
        if unscaled:
            scaler.unscale_(optimizer)
        assert session.step().taken == taken
        assert all(torch.equal(a, b) for a, b in zip(before, _values(model), strict=True)) != taken
        optimizer.zero_grad()
    assert scaler.get_scale() == 2.0**9


def _pair(rank: int) -> bytes:
    ddp, session = small.start("topk")
    small.train(session, ddp, rank, range(3))
    buffer = io.BytesIO()
    torch.save((session.state_dict(), ddp.module.state_dict()), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("unscaled", [None, False, True])
def test_what_two_workers_owed_is_paid_once_by_one(run_group, unscaled):
    saved = [torch.load(io.BytesIO(content)) for content in run_group(2, _pair)]
    scaler = None if unscaled is None else torch.amp.GradScaler("cpu", init_scale=2.0**10)
    model, optimizer, session = _attached("topk", scaler)
    model.load_state_dict(saved[0][1])
    session.load_state_dict([state for state, _ in saved])
    owed = small.owed(session)
    assert owed
    twin = copy.deepcopy(model)
    _backward(twin, 7)
    _backward(model, 7, scaler)
    if unscaled:
        scaler.unscale_(optimizer)
    assert session.step().taken
    for (name, parameter), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        expected = other.grad + (owed[name].view_as(other) if name in owed else 0)
        torch.testing.assert_close(parameter.grad, expected)
    assert not small.owed(session)


def _pair_with_bare(rank: int) -> str:
    with pytest.raises(HookError) as refused:
        _attached()
    return str(refused.value)


def test_a_bare_module_among_several_workers_is_refused(run_group):
    assert all(
        "wrap the model in DistributedDataParallel" in text
        for text in run_group(2, _pair_with_bare)
    )


def test_a_step_without_a_backward_pass_is_refused():
    _, _, session = _attached()
    with pytest.raises(HookError, match=r"call backward\(\)"):
        session.step()


def test_a_session_that_is_gone_no_longer_follows_its_module():
    model, _, session = _attached()
    del session
    gc.collect()
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


def _attached_before_the_group(rank: int, folder: Path) -> str:
    dist.destroy_process_group()  # as if this process had not joined yet
    model, _, session = _attached()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    _backward(DistributedDataParallel(model), rank)
    with pytest.raises(HookError) as refused:
        session.step()
    return str(refused.value)


def test_a_bare_module_that_is_wrapped_after_attach_is_refused(run_group, tmp_path):
    said = run_group(2, _attached_before_the_group, tmp_path)
    assert all("attach() after wrapping it in DistributedDataParallel" in text for text in said)


def test_a_bare_module_is_followed_by_one_session_at_a_time():
    model, _, session = _attached()
    config = _config()
    with pytest.raises(HookError, match="has a session already"):
        attach(model, config)
    attach(copy.deepcopy(model), config)
    del session
    gc.collect()
    attach(model, config)


def test_torchrun_with_one_process_needs_no_process_group(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    monkeypatch.setenv("WORLD_SIZE", "1")
    model, _, session = _attached()
    _backward(model, 0)
    assert session.step().taken
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(HookError, match=r"call init_process_group\(\)"):
        _attached()


class _FailingScaler(torch.amp.GradScaler):
    """Fails as a scaler does on a device that is lost."""

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_an_error_while_unscaling_is_raised():
    scaler = _FailingScaler("cpu")
    model, _, session = _attached(scaler=scaler)
    _backward(model, 0, scaler)
    with pytest.raises(RuntimeError, match="CUDA error"):
        session.step()


def _lr_loaded_back(rank: int) -> float:
    """Rate in a saved state whose epoch ended with numpy's numbers."""
    model, _, session = _attached()
    _backward(model, 0)
    session.step()
    session.end_epoch(lr=np.float64(0.05), next_lr=np.float64(0.025))
    torch.save(session.state_dict(), saved := io.BytesIO())
    saved.seek(0)
    return torch.load(saved, weights_only=True)["lr"]


def test_rates_of_numpy_are_saved_as_numbers_that_load_back(run_group: Any) -> None:
    assert run_group(1, _lr_loaded_back) == [0.025]
