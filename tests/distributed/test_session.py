"""Sessions on real gloo processes: windows, decisions, state, and agreement with the simulation."""

from __future__ import annotations

import io
from functools import cache

import pytest
import torch

from accordion.base.errors import HookError, ReportError, StateError
from accordion.compressors import COMPRESSORS, ladder_of
from accordion.config import Config, DetectorConfig, Window
from accordion.session.session import attach
from tests.distributed import small
from tests.unit.accordion.lockstep import Cluster

METHODS = sorted(COMPRESSORS)


def _save(session, ddp, optimizer):
    """Serialize: processes that are handed tensors would share their memory."""
    buffer = io.BytesIO()
    torch.save(
        (
            session.state_dict(),
            small.parameters(ddp),
            optimizer.state_dict(),
        ),
        buffer,
    )
    return buffer.getvalue()


def _load(saved):
    return [torch.load(io.BytesIO(state), weights_only=True) for state in saved]


def _epochs(session, ddp, rank, epochs):
    for epoch in epochs:
        small.train(session, ddp, rank, range(2 * epoch, 2 * epoch + 2))
        session.end_epoch(lr=0.1, next_lr=0.1)


def _first_half(rank, method):
    ddp, session, optimizer = small.start_with_optimizer(method, window=2)
    _epochs(session, ddp, rank, range(3))
    saved = _save(session, ddp, optimizer)
    _epochs(session, ddp, rank, range(3, 6))
    return saved, small.parameters(ddp), session.decision, session.ledger.total


def _second_half(rank, method, saved):
    ddp, session, optimizer = small.start_with_optimizer(method, window=2)
    states, parameters, optimizers = zip(*_load(saved), strict=True)
    for parameter, value in zip(ddp.module.parameters(), parameters[0], strict=True):
        parameter.data.copy_(value)
    optimizer.load_state_dict(optimizers[0])
    session.load_state_dict(states)
    _epochs(session, ddp, rank, range(3, 6))
    return small.parameters(ddp), session.decision, session.ledger.total


@pytest.fixture(scope="module")
def straight_runs(run_group):
    """What two workers save in mid-run and end with, by method; each method is run once."""
    return cache(lambda method: run_group(2, _first_half, method))


@pytest.mark.parametrize("method", METHODS)
def test_saved_in_an_open_window_loaded_and_continued_equals_never_stopped(
    run_group, straight_runs, method
):
    straight = straight_runs(method)
    resumed = run_group(2, _second_half, method, [saved for saved, _, _, _ in straight])
    for (_, parameters, decision, total), (found, other, other_total) in zip(
        straight, resumed, strict=True
    ):
        assert all(torch.equal(a, b) for a, b in zip(parameters, found, strict=True))
        assert (other, other_total.dense, other_total.fp16) == (decision, total.dense, total.fp16)
        # Rows of unequal size are filled up to the bucket's longest, and buckets differ in a first
        # step after a start.
        assert other_total.payload == (
            pytest.approx(total.payload, rel=0.02) if method == "adacomp" else total.payload
        )


@pytest.mark.parametrize("after", [1, 3])
def test_a_state_of_two_workers_continues_on_another_number(run_group, straight_runs, after):
    straight = straight_runs("powersgd")
    resumed = run_group(after, _second_half, "powersgd", [saved for saved, _, _, _ in straight])
    for found, decision, _ in resumed:
        assert decision == resumed[0][1]
        assert all(torch.equal(a, b) for a, b in zip(resumed[0][0], found, strict=True))


def _gradients_of(rank, method, rung):
    """Raw gradients as DDP saw them, and what came back, for two steps at fixed weights."""
    ddp, _ = small.build()
    # Without an optimizer, a step leaves the weights as they are.
    session = attach(ddp, Config(method=method, policy="fixed", policy_options={"level": rung}))
    names = [name for name, _ in ddp.module.named_parameters()]
    raw, averaged = [], []
    for step in range(2):
        twin = small.SmallNet()
        twin.load_state_dict(ddp.module.state_dict())
        inputs, labels = small.batch(rank, step)
        torch.nn.functional.cross_entropy(twin(inputs), labels).backward()
        raw.append({name: parameter.grad.clone() for name, parameter in twin.named_parameters()})
        small.backward(ddp, rank, step)
        averaged.append(
            {n: p.grad.clone() for n, p in zip(names, ddp.module.parameters(), strict=True)}
        )
        assert session.step().taken
        ddp.zero_grad()
    return raw, averaged


@pytest.mark.parametrize(
    ("method", "workers"), [*((method, 2) for method in METHODS), ("qsgd", 3), ("qsgd", 4)]
)
def test_a_simulation_in_lockstep_gives_what_processes_give(run_group, method, workers):
    results = run_group(workers, _gradients_of, method, "high")
    shapes = {name: tuple(gradient.shape) for name, gradient in results[0][0][0].items()}
    cluster = Cluster(shapes, workers)
    cluster.switch(ladder_of(method)[1])
    for step in range(2):
        simulated = cluster.step([raw[step] for raw, _ in results])[0]
        for name, found in results[0][1][step].items():
            # PowerSGD multiplies stacks of other sizes here than bucket by bucket there; the rest
            # is equal to the bit
            rtol, atol = (1e-4, 1e-6) if method == "powersgd" else (0, 0)
            torch.testing.assert_close(
                simulated[name], found, rtol=rtol, atol=atol, msg=f"{name} in step {step}"
            )


