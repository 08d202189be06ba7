"""Loops that call `optimizer.step()` themselves, as frameworks do: the session follows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import get_args

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accordion.base.errors import HookError
from accordion.base.messages import Override
from accordion.config import Config, DetectorConfig, Window
from accordion.session.optimizer_steps import StepMode
from accordion.session.session import attach
from tests.distributed import small
from tests.distributed.compose import WAYS, Branches, Way, trial

METHODS = ("none", "powersgd", "topk", "qsgd")
STEPS = 3
FOLLOWED = [
    "as usual",
    "accumulated over no_sync",
    "accumulated and scaled",
    "scaled and clipped",
    "several groups",
    "layers unused in some steps, gradients as views set to zero",
    "static graph",
]


def _ends(rank, name, mode, methods):
    """Values by method: parameters, residuals and bytes at the end."""
    ends = {}
    for method in methods:
        worker = trial(rank, replace(WAYS[name], mode=mode), method)
        for step in range(STEPS):
            worker.step(step)
        total = worker.session.ledger.total
        ends[method] = worker.parameters(), worker.owed(), (total.payload, worker.session.steps)
    return ends


@pytest.mark.parametrize(
    ("name", "methods"),
    [(name, METHODS[place % 2 :: 2]) for place, name in enumerate(FOLLOWED)],
    ids=FOLLOWED,
)
def test_following_the_optimizer_changes_no_bit(run_group, name, methods):
    expected = run_group(2, _ends, name, "session", methods)
    for mode in ("optimizer", "caller"):
        for one, other in zip(expected, run_group(2, _ends, name, mode, methods), strict=True):
            for method in methods:
                (values, owed, counts), (others, others_owed, others_counts) = (
                    one[method],
                    other[method],
                )
                assert all(torch.equal(a, b) for a, b in zip(values, others, strict=True)), method
                assert owed.keys() == others_owed.keys()
                assert all(torch.equal(owed[layer], others_owed[layer]) for layer in owed), method
                assert counts == others_counts


def _bad_step(rank, mode, scaled):
    """Rank 1's gradient is infinite in the third step; the fourth is as usual."""
    way = replace(WAYS["scaled and clipped" if scaled else "as usual"], mode=mode)
    worker = trial(rank, way, "powersgd")
    scales, kept = [], []
    for step in range(4):
        before = worker.parameters()
        bad = rank == 1 and step == 2
        handle = worker.named()["first.weight"].register_hook(
            lambda g, bad=bad: g * torch.inf if bad else g
        )
        worker.step(step)
        handle.remove()
        kept.append(
            all(torch.equal(a, b) for a, b in zip(before, worker.parameters(), strict=True))
        )
        scales.append(worker.scaler.get_scale() if scaled else 1.0)
    return worker.parameters(), worker.owed(), kept, scales, worker.session.skipped_steps


@pytest.mark.parametrize("scaled", [False, True], ids=["without scaler", "scaler of the loop"])
@pytest.mark.parametrize("mode", ["optimizer", "caller"])
def test_a_step_that_is_not_finite_on_one_rank_changes_nothing_on_any(run_group, mode, scaled):
    expected, found = (
        run_group(2, _bad_step, "session", scaled),
        run_group(2, _bad_step, mode, scaled),
    )
    for one, other in zip(expected, found, strict=True):
        assert other[2] == one[2] == [False, False, True, False]
        assert other[3:] == one[3:]
        assert other[4] == 1
        assert all(torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True))
        assert all(torch.equal(one[1][layer], other[1][layer]) for layer in one[1])


def _scales(rank, mode, model, clip):
    """Scales after each of four steps; in the third, rank 1's gradient of a layer is infinite."""
    ddp = {"find_unused_parameters": model is Branches}
    layer = "enter.weight" if model is Branches else "first.weight"
    found = {}
    for method in METHODS:
        worker = trial(rank, Way(model=model, ddp=ddp, clip=clip, scaled=True, mode=mode), method)
        found[method] = []
        for step in range(4):
            bad = rank == 1 and step == 2
            handle = worker.named()[layer].register_hook(
                lambda g, bad=bad: g * torch.inf if bad else g
            )
            worker.step(step)
            handle.remove()
            found[method].append(worker.scaler.get_scale() / 2.0**12)
    return found


