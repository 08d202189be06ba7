"""Residuals across world sizes, and the sketch that the detector's statistic comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from accordion.base.errors import StateError
from accordion.base.messages import LayerInfo
from accordion.compress.compression_engine import MEASURE_EVERY_STEPS, Engine
from accordion.compress.statistics import (
    SKETCH_SIZE,
    GradientSums,
    estimate_norms,
    root_mean_squares,
    sent_shares,
)
from accordion.compressors import ladder_of
from accordion.session.saved_states import MeanState
from tests.unit.accordion.lockstep import FEEDBACK_METHODS, Cluster, draw_gradients

CPU = torch.device("cpu")
SHAPE = {"w": (12, 10)}


def mean_of(engines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Average the engines' states, as a group of another size loads them."""
    mean = MeanState(len(engines))
    for engine in engines:
        mean.add({"engine": engine})
    return mean.result()["engine"]


@pytest.mark.parametrize("method", FEEDBACK_METHODS)
@given(before=st.integers(1, 4), after=st.integers(1, 4), seed=st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_a_group_of_another_size_owes_what_the_old_one_owed(method, before, after, seed):
    old, new = Cluster(SHAPE, before), Cluster(SHAPE, after)
    old.switch(ladder_of(method)[1])
    old.step(draw_gradients(SHAPE, before, seed))
    states = [engine.state_dict() for engine in old.engines]
    for rank, engine in enumerate(new.engines):
        engine.load_state_dict(states[rank] if before == after else mean_of(states))
    like = torch.zeros(SHAPE["w"])
    torch.testing.assert_close(
        new.mean_residual("w", like), old.mean_residual("w", like), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("method", FEEDBACK_METHODS)
def test_saved_loaded_and_continued_is_never_stopped(method):
    straight, resumed = Cluster(SHAPE, 2), Cluster(SHAPE, 2)
    straight.switch(ladder_of(method)[1])
    resumed.switch(ladder_of(method)[1])
    straight.step(draw_gradients(SHAPE, 2, 0))
    states = [engine.state_dict() for engine in straight.engines]
    for rank, engine in enumerate(resumed.engines):
        engine.load_state_dict(states[rank])
    gradients = draw_gradients(SHAPE, 2, 1)
    assert torch.equal(straight.step(gradients)[0]["w"], resumed.step(gradients)[0]["w"])
    assert resumed.engines[0].sums.steps == 2
    assert resumed.engines[0].ledger.total == straight.engines[0].ledger.total


def test_a_state_of_another_model_is_refused_by_layer_name():
    old = Cluster({"other": (12, 10)}, 1)
    old.switch(ladder_of("topk")[1])
    old.step(draw_gradients({"other": (12, 10)}, 1, 0))
    engine = Engine([LayerInfo(name="w", shape=(12, 10))], seed=0, world_size=1)
    with pytest.raises(StateError, match="unexpected \\['other'\\]"):
        engine.load_state_dict(old.engines[0].state_dict())


def _sums(shape: tuple[int, ...], gradients: Iterable[Tensor], seed: int = 0) -> GradientSums:
    """A window in which one worker has taken one step a gradient."""
    sums = GradientSums({"w": torch.Size(shape)}, seed)
    for gradient in gradients:
        sums.add("w", gradient)
        sums.commit()
    return sums


def _norm(sums: GradientSums) -> float:
    return estimate_norms(["w"], sums.summary(CPU))["w"]


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (32, 32)])
def test_a_layer_no_larger_than_its_sketch_has_an_exact_norm(shape):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert _norm(_sums(shape, [values])) == pytest.approx(values.norm().item(), rel=1e-6)


def _low_rank(draw: torch.Generator, rows: int) -> Tensor:
    return torch.randn(rows, 2, generator=draw) @ torch.randn(2, 256, generator=draw)


STREAMS = {
    "independent": lambda draw, rows: torch.randn(rows, 256, generator=draw),
    "all equal": lambda draw, rows: torch.ones(rows, 256),
    "one sign": lambda draw, rows: torch.rand(rows, 256, generator=draw),
    "rank two": _low_rank,
    "two rows": lambda draw, rows: torch.zeros(rows, 256).index_fill_(
        0, torch.tensor([3, rows - 2]), 1.0
    ),
}


