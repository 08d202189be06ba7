"""How user code and built-in tasks find the data of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from accordion_workers import ScriptSession
from accordion_workers.common.errors import CodeError
from accordion_workers.data.files import expand_path
from accordion_workers.training.data_paths import find_data
from accordion_workers.training.standalone_context import standalone_context
from tests.unit.workers.world import launch as launch_of


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("ACCORDION_DATA_TRAIN", str(tmp_path))
    return tmp_path


def test_a_script_finds_its_data_by_name_in_a_job_and_outside_of_one(
    train: Path, tmp_path: Path
) -> None:
    assert find_data("train", launch_of(tmp_path, data={"train": "s3://b/c"})) == train
    assert find_data("train", None) == train
    assert ScriptSession().data_path("train") == train


def test_a_name_that_the_job_does_not_have_is_an_error_that_lists_those_it_has(
    tmp_path: Path,
) -> None:
    launch = launch_of(tmp_path, data={"valid": "/mnt/v", "test": "/mnt/t"})
    with pytest.raises(CodeError, match="no data 'train', it has test, valid"):
        find_data("train", launch)


def test_outside_of_a_job_the_error_names_the_variable() -> None:
    with pytest.raises(CodeError, match="set ACCORDION_DATA_TRAIN to their path"):
        ScriptSession().data_path("train")


def test_a_run_outside_of_a_job_does_not_fetch_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    with pytest.raises(CodeError, match=r"job has data \(train\), which are fetched for jobs"):
        standalone_context({"data": {"train": "s3://bucket/train"}}, None)


def test_a_built_in_task_takes_the_path_from_the_variable(train: Path) -> None:
    assert expand_path("$ACCORDION_DATA_TRAIN/text.txt") == train / "text.txt"
    assert expand_path("/mnt/text.txt") == Path("/mnt/text.txt")
