"""The ledger against published counts, and against itself."""

from __future__ import annotations

import pytest
import torch

from accordion.compress.ledger import OVERHEAD, Ledger
from tests.bench.resnet import PARAMETERS, resnet18
from tests.unit.accordion.alone import alone, step
from tests.unit.accordion.lockstep import LEVELS, rank_level

STEPS_OF_THE_PAPER = 98 * 300
"""50,000 pictures in batches of 512, 300 epochs (arXiv:2010.16248)."""


@pytest.fixture(scope="module")
def shapes():
    return {name: tuple(parameter.shape) for name, parameter in resnet18().named_parameters()}


@pytest.mark.parametrize(("rank", "published_mfloats"), [(2, 2418.4), (1, 1350.4)])
def test_a_step_of_resnet18_counts_what_the_paper_published(shapes, rank, published_mfloats):
    with alone(shapes, rank_level(rank)) as (ddp, session):
        step(ddp, session)
        sent = {
            layer: count.payload
            for layer, count in session.ledger.by_layer.items()
            if layer != OVERHEAD
        }
    mfloats = sum(sent.values()) / 4 * STEPS_OF_THE_PAPER / 1e6
    # published with one decimal; for rank 1 the last one is cut, not rounded (1350.46)
    assert mfloats == pytest.approx(published_mfloats, abs=0.1)


def test_the_dense_equivalent_of_resnet18_is_all_its_parameters(shapes):
    with alone(shapes, rank_level(2)) as (ddp, session):
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
