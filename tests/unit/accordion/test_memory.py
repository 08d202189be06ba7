"""Memory that a session holds beside DDP's, in copies of the parameters."""

from __future__ import annotations

import gc
import math
from contextlib import contextmanager
from functools import cache

import pytest
import torch

from accordion.base.wire import Scratch, as_bytes
from accordion.compress import compression_engine
from accordion.compress.compression_engine import DENSE
from accordion.compressors import ladder_of
from tests.unit.accordion.alone import alone, step
from tests.unit.accordion.lockstep import LEVELS, Cluster, draw_gradients

SHAPES = {f"layer {place}": (512, 1024) for place in range(12)}
COPY = 4 * sum(map(math.prod, SHAPES.values()))
LARGEST = {
    "none": 0.0,
    "half": 1.1,
    "qsgd": 0.9,
    "powersgd": 1.1,
    "signsgd": 1.2,
    "topk": 2.1,
    "randomk": 1.4,
    "adacomp": 1.8,
}
"""Copies that a method may hold: the residual, and what is sent at its light level. Buffers for a
block of adacomp take 12 MB, half a copy of this small model. A step takes no more, because it
allocates nothing (`test_allocations.py`).
"""
LARGEST_OF_OTHERS = 2.2
"""Copies that a method may hold that is not in the table."""


def _live_bytes() -> int:
    """Bytes of the tensors that were made since the last `gc.freeze`."""
    gc.collect()
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in gc.get_objects()
        if issubclass(type(tensor), torch.Tensor)
    }
    return sum(storages.values())


@cache
def _dense_bytes() -> int:
    return _held_bytes(DENSE)


def _held_bytes(level, shapes=SHAPES) -> int:
    """Return the bytes that a module and its session hold after a few steps."""
    gc.collect()
    gc.freeze()
    with alone(shapes, level) as (ddp, session):
        for _ in range(3):
            step(ddp, session)
        return _live_bytes()


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: f"{level.method}-{level.name}")
def test_a_method_holds_few_copies_of_the_parameters(level):
    largest = LARGEST.get(level.method, LARGEST_OF_OTHERS)
    assert _held_bytes(level) - _dense_bytes() <= largest * COPY


def test_a_layer_of_one_long_row_has_one_residual_as_any_other():
    shapes, high = {"table": (1, 1 << 22)}, ladder_of("randomk")[1]
    held = _held_bytes(high, shapes) - _held_bytes(DENSE, shapes)
    assert held <= 1.2 * 4 * (1 << 22)


class Forgetful(Scratch):
    """Buffers whose content is spoiled when a flow waits."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.taken: list[torch.Tensor] = []

    def take(self, name, shape, dtype=torch.float32):
        self.taken.append(super().take(name, shape, dtype))
        return self.taken[-1]


class Interrupted(Cluster):
    """Workers between whose requests the shared buffers are spoiled."""

    scratches: list[Forgetful]

    @contextmanager
    def as_worker(self, rank):
        """Implements `Cluster`."""
        yield
        for buffer in [buffer for scratch in self.scratches for buffer in scratch.taken]:
            as_bytes(buffer).fill_(0xA5)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: f"{level.method}-{level.name}")
def test_no_flow_needs_the_shared_buffers_after_a_request(level, monkeypatch):
    def updates(kind):
        cluster = kind({"w": (300, 200), "v": (5, 7)}, 3)
        cluster.scratches = scratches
        cluster.switch(level)
        return [cluster.step(draw_gradients({"w": (300, 200), "v": (5, 7)}, 3, s)) for s in (0, 1)]

    def keep(device):
        scratches.append(Forgetful(device))
        return scratches[-1]

    scratches: list[Forgetful] = []
    expected = updates(Cluster)
    monkeypatch.setattr(compression_engine, "Scratch", keep)
    for step_updates, step_expected in zip(updates(Interrupted), expected, strict=True):
        for own, other in zip(step_updates, step_expected, strict=True):
            assert all(torch.equal(own[layer], other[layer]) for layer in own)