def _window_in_steps(rank):
    ddp, optimizer = small.build()
    config = Config(method="powersgd", detector=DetectorConfig(window=Window(steps=3)))
    session = attach(ddp, config, optimizer=optimizer, global_batch=16)
    closed = []
    for step in range(8):
        small.backward(ddp, rank, step)
        switch = session.step().switch
        ddp.zero_grad()
        closed.append(switch and (switch.decision.step, switch.decision.cause, len(switch.acks)))
    return closed, session.end_epoch(lr=0.1, next_lr=0.1).decision.cause


def test_a_window_counted_in_steps_closes_inside_an_epoch(run_group):
    closed, at_end = run_group(2, _window_in_steps)[0]
    assert [place for place, switch in enumerate(closed) if switch] == [2, 5]
    assert closed[2] == (3, "window", 2)
    assert at_end == "hold"


def _decider(rank, error):
    def refuse(report, proposal):
        raise error("the actor holds another model")

    ddp, optimizer = small.build()
    session = attach(
        ddp,
        Config(detector=DetectorConfig(window=Window(epochs=1))),
        optimizer=optimizer,
        decider=refuse,
    )
    small.train(session, ddp, rank, range(1))
    try:
        session.end_epoch(lr=0.1, next_lr=0.1)
    except (error, ReportError) as raised:
        return str(raised)
    return "no error"


@pytest.mark.parametrize("error", [ReportError, ConnectionError])
def test_a_decision_that_fails_on_rank_0_fails_on_every_rank_with_the_same_sentence(
    run_group, error
):
    first, second = run_group(2, _decider, error)
    assert first == "the actor holds another model"
    assert second == f"rank 0 could not decide: {first}"


def _sent(rank):
    ddp, session = small.start("powersgd", policy="fixed", policy_options={"level": "high"})
    small.train(session, ddp, rank, range(2))
    return {name: (count.payload, count.dense) for name, count in session.ledger.by_layer.items()}


def test_the_ledger_books_both_factors_of_every_layer_and_dense_vectors(run_group):
    by_layer = run_group(2, _sent)[0]
    width, steps = small.WIDTH, 2
    assert by_layer["middle.0.weight"] == (steps * 4 * (width + width), steps * 4 * width * width)
    assert by_layer["first.weight"] == (steps * 4 * (width + 128), steps * 4 * width * 128)
    assert by_layer["first.bias"] == (steps * 4 * width, steps * 4 * width)
    digest_of_settings = 64 + 8  # and its length
    assert by_layer["(control)"] == (digest_of_settings + steps * 4 * 7, 0)


def _attach_unlike(rank, settings_by_rank):
    ddp, optimizer = small.build()
    with pytest.raises(HookError, match="different settings or layers on rank") as refused:
        attach(ddp, Config(**settings_by_rank[rank]), optimizer=optimizer)
    return str(refused.value)


@pytest.mark.parametrize(
    "settings", [({"seed": 0}, {"seed": 1}), ({"method": "none"}, {"method": "topk"})]
)
def test_settings_that_differ_between_workers_are_refused_on_all(run_group, settings):
    assert ["on rank 1 and rank 0" in text for text in run_group(2, _attach_unlike, settings)] == [
        True,
        False,
    ]


def _wrong_optimizer(rank):
    ddp, _ = small.build()
    with pytest.raises(HookError, match="none of the module's parameters"):
        attach(
            ddp, Config(), optimizer=torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        )


def test_an_optimizer_of_another_module_is_refused(run_group):
    run_group(1, _wrong_optimizer)


def _wrong_states(rank):
    _, session = small.start("powersgd")
    for states in ([], [{}], [{"steps": 1}], ["x"], "x", {}):
        with pytest.raises(StateError, match="in rank order"):
            session.load_state_dict(states)
    with pytest.raises(StateError, match="without its controller"):
        session.load_state_dict([{**session.state_dict(), "controller": None}])
    return session.steps


def _torn_states(rank):
    ddp, session = small.start("powersgd", bucket_cap_mb=0.04)
    small.train(session, ddp, rank, range(2))
    good, found = session.state_dict(), []
    torn = [{**good["engine"], name: None} for name in good["engine"]]
    torn += [
        {key: value for key, value in good["engine"].items() if key != name}
        for name in good["engine"]
    ]
    torn += [{**good["engine"], "warm": {"middle.0.weight": torch.zeros(3)}}]
    for state in [{**good, "engine": engine} for engine in torn] + [{**good, "decision": {}}]:
        with pytest.raises(StateError):
            session.load_state_dict([state])
        kept = session.state_dict()
        for table in ("residuals", "warm"):
            found += [
                torch.equal(kept["engine"][table][name], t)
                for name, t in good["engine"][table].items()
            ]
        found += [
            kept["controller"] == good["controller"],
            kept["engine"]["ledger"] == good["engine"]["ledger"],
        ]
    return found


def test_a_torn_state_is_refused_and_changes_nothing(run_group):
    assert all(run_group(1, _torn_states)[0])


def _empty_window(rank):
    reports = []
    ddp, session, _ = small.start_with_optimizer(
        "none", window=1, decider=lambda report, proposal: reports.append(report) or proposal
    )
    small.train(session, ddp, rank, range(2))
    session.end_epoch(lr=0.1, next_lr=0.1)
    session.end_epoch(lr=0.1, next_lr=0.1)
    return [report.statistic_by_layer is None for report in reports]


def test_a_window_without_a_finite_step_is_not_compared(run_group):
    assert run_group(1, _empty_window) == [[False, True]]


def test_what_is_no_list_of_states_in_rank_order_is_refused(run_group):
    assert run_group(1, _wrong_states) == [0]