@pytest.mark.parametrize(
    ("mode", "model", "clip"),
    [
        ("optimizer", small.SmallNet, None),
        ("optimizer", Branches, 0.01),
        ("caller", small.SmallNet, 0.01),
        ("caller", Branches, None),
    ],
)
def test_a_scaler_of_the_loop_backs_off_on_all_ranks(run_group, mode, model, clip):
    for found in run_group(2, _scales, mode, model, clip):
        assert all(scales == [1, 1, 0.5, 0.5] for scales in found.values()), found


def _accumulated(rank, mode, bad_step):
    """Parameters after three steps of two backward passes; rank 1's gradient is infinite in
    `bad_step`.
    """
    ends = {}
    for method in METHODS:
        worker = trial(rank, Way(pieces=2, scaled=True, mode=mode), method)
        for step in range(3):
            bad = rank == 1 and step == bad_step
            handle = worker.named()["first.weight"].register_hook(
                lambda g, bad=bad: g * torch.inf if bad else g
            )
            worker.step(step)
            handle.remove()
        ends[method] = worker.parameters()
    return ends


def test_a_skipped_step_takes_nothing_from_what_the_next_step_accumulates(run_group):
    expected = run_group(2, _accumulated, "session", 1)
    for mode in ("optimizer", "caller"):
        for one, other in zip(expected, run_group(2, _accumulated, mode, 1), strict=True):
            for method in METHODS:
                assert all(
                    torch.equal(a, b) for a, b in zip(one[method], other[method], strict=True)
                ), (mode, method)


def _windows(rank):
    """Level of a layer after each of six steps, with windows of two steps and an override after the
    third.
    """
    ddp, optimizer = small.build()
    config = Config(method="powersgd", detector=DetectorConfig(window=Window(steps=2)))
    session = attach(ddp, config, optimizer=optimizer, step="optimizer")
    found = []
    for step in range(6):
        if step == 3 and rank == 0:
            session.override([Override(id="o", level={"method": "none"}, layers=("last.*",))])
        small.backward(ddp, rank, step)
        optimizer.step()
        optimizer.zero_grad()
        found.append((session.decision.level_by_layer["last.weight"].method, session.decision.step))
    return found


def test_windows_close_and_overrides_hold_while_the_loop_is_unchanged(run_group):
    one, other = run_group(2, _windows)
    assert one == other
    assert [method for method, _ in one] == ["powersgd"] * 3 + ["none"] * 3
    assert [step for _, step in one][1::2] == [2, 4, 6]


