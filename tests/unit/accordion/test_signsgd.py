"""What signsgd promises beyond the laws."""

from __future__ import annotations

import pytest
import torch

from accordion.base.wire import Context, Flow, Scratch
from accordion.compressors.packing import block_size
from accordion.compressors.signsgd import signsgd_flow
from tests.unit.accordion.lockstep import run_flows_lockstep
from tests.unit.accordion.one_flow import Alone, assert_keeps_its_memory

BLOCK = block_size(torch.device("cpu"))


def flow_of(owed_BL: torch.Tensor) -> tuple[Flow, torch.Tensor]:
    """The flow and the update that it will write."""
    update = torch.full_like(owed_BL, torch.nan)
    scratch = Scratch(owed_BL.device)
    context = Context(
        options={},
        update=update,
        scratch=scratch,
        shared=scratch,
        step=0,
        world_size=1,
        rank=0,
        draw=lambda whose: torch.Generator(),
    )
    return signsgd_flow(owed_BL, context), update


def exchange(*owed_by_worker: torch.Tensor) -> list[torch.Tensor]:
    """Updates by worker; what is owed is changed in place."""
    flows, updates = zip(*(flow_of(owed) for owed in owed_by_worker), strict=True)
    run_flows_lockstep([[flow] for flow in flows])
    for flow in flows:
        next(flow, None)
    return list(updates)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_an_update_is_the_sign_times_the_mean_magnitude_of_its_layer():
    owed = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.0, -0.25]])
    [update] = exchange(owed)
    assert update.tolist() == [[2, -2, 2], [0.25, 0.25, -0.25]]
    assert owed.tolist() == [[-1, 0, 1], [0.25, -0.25, 0]]


@pytest.mark.parametrize(
    "shape", [(1, 1), (3, 9), (5, 64), (1, BLOCK + 13), (2, BLOCK + 8), (7, BLOCK // 3)]
)
def test_update_and_residual_are_those_of_the_formula_whatever_the_blocks(shape):
    given = normal(*shape)
    owed = given.clone()
    [update] = exchange(owed)
    scale = given.double().abs().mean(1, keepdim=True).float()
    # The mean is summed in fp32 within a block: a few hundred thousand terms of equal sign in
    # partial sums.
    torch.testing.assert_close(update, given.sign() * scale, rtol=1e-6, atol=0)
    assert torch.equal(owed, given - update)


def test_workers_get_the_mean_of_their_scaled_signs():
    owed = [normal(2, 21, seed=seed) * (seed + 1) for seed in range(3)]
    expected = sum(own.sign() * own.abs().mean(1, keepdim=True) for own in owed) / 3
    for update in exchange(*owed):
        torch.testing.assert_close(update, expected, rtol=1e-5, atol=1e-6)


def test_a_layer_costs_one_bit_a_value_rounded_up_to_bytes_and_one_float():
    request = next(flow_of(normal(3, 1001))[0])
    assert request.equal
    assert request.payload.numel() == 3 * (126 + 4)


def test_one_worker_without_a_gradient_does_not_disturb_the_others():
    owed = [torch.ones(1, 10), torch.zeros(1, 10)]
    assert torch.equal(exchange(*owed)[0], torch.full((1, 10), 0.5))
    assert not owed[1].any()


def test_a_layer_without_values_passes():
    assert exchange(torch.empty(2, 0))[0].shape == (2, 0)


def test_feedback_makes_the_sum_of_updates_follow_a_constant_gradient():
    gradient = torch.rand(1, 200, generator=torch.Generator().manual_seed(0)) - 0.5
    owed, received = torch.zeros(1, 200), torch.zeros(1, 200)
    for _ in range(400):
        owed += gradient
        received += exchange(owed)[0]
    # Without feedback every value would be off by the distance of its magnitude to the scale: 0.25
    # at the ends.
    assert (received / 400 - gradient).abs().max() < 0.05


def test_no_step_after_the_first_allocates_beyond_64_kilobytes():
    assert_keeps_its_memory(Alone("signsgd", {}), normal(1, 3 * BLOCK))
