"""A link that becomes slow in mid-run: the policy `cost_aware` follows it and gives the figures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from accordion_workers.records.contract import DecisionRecord, DesiredState
from tests.conftest import Require
from tests.elastic.conftest import Life, wait_for
from tests.elastic.node_jobs import connected_cluster, start_job

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.elastic, pytest.mark.timeout(900)]
JOB = Path(__file__).parents[2] / "deploy" / "jobs" / "cifar-small.yaml"
FAST, SLOW = 1000, 10
"""Mbit/s before and after the change. The gradients take 0.6 s on the slow link, more than a step
takes on a loaded machine, so the backward pass cannot hide them.
"""
_CHOICE = re.compile(r"(\w+) is chosen because .* at ([\d.]+) ([MG])bit/s")


def spec_of(data: Path) -> dict[str, Any]:
    """The small ResNet-18 with `cost_aware`, for as long as the test needs it."""
    job: dict[str, Any] = yaml.safe_load(JOB.read_text())
    job["task"]["options"] |= {"data": str(data), "samples": 1600, "eval_samples": 64}
    job["training"] |= {"epochs": 1000, "lr_decay": {"at": []}}
    job["policy"] = {"name": "cost_aware", "window": {"epochs": 1}}
    job["workers"] |= {"min": 2, "max": 2}
    job.pop("labels")
    return job


def choices(life: Life) -> list[tuple[str, float]]:
    """Chosen level and measured Mbit/s of each decision, as its reason gives them."""
    life.look()
    found = [_CHOICE.search(each.decision.reason) for each in life.all(DecisionRecord)]
    return [(match[1], float(match[2]) * {"M": 1, "G": 1000}[match[3]]) for match in found if match]


def test_the_policy_follows_a_link_that_becomes_slow(require: Require, tmp_path: Path) -> None:
    require("ip")
    data = require.data("cifar10-subset.zip")
    with connected_cluster(nodes=2, hosts=3, rate=FAST) as made:
        life = start_job(made, tmp_path, spec_of(data))
        wait_for(lambda: choices(life), life.story)
        assert choices(life)[-1][1] > 2 * SLOW
        made.shape(SLOW)
        # On a loaded machine, one window's measurement may be of a moment without a processor.
        wait_for(
            lambda: any(
                level in {"low", "high"} and SLOW / 2 < speed < 2 * SLOW
                for level, speed in choices(life)
            ),
            life.story,
        )
        life.order(DesiredState(version=1, stop="cancel"))
        assert life.end().status == "CANCELLED"
