"""The hook in every way of training that it claims to serve, for every row of the table of
compressors.
"""

from __future__ import annotations

import pytest
import torch

from accordion.compressors import COMPRESSORS
from tests.distributed.compose import WAYS, trial

METHODS = sorted(COMPRESSORS)
OTHER_TENSORS = {
    "channels last",
    "bf16 parameters",
    "fp64 parameters",
    "complex parameters",
    "several methods in a bucket",
}
"""Ways in which compressors get other tensors: each meets every method. The others change the loop
and the buckets, which no method knows of: half of the methods by turns.
"""
METHODS_BY_WAY = {
    name: METHODS if name in OTHER_TENSORS else METHODS[place % 2 :: 2]
    for place, name in enumerate(WAYS)
}
STEPS = 3


def _account(rank, name):
    """Values by method: gave and got of every step, and the parameters at the end."""
    accounts = {}
    for method in METHODS_BY_WAY[name]:
        worker = trial(rank, WAYS[name], method)
        steps = worker.account(range(STEPS))
        accounts[method] = (
            steps,
            worker.parameters(),
            worker.session.end_epoch(lr=0.1, next_lr=0.1).decision,
        )
    return accounts


def _check(way, by_rank, decision):
    """The law of `compose`, layer by layer."""
    for step in range(STEPS):
        for layer, got in by_rank[0][step][1].items():
            level = decision.level_by_layer.get(layer)
            gave = torch.stack([steps[step][0][layer] for steps in by_rank]).mean(0)
            if (
                level is None
                or COMPRESSORS[level.method].feedback
                or COMPRESSORS[level.method].exact
            ):
                # residuals may be far larger than what is sent: they set the size of a rounding
                # error
                size = max(
                    gave.abs().max(), *(steps[step][0][layer].abs().max() for steps in by_rank)
                )
                torch.testing.assert_close(
                    got, gave, rtol=0, atol=way.precision * size.item(), msg=f"{layer}, {step}"
                )
            else:
                assert torch.dot(got, gave) >= 0, f"{layer}, {step}"


@pytest.mark.parametrize("name", WAYS)
def test_what_the_workers_gave_is_what_their_optimizers_get(run_group, name):
    results = run_group(2, _account, name)
    for method in METHODS_BY_WAY[name]:
        by_rank = [accounts[method][0] for accounts in results]
        _check(WAYS[name], by_rank, results[0][method][2])
        ends = [accounts[method][1] for accounts in results]
        assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True)), method
        assert all(torch.isfinite(value).all() for value in ends[0])
