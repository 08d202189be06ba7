"""What a framework's loop keeps over a stop of its job, and the rate that people set in it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from accordion.base.messages import Override
from accordion_workers.records.contract import DesiredState
from tests.distributed.code_jobs import run_own_script
from tests.distributed.framework_loops import LOOPS, TRAINER, changed, end_of, run_job, stop_in
from tests.distributed.loop_jobs import RecordingLink
from tests.distributed.test_own_code import order_of

PATIENT = {
    "transformers": (
        "trainer.add_callback(Body())",
        "trainer.add_callback(Body())\nfrom transformers import EarlyStoppingCallback\n"
        "trainer.add_callback(EarlyStoppingCallback(2, 9.0))",
        "eval_strategy='epoch', save_strategy='epoch', load_best_model_at_end=True,"
        " restore_callback_states_from_checkpoint=True",
    ),
    "lightning": (
        "max_epochs=99, ",
        "max_epochs=99, callbacks=[lightning.callbacks.EarlyStopping('held_out', 9.0, 2)], ",
        "",
    ),
}


@pytest.mark.parametrize("loop", PATIENT)
def test_a_stop_does_not_renew_the_patience_of_a_callback(
    run_group: Any, tmp_path: Path, loop: str
) -> None:
    old, new, more = PATIENT[loop]
    source, training = changed(LOOPS[loop], (old, new)), {"epochs": 6, "global_batch": 32}
    run_job(run_group, tmp_path, source, more=more, training=training, body=stop_in(9, "SAVE_STOP"))
    again = run_job(run_group, tmp_path, source, more=more, training=training, generation=2)
    assert [record.epoch for record in again.link.of("epoch")] == [2]


@pytest.mark.parametrize("loop", LOOPS)
def test_an_override_sets_the_rate_of_a_loop(run_group: Any, tmp_path: Path, loop: str) -> None:
    nothing = Override(id="o1", number=1, target="lr", level=1e-30)
    link = RecordingLink(orders=DesiredState(version=1, overrides=(nothing,)))
    parameters = "sum(one.double().sum() for one in session.state.model.parameters())"
    source = LOOPS[loop].replace("BODY", f"print('at', float({parameters}))").replace("MORE", "")
    result = run_group(2, run_own_script, order_of(tmp_path, {"train.py": source}), link)[0]
    first, second, *others = [line for line in result.said.splitlines() if line.startswith("at")]
    # What all workers are told in the first step holds from the second one on.
    assert first != second
    assert set(others) == {second}
    assert [record.lr for record in result.link.of("epoch")] == [1e-30] * 3


# The loss only falls, so the model of the first epoch is the best.
BEST_IS_FIRST = (
    "eval_strategy='epoch', save_strategy='epoch', load_best_model_at_end=True,"
    " metric_for_best_model='loss', greater_is_better=True"
)


@pytest.mark.parametrize("place", ["out", "FOLDER/out"])
def test_a_trainer_ends_with_the_best_model_from_before_a_stop(
    run_group: Any, tmp_path: Path, place: str
) -> None:
    def run(folder: Path, *, generation: int = 1, body: str = "pass") -> tuple[str, str]:
        output = place.replace("FOLDER", str(folder))
        source = changed(TRAINER, ('output_dir="out"', f'output_dir="{output}"'))
        more = {"more": BEST_IS_FIRST, "generation": generation}
        return end_of(run_group, folder, source, body=body, **more)

    for folder in ("whole", "stopped"):
        (tmp_path / folder).mkdir()
    assert run(tmp_path / "stopped", body=stop_in(9, "SAVE_STOP")) == ("stopped", "")
    again = run(tmp_path / "stopped", generation=2)
    assert again == run(tmp_path / "whole")


def test_a_best_model_that_is_gone_is_told(run_group: Any, tmp_path: Path) -> None:
    given = {"more": BEST_IS_FIRST}
    run_job(run_group, tmp_path, TRAINER, body=stop_in(9, "SAVE_STOP"), **given)
    shutil.rmtree(tmp_path / "storage/trainer")
    again = run_job(run_group, tmp_path, TRAINER, generation=2, **given)
    [told] = [line for line in again.link.lines if "best model" in line]
    assert "trainer/out/checkpoint-4, which this worker does not have" in told
    assert again.outcome == "completed"


def test_a_trainer_counts_its_epochs_as_if_it_had_not_stopped(
    run_group: Any, tmp_path: Path
) -> None:
    telling = "def on_step_end(self, _, state, *__, **___): print('at', round(state.epoch, 4))"
    source = changed(TRAINER, ("    def on_step_begin", f"    {telling}\n    def on_step_begin"))
    (whole_folder := tmp_path / "whole").mkdir()
    whole, stopped = [
        [line for result in runs for line in result.said.splitlines() if line.startswith("at")]
        for runs in (
            [run_job(run_group, whole_folder, source)],
            [
                run_job(run_group, tmp_path, source, body=stop_in(6, "SAVE_STOP")),
                run_job(run_group, tmp_path, source, generation=2),
            ],
        )
    ]
    assert stopped == whole
    assert len(whole) == 12
