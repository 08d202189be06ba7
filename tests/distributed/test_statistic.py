"""The statistic that a window's end reports, on real gloo processes, against sums of gradients
taken without a hook.
"""

from __future__ import annotations

import pytest
import torch

from accordion.config import Config, DetectorConfig, Window
from accordion.session.session import attach
from tests.distributed import small

STEPS = 3
EXACT = ("conv.weight", "last.weight")
"""Layers no larger than their sketch."""


def _reported(rank, statistic):
    """What rank 0 is asked about at an epoch's end, with weights that never move."""
    ddp, optimizer = small.build()
    optimizer.param_groups[0]["lr"] = 0.0
    reports = []
    detector = DetectorConfig(window=Window(epochs=1), statistic=statistic)
    session = attach(
        ddp,
        Config(method="none", detector=detector),
        optimizer=optimizer,
        decider=lambda report, proposal: reports.append(report) or proposal,
    )
    small.train(session, ddp, rank, range(STEPS))
    session.end_epoch(lr=0.1, next_lr=0.1)
    return reports


def _gradients(rank: int) -> list[dict[str, torch.Tensor]]:
    """Gradients of each step by layer."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = small.SmallNet()
    found = []
    for step in range(STEPS):
        inputs, labels = small.batch(rank, step)
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters() if p.dim() > 1})
        model.zero_grad()
    return found


@pytest.mark.parametrize("statistic", ["mean", "paper"])
def test_our_statistic_is_the_norm_of_the_mean_and_the_papers_that_of_rank_0s_sum(
    run_group, statistic
):
    (report,) = run_group(2, _reported, statistic)[0]
    own, other = _gradients(0), _gradients(1)
    steps = own if statistic == "paper" else own + other
    assert report.statistic_kind == statistic
    assert set(report.statistic_by_layer) == set(own[0])
    for layer, found in report.statistic_by_layer.items():
        total = torch.stack([step[layer] for step in steps]).sum(0)
        expected = total.norm().item() / (1 if statistic == "paper" else len(steps))
        assert found == pytest.approx(expected, rel=1e-4 if layer in EXACT else 0.1), layer


def _reported_by_epoch(rank):
    """Return the reports that rank 0 decides on in five epochs of one step, with constant
    weights.
    """
    ddp, optimizer = small.build()
    optimizer.param_groups[0]["lr"] = 0.0
    reports = []
    detector = DetectorConfig(window=Window(epochs=2), statistic="paper")
    decide = {"decider": lambda report, proposal: reports.append(report) or proposal}
    session = attach(ddp, Config(method="none", detector=detector), optimizer=optimizer, **decide)
    for step in range(5):
        small.train(session, ddp, rank, [step % STEPS])
        session.end_epoch(lr=0.1, next_lr=0.1)
    return [report.statistic_by_layer for report in reports]


def test_the_paper_statistic_compares_sums_of_single_epochs_a_window_apart(run_group):
    found, steps = run_group(2, _reported_by_epoch)[0], _gradients(0)
    assert [norms is None for norms in found] == [False, True, False, True, False]
    for epoch in (0, 2, 4):
        expected = steps[epoch % STEPS]["conv.weight"].norm().item()
        assert found[epoch]["conv.weight"] == pytest.approx(expected, rel=1e-4), epoch


def test_the_root_mean_square_is_that_of_single_gradients(run_group):
    (report,) = run_group(2, _reported, "mean")[0]
    steps = _gradients(0) + _gradients(1)
    for layer, found in report.rms_by_layer.items():
        expected = torch.stack([step[layer].square().sum() for step in steps]).mean().sqrt().item()
        assert found == pytest.approx(expected, rel=1e-4 if layer in EXACT else 0.1), layer
