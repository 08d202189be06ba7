"""Every method on one card: two ranks by gloo, since NCCL refuses two ranks on a card, and one by
NCCL.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from accordion.compress.executors import StreamExecutor
from accordion.compressors import COMPRESSORS
from accordion.config import Config, DetectorConfig, Window
from accordion.session.session import Session, attach
from tests.distributed import small

METHODS = sorted(COMPRESSORS)


def _train(rank: int, method: str, card: torch.device) -> tuple[list[torch.Tensor], Session]:
    """Take six steps in two epochs; parameters end finite, on the CPU."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(small.SmallNet().to(card), device_ids=[card], bucket_cap_mb=0.04)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    config = Config(method=method, detector=DetectorConfig(window=Window(epochs=1)))
    session = attach(ddp, config, optimizer=optimizer, scaler=scaler)
    for step in range(6):
        inputs, labels = small.batch(rank, step)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = cross_entropy(ddp(inputs.to(card)), labels.to(card))
        scaler.scale(loss).backward()
        session.step()
        optimizer.zero_grad()
        if step % 3 == 2:
            session.end_epoch(lr=0.05, next_lr=0.05)
    return [parameter.detach().cpu() for parameter in ddp.module.parameters()], session


def _on_gloo(rank: int, method: str, card: torch.device) -> list[torch.Tensor]:
    return _train(rank, method, card)[0]


def _on_nccl(
    rank: int, method: str, card: torch.device, backend: str | None
) -> tuple[list[torch.Tensor], bool]:
    dist.destroy_process_group()
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    parameters, session = _train(rank, method, card)
    return parameters, isinstance(session.hook._executor, StreamExecutor)


@pytest.mark.parametrize("method", METHODS)
def test_two_ranks_on_a_card_end_with_the_same_bits(run_group, card, method):
    first, second = run_group(2, _on_gloo, method, card)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.isfinite(value).all() for value in first)


@pytest.mark.parametrize("backend", ["nccl", None])
@pytest.mark.parametrize("method", METHODS)
def test_nccl_exchanges_on_a_stream_also_if_the_backend_was_not_named(
    run_group, card, method, backend
):
    ((parameters, on_stream),) = run_group(1, _on_nccl, method, card, backend)
    assert on_stream
    assert all(torch.isfinite(value).all() for value in parameters)
