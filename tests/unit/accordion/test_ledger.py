"""The ledger against published counts, and against itself."""

from __future__ import annotations

import runpy
from functools import partial
from pathlib import Path

import pytest
import torch

from accordion.compress.ledger import OVERHEAD, Ledger
from tests.bench.resnet import PARAMETERS, resnet18
from tests.unit.accordion.alone import alone, step
from tests.unit.accordion.lockstep import LEVELS, rank_level

EPOCHS = 300
"""Epochs of the published runs (arXiv:2010.16248), on 50,000 images."""
STEPS = 98 * EPOCHS
"""In batches of 512; the last one is short."""
RECIPES = Path(__file__).parents[3] / "deploy" / "recipes" / "card" / "code"


def shapes_of(model):
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def vgg19():
    code = runpy.run_path(str(RECIPES / "vgg.py"))
    return code["build_vgg19"](10)


def densenet_parameters(classes, *, growth=12, blocks=(6, 12, 24, 16)):
    """Number of parameters of the DenseNet for 32 x 32 images (arXiv:1608.06993), whose transitions
    halve the channels.
    """
    channels = 2 * growth
    count = 3 * 9 * channels
    for number, layers in enumerate(blocks):
        for _ in range(layers):
            wide = 4 * growth
            count += 2 * channels + channels * wide + 2 * wide + 9 * wide * growth
            channels += growth
        if number < len(blocks) - 1:
            count += 2 * channels + channels * (channels // 2)
            channels //= 2
    return count + 2 * channels + (channels + 1) * classes


@pytest.mark.parametrize(
    ("network", "rank", "published_mfloats"),
    [
        (resnet18, 2, 2418.4),
        (resnet18, 1, 1350.4),
        (partial(resnet18, classes=100), 2, 2426.3),
        (partial(resnet18, classes=100), 1, 1355.7),
        (vgg19, 4, 6752.0),
        (vgg19, 1, 2074.9),
    ],
    ids=[
        "ResNet-18 rank 2",
        "ResNet-18 rank 1",
        "ResNet-18 of 100 classes rank 2",
        "ResNet-18 of 100 classes rank 1",
        "VGG-19 rank 4",
        "VGG-19 rank 1",
    ],
)
def test_a_run_with_powersgd_counts_the_floats_that_were_published(
    network, rank, published_mfloats
):
    with alone(shapes_of(network()), rank_level(rank)) as (ddp, session):
        step(ddp, session)
        sent = {
            layer: count.payload
            for layer, count in session.ledger.by_layer.items()
            if layer != OVERHEAD
        }
    mfloats = sum(sent.values()) / 4 * STEPS / 1e6
    # Published with one decimal; some are cut there and not rounded, such as 1350.49.
    assert mfloats == pytest.approx(published_mfloats, abs=0.1)


@pytest.mark.parametrize(
    ("parameters", "batch", "published_gfloats"),
    [
        (densenet_parameters(100), 512, 30.1),
        (densenet_parameters(100), 4096, 3.7),
        (PARAMETERS, 4096, 40.2),
    ],
)
def test_a_run_without_compression_counts_the_floats_that_were_published(
    parameters, batch, published_gfloats
):
    # These runs left the last, short batch of an epoch out.
    gfloats = parameters * (50_000 // batch) * EPOCHS / 1e9
    assert round(gfloats, 1) == published_gfloats


def test_the_dense_equivalent_of_resnet18_is_all_its_parameters():
    with alone(shapes_of(resnet18()), rank_level(2)) as (ddp, session):
        step(ddp, session)
        assert (session.ledger.total.dense, session.ledger.total.fp16) == (
            4 * PARAMETERS,
            2 * PARAMETERS,
        )


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: f"{level.method}-{level.name}")
def test_bytes_by_collective_name_the_method_and_nothing_else(level):
    with alone({"a": (40, 30), "b": (30, 50), "c": (7,)}, level) as (ddp, session):
        step(ddp, session)
        methods = {name.rpartition(" ")[0] for name in session.ledger.by_collective}
    assert methods == {level.method, "none", OVERHEAD}


def test_a_summary_tells_gradients_changes_of_local_steps_and_control_apart():
    ledger = Ledger(2)
    ledger.count_dense("w", torch.zeros(10))
    ledger.counts_changes = True
    ledger.count_dense("w", torch.zeros(3))
    ledger.count_broadcast(100)
    resumed = Ledger(2)
    resumed.restore(Ledger.parse_tables(ledger.state_dict()))
    for summary in (ledger.summarize(), resumed.summarize()):
        assert summary["payload_by_method"] == {"none": 40, "none (local steps)": 12, OVERHEAD: 100}
        assert summary["wire_by_method"] == {"none": 40, "none (local steps)": 12, OVERHEAD: 50}
        assert (summary["payload"], summary["control_wire"]) == (152, 50)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_dense_wire_bytes_are_those_that_an_uncompressed_layer_sends(workers):
    ledger = Ledger(workers)
    gradient = torch.zeros(12, 100)
    ledger.count_dense("w", gradient)
    ledger.count_dense_equivalent("w", gradient.numel())
    assert ledger.total.wire == ledger.total.dense_wire == 2 * (workers - 1) * 4800 // workers