@pytest.mark.parametrize("rows", [40, 1030, 4609, 12_000])
@pytest.mark.parametrize("stream", STREAMS)
def test_the_sketch_of_a_large_layer_has_its_norm_within_a_few_percent(stream, rows):
    draw, shape, errors = torch.Generator().manual_seed(0), (rows, 256), []
    for seed in range(20):
        values = STREAMS[stream](draw, rows)
        errors.append(_norm(_sums(shape, [values], seed)) / values.norm().item() - 1.0)
    # Columns of equal weight have a standard error of 2.2 %. Values that are alike cost up to
    # 1/sqrt(2 x 128) = 6.2 % more, since 512 entries of a tile share a sign: together 6.6 %. The
    # mean of 20 squared errors stays below (1.6 times that) squared, and the bias far below.
    standard_error = 0.066 if stream in {"all equal", "one sign", "rank two"} else 0.022
    assert torch.tensor(errors).square().mean().sqrt().item() < 1.6 * standard_error
    assert abs(sum(errors) / 20) < standard_error


def _features(draw: torch.Generator, shape: tuple[int, int], active: int) -> Tensor:
    """Return the gradient of a linear layer with few active input features: few columns, all of
    rank one.
    """
    features = torch.randperm(shape[1], generator=draw)[:active]
    values = torch.randn(shape[0], 1, generator=draw).expand(-1, active)
    return torch.zeros(shape).index_copy_(1, features, values.contiguous())


def _word_counts(draw: torch.Generator, shape: tuple[int, int]) -> Tensor:
    """Return the gradient of a linear layer over word counts, the most frequent words first."""
    return torch.randn(shape[0], 1, generator=draw) / torch.arange(1.0, shape[1] + 1)


def _embedding(draw: torch.Generator, shape: tuple[int, int]) -> Tensor:
    """Return the gradient of an embedding with five active rows."""
    rows, values = (
        torch.randperm(shape[0], generator=draw)[:5],
        torch.randn(5, shape[1], generator=draw),
    )
    return torch.zeros(shape).index_copy_(0, rows, values)


SPARSE = {
    "one feature": (lambda draw, shape: _features(draw, shape, 1), [(64, 1024), (1000, 2048)]),
    "thirty features": (lambda draw, shape: _features(draw, shape, 30), [(64, 1024), (500, 4096)]),
    "hashed text": (lambda draw, shape: _features(draw, shape, 3), [(64, 1 << 14), (4, 1 << 18)]),
    "word counts": (_word_counts, [(16, 1 << 16), (700, 1024)]),
    "embedding": (_embedding, [(10_000, 64), (1000, 1024)]),
}


@pytest.mark.parametrize(
    ("stream", "shape"), [(name, shape) for name, (_, shapes) in SPARSE.items() for shape in shapes]
)
def test_the_sketch_of_a_sparse_gradient_has_its_norm_within_the_promised_error(stream, shape):
    values = SPARSE[stream][0](torch.Generator().manual_seed(0), shape)
    errors = [
        _norm(_sums(shape, [values], seed)) / values.norm().item() - 1.0 for seed in range(16)
    ]
    # 2.2 % as in general, times 1.8: the mean of 16 squared errors has a relative standard error of
    # 35 %.
    assert torch.tensor(errors).square().mean().sqrt().item() < 1.8 * 0.022


def test_sketches_averaged_over_workers_are_the_sketch_of_the_mean():
    gradients = [
        torch.randn(60, 50, generator=torch.Generator().manual_seed(rank)) for rank in range(2)
    ]
    averaged = torch.stack([_sums((60, 50), [own], 3).summary(CPU) for own in gradients]).mean(0)
    of_mean = _sums((60, 50), [torch.stack(gradients).mean(0)], 3).summary(CPU)
    sketch = slice(0, SKETCH_SIZE)
    torch.testing.assert_close(
        averaged[:, sketch], of_mean[:, sketch], rtol=0, atol=1e-4
    )  # fp32 sums, another order


