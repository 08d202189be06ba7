"""The laws of compression on a card, on pretended workers in lockstep in one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from accordion.compressors import ladder_of
from tests.unit.accordion.compressor_laws import LAWS, sent_and_owed_add_up
from tests.unit.accordion.lockstep import (
    FEEDBACK_METHODS,
    LEVELS,
    METHODS,
    Cluster,
    closeness,
    draw_gradients,
)

SHAPES = [(9, 7), (64, 8, 3, 3), (300, 450)]
"""A layer without whole bytes of signs, a kernel, and one that is compressed in the bucket."""


@pytest.fixture(autouse=True)
def on_card(card: torch.device) -> Iterator[None]:
    """Tensors that name no device are on the card."""
    with card:
        yield


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("level", LEVELS, ids=lambda level: f"{level.method}-{level.name}")
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_every_level_keeps_the_law(law, level, shape):
    law(level, shape=shape, world_size=3, seed=0)


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("method", FEEDBACK_METHODS)
def test_what_is_sent_and_what_is_owed_add_up(method, shape, tf32):
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        for level in ladder_of(method):
            sent_and_owed_add_up(level, shape=shape, world_size=3, seed=0)
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"qsgd"}))
def test_a_card_and_a_processor_send_the_same(method):
    def train() -> torch.Tensor:
        cluster = Cluster({"w": (300, 450)}, 2)
        cluster.switch(ladder_of(method)[0])
        for seed in range(3):
            update = cluster.step(draw_gradients({"w": (300, 450)}, 2, seed))[0]["w"]
        return update.cpu()

    on_card = train()
    with torch.device("cpu"):
        on_processor = train()
    atol = 10 * closeness(on_processor)
    # A value at the edge of what is selected or rounded may fall on either side.
    apart = (on_card - on_processor).abs() > atol
    assert apart.float().mean() < 1e-4