class Wrapper(torch.optim.Optimizer):
    """Stands for an optimizer that a framework wrapped: only the inner one's hooks are called."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups

    def step(self, closure=None):
        self.optimizer.step(closure)


def _wrapped(rank):
    ddp, optimizer = small.build()
    session = attach(ddp, Config(method="none"), optimizer=Wrapper(optimizer), step="optimizer")
    small.backward(ddp, rank, 0)
    Wrapper(optimizer).step()
    return session.steps


def test_the_optimizer_inside_a_wrapper_is_followed(run_group):
    assert run_group(2, _wrapped) == [1, 1]


def _split(rank, mode, scaled, *, bad_layer, is_split):
    """Parameters, scale and steps after four steps with two optimizers, or with one of two groups;
    rank 1's gradient of a layer is infinite in the third.
    """
    ddp, _ = small.build()
    weights = list(ddp.parameters())
    groups = [{"params": weights[::2]}, {"params": weights[1::2], "lr": 0.01}]
    parts = [[group] for group in groups] if is_split else [groups]
    optimizers = [torch.optim.SGD(part, lr=0.05, momentum=0.9) for part in parts]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, enabled=scaled)
    config = Config(method="powersgd", buckets_per_exchange=1)
    session = attach(ddp, config, optimizer=optimizers, scaler=scaler, step=mode)
    for step in range(4):
        bad = rank == 1 and step == 2
        layer = ddp.module.get_parameter(bad_layer)
        handle = layer.register_hook(lambda g, bad=bad: g * torch.inf if bad else g)
        inputs, labels = small.batch(rank, step)
        scaler.scale(torch.nn.functional.cross_entropy(ddp(inputs), labels)).backward()
        handle.remove()
        if mode != "optimizer":
            session.step()
        if mode != "session":
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
        ddp.zero_grad()
    return small.parameters(ddp), scaler.get_scale(), session.steps, session.skipped_steps


@pytest.mark.parametrize(
    ("bad_layer", "scaled"),
    [("conv.weight", True), ("conv.bias", False), ("last.weight", False), ("last.bias", True)],
)
def test_several_optimizers_step_as_one_with_their_groups(run_group, scaled, bad_layer):
    joined = partial(_split, bad_layer=bad_layer, is_split=False)
    split = partial(_split, bad_layer=bad_layer, is_split=True)
    expected = run_group(2, joined, "session", scaled)
    for mode in get_args(StepMode):
        for one, other in zip(expected, run_group(2, split, mode, scaled), strict=True):
            assert other[1:] == one[1:] == (2.0**11 if scaled else 1.0, 4, 1), mode
            assert all(torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True)), mode


def _unused_optimizer(rank):
    """Steps taken of four in which one of three optimizers has no gradient."""
    ddp = DistributedDataParallel(Branches(), find_unused_parameters=True)
    ways = [list(way.parameters()) for way in ddp.module.ways]
    others = [part for name, part in ddp.module.named_parameters() if "ways" not in name]
    optimizers = [torch.optim.SGD(part, lr=0.05) for part in (*ways, others)]
    scaler = torch.amp.GradScaler("cpu")
    session, taken = attach(ddp, Config(), optimizer=optimizers, scaler=scaler), 0
    for step in range(4):
        ddp.module.way = step % 2
        inputs, labels = small.batch(rank, step)
        scaler.scale(torch.nn.functional.cross_entropy(ddp(inputs), labels)).backward()
        taken += session.step().taken
        ddp.zero_grad()
    return taken


def test_an_optimizer_of_unused_layers_keeps_no_other_from_its_step(run_group):
    assert run_group(2, _unused_optimizer) == [4, 4]


def _by_turns(rank, steps):
    """Steps of the session if after each backward pass the optimizers step in this order."""
    ddp, _ = small.build()
    weights = list(ddp.parameters())
    optimizers = [torch.optim.SGD(part, lr=0.05) for part in (weights[::2], weights[1::2])]
    session = attach(ddp, Config(), optimizer=optimizers, step="optimizer")
    for step, order in enumerate(steps):
        small.backward(ddp, rank, step)
        for place in order:
            optimizers[place].step()
        ddp.zero_grad()
    return session.steps


def test_optimizers_may_step_in_any_order_and_not_every_time(run_group):
    assert run_group(2, _by_turns, [(0, 1), (1, 0), (0,), (1,), (1, 0)]) == [5, 5]


def _misuse(rank, what):
    ddp, optimizer = small.build()
    try:
        if what == "mode":
            attach(ddp, Config(), optimizer=optimizer, step="trainer")
        elif what == "no optimizer":
            attach(ddp, Config(), step="optimizer")
        elif what == "modes":
            attach(ddp, Config(), optimizer=optimizer, step="optimizer" if rank else "caller")
        session = attach(ddp, Config(), optimizer=optimizer, step="optimizer")
        small.backward(ddp, rank, 0)
        if what == "closure":
            optimizer.step(lambda: torch.tensor(0.0))
        elif what == "twice":
            session.step()
        elif what == "no step":
            small.backward(ddp, rank, 1)
    except HookError as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("mode", "step='trainer'; it is one of session, optimizer, caller"),
        ("no optimizer", "give optimizer= too"),
        ("modes", "different"),
        ("closure", 'use accordion.attach(..., step="caller")'),
        ("twice", "remove the call of session.step()"),
        ("no step", "exchanged twice for one step"),
    ],
)
def test_a_loop_that_cannot_be_followed_is_told_the_way_out(run_group, what, sentence):
    for message in run_group(2, _misuse, what):
        assert sentence in message


def test_a_single_process_without_a_wrapped_module_is_followed():
    model = small.SmallNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session = attach(model, Config(method="powersgd"), optimizer=optimizer, step="optimizer")
    for step in range(3):
        inputs, labels = small.batch(0, step)
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert session.steps == 3


def _attach_again(rank, mode):
    """Counts of an optimizer's first and second session after a step with the second, and whether
    the step changed the model.
    """
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = Config(detector=DetectorConfig(window=Window(steps=500)))
    first = attach(DistributedDataParallel(model), config, optimizer=optimizer)
    wrapped = DistributedDataParallel(model)
    second = attach(wrapped, config, optimizer=optimizer, step=mode)
    wrapped(torch.ones(2, 4)).sum().backward()
    before = model.weight.detach().clone()
    if mode != "optimizer":
        second.step()
    if mode != "session":
        optimizer.step()
    return first.steps, second.steps, not torch.equal(model.weight, before)


@pytest.mark.parametrize("mode", ["session", "optimizer", "caller"])
def test_the_steps_of_an_optimizer_are_those_of_its_newest_session(run_group, mode):
    assert run_group(2, _attach_again, mode) == [(0, 1, True)] * 2