def test_sketches_of_two_seeds_differ_and_of_one_seed_are_the_same():
    gradient = torch.randn(60, 50, generator=torch.Generator().manual_seed(0))
    first, again, other = (_sums((60, 50), [gradient], seed).summary(CPU) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("shape", [(8, 8), (300, 70)])
def test_the_statistic_does_not_depend_on_the_number_of_steps(shape):
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert _norm(_sums(shape, [gradient] * 5)) == pytest.approx(
        _norm(_sums(shape, [gradient])), rel=1e-5
    )


@pytest.mark.parametrize("shape", [(8, 8), (300, 70)])
def test_the_statistic_is_kept_without_the_scale_of_the_loss(shape):
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    scaled = GradientSums({"w": torch.Size(shape)}, 0)
    scaled.add("w", gradient * 1024, scale=1 / 1024)
    scaled.commit()
    assert torch.equal(scaled.summary(CPU), _sums(shape, [gradient]).summary(CPU))


def test_the_mean_square_is_of_single_steps_and_does_not_cancel_where_the_mean_does():
    gradient = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    summary = _sums((8, 8), [gradient, -gradient]).summary(CPU)
    assert estimate_norms(["w"], summary)["w"] == pytest.approx(0.0, abs=1e-6)
    assert root_mean_squares(["w"], summary)["w"] == pytest.approx(gradient.norm().item(), rel=1e-5)


def test_a_step_that_was_rolled_back_is_not_counted():
    sums = _sums((8, 8), [torch.ones(8, 8)])
    sums.add("w", torch.full((8, 8), torch.nan))
    assert not torch.isfinite(sums.step_total())
    sums.rollback()
    assert sums.steps == 1
    assert _norm(sums) == pytest.approx(8.0)


def test_an_open_window_continues_with_the_mean_of_its_sums_when_the_world_resizes():
    old = [_sums((2, 2), [torch.full((2, 2), float(rank))]) for rank in range(2)]
    new = _sums((2, 2), [])
    empty = {"residuals": {}}
    new.load_state_dict(mean_of([{**empty, "window": own.state_dict()} for own in old])["window"])
    assert new.steps == 1
    assert _norm(new) == pytest.approx(1.0)
    assert root_mean_squares(["w"], new.summary(CPU))["w"] == pytest.approx(2**0.5)


def _sent_share(cluster: Cluster) -> dict[str, float]:
    """The share that the group sent, as a session computes it."""
    own = [engine.sums.summary(CPU) for engine in cluster.engines]
    return sent_shares(["w"], torch.stack(own).mean(0))


def _measuring(shapes: Mapping[str, tuple[int, ...]], method: str) -> Cluster:
    cluster = Cluster(shapes, 2)
    cluster.switch(ladder_of(method)[1])
    for engine in cluster.engines:
        engine.measures_sent_share = True
    return cluster


def test_the_share_sent_by_top_k_is_that_of_the_largest_entries():
    cluster, gradients = _measuring(SHAPE, "topk"), draw_gradients(SHAPE, 2, 0)
    cluster.step(gradients)
    squares = [own["w"].square().flatten() for own in gradients]
    sent = sum(float(square.max()) for square in squares)
    total = sum(float(square.sum()) for square in squares)
    assert _sent_share(cluster)["w"] == pytest.approx(sent / total, rel=1e-4)


@pytest.mark.parametrize("method", FEEDBACK_METHODS)
def test_a_matrix_that_a_method_can_send_whole_is_sent_whole(method):
    """A matrix of equal entries has rank 1 and one magnitude; only methods that send a fixed number
    of entries leave some out.
    """
    cluster, equal = _measuring(SHAPE, method), {"w": torch.ones(SHAPE["w"])}
    for _ in range(MEASURE_EVERY_STEPS + 1):
        cluster.step([equal, equal])
    share = _sent_share(cluster)["w"]
    assert 0.0 <= share <= 1.0
    assert (share > 0.99) == (method not in {"topk", "randomk"})


def test_nothing_is_known_of_what_is_not_compressed_or_not_measured():
    for method, measures in (("none", True), ("half", True), ("topk", False)):
        cluster = _measuring(SHAPE, method)
        for engine in cluster.engines:
            engine.measures_sent_share = measures
        cluster.step(draw_gradients(SHAPE, 2, 0))
        assert _sent_share(cluster) == {}


def test_a_skipped_step_leaves_the_share_as_it_was():
    cluster = _measuring(SHAPE, "topk")
    cluster.step(draw_gradients(SHAPE, 2, 0))
    before = _sent_share(cluster)
    for engine in cluster.engines:
        engine.load_state_dict({**engine.state_dict(), "steps": 0})
    cluster.exchange(draw_gradients(SHAPE, 2, 1), is_skipped=True)
    for engine in cluster.engines:
        engine.rollback_step()
    assert _sent_share(cluster) == before


def test_a_saved_window_keeps_its_energies():
    sums = _sums((2, 2), [torch.ones(2, 2)])
    sums.add_owed(["w"], torch.ones(1, 2, 2))
    sums.add_left(["w"], torch.full((1, 2, 2), 0.5))
    sums.commit()
    saved = sums.state_dict()
    again = _sums((2, 2), [])
    again.load_state_dict(saved)
    assert sent_shares(["w"], again.summary(CPU)) == {"w": pytest.approx(0.75)}
    assert _norm(again) == pytest.approx(_norm(sums))


def test_a_window_that_another_sketch_left_open_starts_again():
    saved = _sums((60, 50), [torch.ones(60, 50)]).state_dict()
    sums = _sums((60, 50), [])
    sums.load_state_dict(saved | {"version": saved["version"] + 1})
    assert (sums.steps, _norm(sums)) == (0, 0.0)


def test_a_window_with_sums_of_another_size_is_refused_by_layer_name():
    state = {"steps": 1, "sums": {"w": torch.zeros(7)}}
    with pytest.raises(StateError, match="layer 'w' with 7 values"):
        _sums((2, 2), []).load_state_dict(state)
