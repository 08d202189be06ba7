"""GradScaler: residuals know no loss scale, and a step that is not finite anywhere has not happened
anywhere.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from accordion.base.errors import HookError
from accordion.compressors import COMPRESSORS
from accordion.config import Config
from accordion.session.session import attach
from tests.distributed import small
from tests.distributed.compose import Branches, Way, trial

METHODS = sorted(COMPRESSORS)
PLAIN, SCALED = Way(), Way(scaled=True)
STEPS = 4


def _trajectory(rank, scaled, halve_after=None, clip=None):
    """Parameters and residuals of every method at the end."""
    ends = {}
    for method in METHODS:
        worker = trial(rank, replace(SCALED if scaled else PLAIN, clip=clip), method)
        for step in range(STEPS):
            worker.step(step)
            if step == halve_after:
                worker.scaler.update(worker.scaler.get_scale() / 2)
        ends[method] = [
            *worker.parameters(),
            *(value for _, value in sorted(worker.owed().items())),
        ]
    return ends


@pytest.fixture(scope="module", params=[None, 0.01], ids=["as is", "clipped"])
def without_scaler(run_group, request):
    return request.param, run_group(2, _trajectory, False, None, request.param)


@pytest.mark.parametrize("halve_after", [None, 1], ids=["steady", "halved in mid-run"])
def test_a_scale_that_is_a_power_of_two_changes_no_bit_of_parameters_and_residuals(
    run_group, without_scaler, halve_after
):
    clip, expected = without_scaler
    for plain, scaled in zip(
        expected, run_group(2, _trajectory, True, halve_after, clip), strict=True
    ):
        for method in METHODS:
            row = COMPRESSORS[method]
            # What is lost for ever is rounded in the scaler's units, where small gradients keep
            # more bits.
            rtol, atol = (0, 0) if row.feedback or row.exact else (0.02, 1e-4)
            for one, other in zip(plain[method], scaled[method], strict=True):
                torch.testing.assert_close(one, other, rtol=rtol, atol=atol, msg=method)


def _snapshot(worker):
    engine = worker.session.state_dict()["engine"]
    kept = [value for part in ("residuals", "warm") for _, value in sorted(engine[part].items())]
    sums = engine["window"]["sums"]
    windows = [sums] if isinstance(sums, torch.Tensor) else [sums[name] for name in sorted(sums)]
    return [*worker.parameters(), *kept, *windows, torch.tensor(engine["window"]["steps"])]


def _bad_step(rank, layer, clip, model=None):
    """Rank 1's gradient of a layer is infinite in one step; both ranks say what that changed."""
    found = {}
    way = replace(SCALED, clip=clip)
    if model is not None:
        way = replace(way, model=model, ddp={"find_unused_parameters": True})
    for method in METHODS:
        worker = trial(rank, way, method)
        for step in range(2):
            worker.step(step)
        before, scale = _snapshot(worker), worker.scaler.get_scale()
        handle = worker.named()[layer].register_hook(
            lambda g: torch.full_like(g, torch.inf) if rank == 1 else g
        )
        taken = worker.step(2)
        handle.remove()
        after, factor = _snapshot(worker), worker.scaler.get_scale() / scale
        went_on = worker.step(3) and worker.step(4)
        found[method] = before, after, (taken, factor, went_on), worker.parameters()
    return found


@pytest.mark.parametrize(
    ("layer", "clip"),
    [("last.weight", None), ("conv.bias", 0.01)],
    ids=["as is", "unscaled and clipped before the step"],
)
def test_a_step_that_is_not_finite_on_one_rank_touches_nothing_and_backs_off_on_all(
    run_group, layer, clip
):
    results = run_group(2, _bad_step, layer, clip)
    for method in METHODS:
        ends = [found[method][3] for found in results]
        for before, after, outcome, end in (found[method] for found in results):
            assert outcome == (False, 0.5, True), method
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), method
            assert all(torch.isfinite(value).all() for value in end), method
        assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True)), method


@pytest.mark.parametrize(
    "clip", [None, 0.01], ids=["as is", "unscaled and clipped before the step"]
)
def test_it_backs_off_where_ddp_drops_the_place_of_the_mark_as_unused(run_group, clip):
    for found in run_group(2, _bad_step, "enter.weight", clip, Branches):
        for method, (before, after, outcome, _) in found.items():
            assert outcome == (False, 0.5, True), method
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), method


def _grown(rank):
    """Scales of a scaler that grows every second finite step; the third step is not finite on rank
    1.
    """
    worker = trial(rank, SCALED, "topk")
    worker.scaler.set_growth_interval(2)
    scales = []
    for step in range(6):
        bad = rank == 1 and step == 2
        handle = worker.named()["first.weight"].register_hook(
            lambda g, bad=bad: g * torch.nan if bad else g
        )
        worker.step(step)
        handle.remove()
        scales.append(worker.scaler.get_scale() / 2.0**12)
    return scales


def test_the_scaler_counts_finite_steps_anew_after_backing_off(run_group):
    # as GradScaler by itself: grows after two finite steps, halves at the bad one, and needs two
    # more to grow
    assert run_group(2, _grown) == [[1, 2, 1, 1, 2, 2]] * 2


def _disabled(rank):
    ddp, optimizer = small.build()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    session = attach(ddp, Config(method="none"), optimizer=optimizer, scaler=scaler)
    small.train(session, ddp, rank, range(1))
    before = small.parameters(ddp)
    handle = ddp.module.last.weight.register_hook(lambda g: g * torch.nan if rank else g)
    small.train(session, ddp, rank, range(1, 2))
    handle.remove()
    after = small.parameters(ddp)
    small.train(session, ddp, rank, range(2, 3))
    return before, after, small.parameters(ddp)


def test_a_scaler_that_is_switched_off_is_as_none(run_group):
    for before, after, later in run_group(2, _disabled):
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert not torch.equal(after[0], later[0])


def _no_optimizer(rank):
    ddp, _ = small.build()
    try:
        attach(ddp, Config(), scaler=torch.amp.GradScaler("cpu"))
    except HookError as error:
        return str(error)
    return "attached"


def _no_scaler(rank):
    ddp, optimizer = small.build()
    try:
        attach(ddp, Config(), optimizer=optimizer, scaler="yes")
    except HookError as error:
        return str(error)
    return "attached"


def test_a_scaler_that_is_none_is_refused(run_group):
    told = run_group(1, _no_scaler)[0]
    assert told == "attach() got scaler='yes'; give the loop's torch.amp.GradScaler"


def test_a_scaler_without_an_optimizer_is_refused(run_group):
    assert "give optimizer= too" in run_group(1, _no_optimizer)[0]
