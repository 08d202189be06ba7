"""Recipes of deploy/jobs/script-recipes as jobs: they learn, and resume where they were stopped."""

from __future__ import annotations

from functools import cache
from math import log
from pathlib import Path
from typing import Any

import pytest
import yaml

from accordion_workers.records.contract import DesiredState
from tests.distributed.code_jobs import launch, packed_folder, run_own_script
from tests.distributed.loop_jobs import RecordingLink

RECIPES = Path(__file__).parents[2] / "deploy/jobs/script-recipes"
SCRIPTS = ["adapters", "average", "gan", "iterations", "parts", "sharpness", "stream"]
EPOCHS = 4
STEPS = 23
"""Steps of an epoch."""
STOP = RecordingLink(orders=DesiredState(version=1, stop="cancel"), order_after=("epoch", 0))


def order_of(name: str, folder: Path) -> Any:
    spec = yaml.safe_load((RECIPES / "job.yaml").read_text())
    spec["task"]["options"]["file"] = f"{name}.py"
    spec["training"]["epochs"] = EPOCHS
    return launch(folder / "storage", spec, packed_folder(folder, RECIPES / "code"))


def test_all_recipes_are_tried() -> None:
    files = {path.stem for path in (RECIPES / "code").glob("*.py")}
    assert files == {*SCRIPTS, "pictures"}


def epochs_of(results: list[Any]) -> list[Any]:
    assert [one.outcome for one in results] == ["completed"] * 2, results[0].said
    records: list[Any] = results[0].link.of("epoch")
    return records


@pytest.fixture(scope="module")
def undisturbed(run_group: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Records of the epochs of a recipe that nothing stops; each is run once."""

    @cache
    def records(name: str) -> list[Any]:
        order = order_of(name, tmp_path_factory.mktemp("whole"))
        return epochs_of(run_group(2, run_own_script, order))

    return records


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "gan"])
def test_a_recipe_learns(undisturbed: Any, name: str) -> None:
    records = undisturbed(name)
    assert len(records) == EPOCHS
    assert records[-1].metrics["accuracy"] > 0.7
    assert records[-1].bytes.payload < records[-1].bytes.dense


def test_neither_rival_wins_at_once(undisturbed: Any) -> None:
    first, *_, last = undisturbed("gan")
    # ln 2 is the loss of a coin; the discriminator has two such terms.
    assert 0.2 < last.metrics["judged"] < 2 * log(2)
    assert last.metrics["fooled"] < first.metrics["fooled"]


def test_parts_of_a_batch_train_what_the_batch_trains(undisturbed: Any) -> None:
    parts, whole = undisturbed("parts")[0], undisturbed("iterations")[0]
    assert parts.loss == pytest.approx(whole.loss, rel=1e-3)
    assert parts.bytes.dense == whole.bytes.dense


def test_only_what_is_trained_is_exchanged(undisturbed: Any) -> None:
    [added] = {record.bytes.dense // 4 for record in undisturbed("adapters")}
    assert added == STEPS * (64 * 8 + 8 * 128 + 128 * 8 + 8 * 10)


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "stream"])
def test_a_stopped_recipe_goes_on_where_it_was(
    run_group: Any, undisturbed: Any, tmp_path: Path, name: str
) -> None:
    order = order_of(name, tmp_path)
    assert run_group(2, run_own_script, order, STOP)[0].outcome == "stopped"
    resumed = run_group(2, run_own_script, order, None, 2)
    assert resumed[0].link.of("started")[0].step % STEPS  # within an epoch
    last, whole = epochs_of(resumed)[-1], undisturbed(name)[-1]
    assert (last.loss, last.metrics) == (whole.loss, whole.metrics)


def test_a_stopped_stream_begins_its_epoch_again(run_group: Any, tmp_path: Path) -> None:
    order = order_of("stream", tmp_path)
    assert run_group(2, run_own_script, order, STOP)[0].outcome == "stopped"
    records = epochs_of(run_group(2, run_own_script, order, None, 2))
    assert [record.epoch for record in records] == [1, 2, 3]
    assert records[-1].metrics["accuracy"] > 0.7
