"""The policy `gain` in running sessions, which measure what compression sends."""

from __future__ import annotations

import pytest

from accordion.compress.compression_engine import MEASURE_EVERY_STEPS
from tests.distributed.compose import Way, trial

WAY = Way(ddp={"bucket_cap_mb": 0.02})


def _train(rank, least):
    """Return the levels after each of two epochs, the reason, and the parameters."""
    worker = trial(rank, WAY, "topk", policy="gain", policy_options={"least": least})
    decisions = []
    for epoch in range(2):
        for step in range(MEASURE_EVERY_STEPS + 1):
            worker.step(epoch * (MEASURE_EVERY_STEPS + 1) + step)
        decisions.append(worker.session.end_epoch(lr=0.1, next_lr=0.1).decision)
    levels = [{level.name for level in each.level_by_layer.values()} for each in decisions]
    return levels, decisions[0].reason, worker.parameters()


@pytest.mark.parametrize(("least", "level"), [(0.01, "high"), (1.0, "none")])
def test_levels_follow_what_compression_sends_on_all_workers(run_group, least, level):
    """Top-k sends at least a hundredth of a layer's energy, and never all of it."""
    first, other = run_group(2, _train, least)
    levels, reason, parameters = first
    assert levels == [{level}, {level}]
    assert f"of their energy, where at least {least:.0%} is wanted" in reason
    assert other[0] == levels
    assert all(a.equal(b) for a, b in zip(parameters, other[2], strict=True))
