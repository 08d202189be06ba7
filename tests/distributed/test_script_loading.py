"""What of a script's steps counts as loading data: waiting for its loader, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accordion_service.domain.performance.bottleneck import find_bottleneck
from accordion_service.domain.performance.step_profile import Cause, StepProfile
from tests.distributed.framework_loops import ACCELERATE, LIGHTNING, OWN, TRAINER, run_job

SAMPLE_S = 0.005
"""Seconds that a sample of a slow loader takes; a step without it takes a few milliseconds."""
WORK_S = 0.2
"""Seconds of a script's own work in each step."""
STEPS = 4
"""Steps of an epoch; a rank reads at least two samples in each."""
PARALLEL = OWN.replace(
    "batches(100))", "batches(100), num_workers=2, multiprocessing_context='fork')"
)
SLOW_WORK = OWN.replace("optimizer.zero_grad()\n", f"optimizer.zero_grad(); time.sleep({WORK_S})\n")
OWN_LOADERS = {
    "torch": SLOW_WORK,
    "torch, in parallel": SLOW_WORK.replace(
        "batches(100))", "batches(100), num_workers=2, multiprocessing_context='fork')"
    ),
    "without a loader": SLOW_WORK.replace(
        "for batch in loader:", "for rows in session.batches(100):"
    ).replace("BODY", "batch = {'inputs': Rows.inputs[rows], 'labels': Rows.inputs[rows]}"),
    "not wrapped": SLOW_WORK.replace("DistributedDataParallel(Net())", "Net()"),
}
SLOW_LOADERS = {
    "torch": OWN,
    "torch, in parallel": PARALLEL,
    "accelerate": ACCELERATE,
    "transformers": TRAINER,
    "lightning": LIGHTNING,
}


def with_slow_samples(source: str) -> str:
    return "import time\n" + source.replace(
        "        return {", f"        time.sleep({SAMPLE_S})\n        return {{", 1
    )


def blame(result: Any) -> Cause:
    found = find_bottleneck(StepProfile(step_s_by_phase=result.link.progresses[-1].step_s_by_phase))
    assert found is not None
    return found.cause


@pytest.mark.parametrize("loader", OWN_LOADERS)
def test_what_a_script_does_after_its_step_is_no_loading(
    run_group: Any, tmp_path: Path, loader: str
) -> None:
    workers = 1 if loader == "not wrapped" else 2
    source = f"import time\n{OWN_LOADERS[loader]}"
    result = run_job(run_group, tmp_path, source, workers=workers)
    assert result.outcome == "completed"
    for record in result.link.of("epoch")[1:]:
        assert record.seconds_by_phase["compute"] >= (STEPS - 1) * WORK_S
    newest = result.link.progresses[-1].step_s_by_phase
    # Not zero: loaders with processes start these in each epoch.
    assert newest["load"] < 0.5 * newest["compute"]


@pytest.mark.parametrize("loader", SLOW_LOADERS)
def test_a_slow_loader_is_blamed(run_group: Any, tmp_path: Path, loader: str) -> None:
    more = "limit_val_batches=0, " if loader == "lightning" else ""
    source = with_slow_samples(SLOW_LOADERS[loader])
    result = run_job(run_group, tmp_path, source, more=more)
    assert result.outcome == "completed"
    assert blame(result) == Cause.DATA_LOADING
    seconds = result.link.of("epoch")[-1].seconds_by_phase
    assert seconds["load"] > seconds["compute"]


def test_a_slow_loader_of_an_evaluation_counts_as_evaluation(
    run_group: Any, tmp_path: Path
) -> None:
    lines = (
        "    model.module.eval()\n"
        "    for batch in DataLoader(Rows(), batch_size=50): time.sleep(0)\n"
        "    model.module.train()\n"
        "tell_end(model)"
    )
    source = (
        with_slow_samples(OWN)
        .replace('tell_end(model)\n"""', "")
        .replace("\ntell_end(model)", f"\n{lines}")
    )
    result = run_job(run_group, tmp_path, source, workers=1)
    seconds = result.link.of("epoch")[-1].seconds_by_phase
    assert 100 * SAMPLE_S <= seconds["load"] < 1.6 * 100 * SAMPLE_S
    assert seconds["evaluate"] >= 100 * SAMPLE_S
