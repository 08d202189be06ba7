"""Costs of levels that are not in force: payloads exactly as sent, and time that is bounded."""

from __future__ import annotations

from itertools import count

import pytest
import torch

from accordion.base.link_model import wire_bytes
from accordion.base.messages import LayerInfo
from accordion.compress.layer_stacks import Layer
from accordion.compressors import LEVEL_NAMES, ladder_of, level_of
from accordion.hook.level_costs import (
    EchoNetwork,
    count_exchange,
    measure_levels,
    share_waits,
)
from tests.unit.accordion.lockstep import METHODS, Cluster, draw_gradients

SHAPES = {"first": (64, 32), "second": (16, 8, 3, 3), "bias": (64,)}
DECIDED = ("first", "second")


def bucket(shapes=None) -> list[Layer]:
    return [
        Layer(name=name, gradient=torch.full(shape, 7.0))
        for name, shape in (shapes or SHAPES).items()
    ]


def plans(method: str):
    return {
        level.name: dict.fromkeys(DECIDED, level)
        for level in (level_of("none", {}, name="none"), *ladder_of(method))
    }


@pytest.mark.parametrize("method", ["powersgd", "topk", "signsgd", "half"])
def test_payloads_are_counted_at_each_level_and_no_gradient_changes(method) -> None:
    layers = bucket()
    costs = measure_levels([layers], plans(method), world_size=2)
    assert costs.keys() == {"none", *LEVEL_NAMES}
    values = sum(layer.gradient.numel() for layer in layers)
    assert sum(costs["none"][0].payloads.values()) == 4 * values
    for name in LEVEL_NAMES:
        assert 0 < sum(costs[name][0].payloads.values()) < 4 * values
        assert costs[name][0].encode_s > 0
    assert all(bool((layer.gradient == 7.0).all()) for layer in layers)


def test_powersgd_passes_both_factors_and_the_biases() -> None:
    level = level_of("powersgd", {"rank": 2}, name="low")
    cost = measure_levels([bucket()], {"low": dict.fromkeys(DECIDED, level)}, world_size=2)["low"][
        0
    ]
    rows, columns = 64 + 16, 32 + 72
    assert cost.payloads == {
        ("all-reduce", "mean 0 torch.float32"): 4 * (2 * rows + 64),
        ("posted all-reduce", "mean 1 torch.float32"): 4 * 2 * columns,
    }


def test_beyond_the_time_limit_buckets_cost_as_much_per_value_as_those_before() -> None:
    seconds = count()
    buckets = [bucket(), bucket(), bucket({"first": (128, 32)})]
    costs = measure_levels(
        buckets, plans("powersgd"), world_size=2, clock=lambda: float(next(seconds))
    )
    for name, (first, second, third) in costs.items():
        assert second == first, name
        ratio = 128 * 32 / sum(layer.gradient.numel() for layer in buckets[0])
        assert third.encode_s == pytest.approx(first.encode_s * ratio)
        assert third.payloads == pytest.approx(
            {collective: ratio * payload for collective, payload in first.payloads.items()}
        )


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("method", ["powersgd", "qsgd", "signsgd", "half"])
def test_predicted_bytes_are_those_that_the_ledger_counts(method, world_size) -> None:
    shapes = {"large": (300, 200), "small": (16, 8)}
    for level in ladder_of(method):
        plan = {"now": dict.fromkeys(shapes, level)}
        cost = measure_levels([bucket(shapes)], plan, world_size=world_size)["now"][0]
        predicted = sum(
            wire_bytes(kind, payload, world_size) for (kind, _), payload in cost.payloads.items()
        )
        cluster = Cluster(shapes, world_size)
        cluster.switch(level)
        cluster.step(draw_gradients(shapes, world_size, 0))
        for engine in cluster.engines:
            assert engine.ledger.total.wire == pytest.approx(predicted, abs=8)


@pytest.mark.parametrize("world_size", [2, 3, 5, 8])
@pytest.mark.parametrize("method", [one for one in METHODS if one != "adacomp"])
@pytest.mark.parametrize("biases", [64, 9000])
def test_predicted_bytes_are_those_of_workers_that_send_biases_with_them(
    method, world_size, biases
) -> None:
    # AdaComp is left out: its bytes depend on the values.
    shapes = {"large": (300, 200), "small": (16, 8), "bias": (biases,)}
    parameters = {name: torch.zeros(shape) for name, shape in shapes.items()}
    for level in ladder_of(method):
        plan = dict.fromkeys(("large", "small"), level)
        [cost] = measure_levels([bucket(shapes)], {"now": plan}, world_size=world_size)["now"]
        predicted = sum(
            wire_bytes(kind, payload, world_size) for (kind, _), payload in cost.payloads.items()
        )
        cpu = torch.device("cpu")
        counted = count_exchange(parameters, plan, world_size=world_size, device=cpu)
        assert predicted == pytest.approx(counted.gradient_wire, abs=8 * world_size)


def test_what_is_gathered_beside_scattered_codes_shares_their_collective() -> None:
    plan = {"now": dict.fromkeys(("large", "small"), level_of("qsgd", {"bits": 4}, name="now"))}
    shapes = {"large": (300, 200), "small": (16, 8)}
    cost = measure_levels([bucket(shapes)], plan, world_size=4)["now"][0]
    assert cost.payloads.keys() == {("all-to-all", "scatter 0"), ("all-gather", "gather 1")}


def test_the_echo_answers_gathers_with_the_own_payload_of_every_worker() -> None:
    level = level_of("signsgd", {}, name="high")
    costs = [
        measure_levels([bucket()], {"high": dict.fromkeys(DECIDED, level)}, world_size=workers)
        for workers in (2, 4)
    ]
    assert costs[0]["high"][0].payloads == costs[1]["high"][0].payloads
    assert EchoNetwork(3).world_size == 3


def test_a_wait_is_shared_out_by_values() -> None:
    layers = [LayerInfo(name="a", shape=(3, 2)), LayerInfo(name="b", shape=(2,))]
    shared = share_waits({"none": 0.8, "high": 0.0}, layers)
    assert shared == {
        "a": pytest.approx({"none": 0.6, "high": 0.0}),
        "b": pytest.approx({"none": 0.2, "high": 0.0}),
    }
    assert share_waits({}, layers) == {}
