"""Every optimizer that a job file can name trains, and resumes as if it had not stopped."""

from __future__ import annotations

from typing import get_args

import pytest

from accordion_workers.records.contract import DesiredState
from accordion_workers.spec.training import OptimizerName
from tests.distributed.loop_jobs import RecordingLink, equal, run_job, spec

RATES = {"sgd": 0.05, "adagrad": 0.03, "radam": 0.03}


@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_a_stopped_job_ends_with_the_same_bits(run_group, tmp_path, name):
    optimizer = {"name": name, "lr": RATES.get(name, 0.01)}
    job = spec(training={"epochs": 3, "optimizer": optimizer})
    whole = run_group(2, run_job, tmp_path / "whole", job)[0]
    losses = [record.loss for record in whole.link.of("epoch")]
    assert losses[-1] < 0.7 * losses[0]
    stop = DesiredState(version=1, stop="cancel")
    link = RecordingLink(orders=stop, order_after=("epoch", 0))
    assert run_group(2, run_job, tmp_path / "parts", job, link)[0].outcome == "stopped"
    resumed = run_group(2, run_job, tmp_path / "parts", job, None, 2)[0]
    assert equal(resumed.parameters, whole.parameters)


def test_settings_of_a_job_file_reach_the_optimizer(run_group, tmp_path):
    def losses(**settings: object) -> list[float]:
        optimizer = {"name": "adamw", "lr": 0.003, **settings}
        job = spec(training={"epochs": 1, "optimizer": optimizer})
        place = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        return [one.loss for one in run_group(2, run_job, place, job)[0].link.of("epoch")]

    plain = losses()
    assert plain == losses(betas=[0.9, 0.999], eps=1e-8)
    assert plain != losses(betas=[0.5, 0.9])
    assert plain != losses(eps=0.1)
