"""Workers whose processes compute on different numbers of threads keep equal parameters."""

from __future__ import annotations

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from accordion.compressors.linalg import orthonormalize_
from accordion.config import Config
from accordion.session.session import attach
from tests.unit.accordion.lockstep import OPTION_LEVELS, UnlikeThreads, draw_gradients

ROWS = 20_000
"""Rows of a matrix from which MKL's QR of four columns sums otherwise with two threads than with
one.
"""


def _train(rank: int, factors: str, refresh_every: int) -> list[torch.Tensor]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1 + rank)
    try:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Embedding(ROWS, 16), torch.nn.Linear(16, 4))
        ddp = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        level = {"rank": 4, "factors": factors, "refresh_every": refresh_every}
        session = attach(ddp, Config(method="powersgd", low=level, high=level), optimizer=optimizer)
        for step in range(3):
            words = torch.randint(
                ROWS, (4096,), generator=torch.Generator().manual_seed(2 * step + rank)
            )
            ddp(words).square().mean().mul(1e3).backward()
            session.step()
            optimizer.zero_grad()
        return [parameter.detach().clone() for parameter in ddp.module.parameters()]
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("refresh_every", [0, 2])
@pytest.mark.parametrize("factors", ["both", "alternating"])
def test_workers_with_one_and_two_threads_have_the_same_parameters_to_the_bit(
    run_group, factors, refresh_every
):
    first, second = run_group(2, _train, factors, refresh_every)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("level", OPTION_LEVELS, ids=lambda level: f"{level.method}-{level.name}")
@pytest.mark.parametrize("shape", [(64, 576), (8, 5000), (ROWS, 16), (48, 32, 3, 3)], ids=str)
def test_workers_with_one_and_two_threads_get_the_same_bits_at_every_level(shape, level):
    shapes, workers = {"w": shape, "v": shape}, 3 if level.method == "qsgd" else 2
    cluster = UnlikeThreads(shapes, workers)
    cluster.switch(level)
    for seed in range(3):
        first, *others = cluster.step(draw_gradients(shapes, workers, seed))
        for other in others:
            assert all(torch.equal(first[name], other[name]) for name in shapes)


@pytest.mark.parametrize("shape", [(1, 50_000, 2), (1, ROWS, 4), (2, 512, 32)])
def test_orthogonal_columns_do_not_depend_on_the_number_of_threads(shape):
    matrix, found, before = torch.randn(shape), [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(matrix.clone())
            orthonormalize_(found[-1])
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[0], other) for other in found[1:])
