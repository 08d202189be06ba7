"""Memory that a step takes from the allocator once everything is warm, told by the profiler."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from accordion.compress import exchange
from accordion.compressors import COMPRESSORS
from tests.unit.accordion.alone import alone, step
from tests.unit.accordion.lockstep import LEVELS

MOST_BYTES = 64 * 1024
SHAPES = {
    "large": (1024, 1100),
    "conv": (64, 32, 3, 3),
    "small.0": (48, 64),
    "small.1": (48, 64),
    "bias": (20_000,),
}
WARM_UP = 4
QR_WORKSPACE = 1024 + 64 * max(SHAPES["large"])
"""What LAPACK's QR takes for itself, 64 bytes a row and a little; torch offers no way to keep it.
"""


def _allocations(run):
    """Sizes that were asked for during `run`, by the operation they were asked in."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    sizes = []
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]" and event.nbytes() > 0:
            sizes.append(event.nbytes())
    return sizes


def test_the_profiler_sees_an_allocation():
    assert max(_allocations(lambda: torch.empty(MOST_BYTES + 1, dtype=torch.uint8))) > MOST_BYTES


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: f"{level.method}-{level.name}")
def test_no_step_takes_more_than_64_kb_at_once_after_warm_up(level, monkeypatch):
    # gloo's own all-gather takes two buffers of the payload's size a call
    monkeypatch.setattr(exchange, "_gather_rows", lambda gathered, row, group: gathered.copy_(row))
    with alone(SHAPES, level) as (ddp, session):
        for _ in range(WARM_UP):
            step(ddp, session)
        without_hook = sorted(_allocations(lambda: ddp.module().backward()), reverse=True)
        sizes = sorted(_allocations(lambda: step(ddp, session)), reverse=True)
    own = list(sizes)
    for size in without_hook:
        if size in own:
            own.remove(size)
    most = max(MOST_BYTES, QR_WORKSPACE) if COMPRESSORS[level.method].matrices else MOST_BYTES
    assert not [size for size in own if size > most]
