"""Data of a job on real Ray: fetched before the task is built, once for all workers of a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.elastic.conftest import Start

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.elastic, pytest.mark.timeout(900)]


def test_workers_find_the_data_and_fetch_them_once(start: Start, tmp_path: Path) -> None:
    source, notes = tmp_path / "source", tmp_path / "notes"
    source.mkdir()
    notes.mkdir()
    (source / "words.txt").write_text("a b c")
    task = {"name": "tests.elastic.data_tasks:NotesData", "options": {"folder": str(notes)}}
    life = start(
        {
            "task": task,
            "data": {"words": f"file://{source}"},
            "training": {"epochs": 1},
            "workers": {"min": 2, "max": 2},
        }
    )
    assert life.end().status == "SUCCEEDED", life.story()
    found = {note.read_text() for note in notes.glob("*.note")}
    assert len(found) == 1
    place, text = found.pop().split("\n")
    assert (text, place.startswith(str(source))) == ((source / "words.txt").read_text(), False)
    fetches = [line for line in life.logs if "fetching data 'words'" in line.text]
    assert len(fetches) == 1


def test_data_that_are_not_there_end_the_job_with_the_reason(start: Start, tmp_path: Path) -> None:
    life = start(
        {
            "task": {"name": "digits-mlp"},
            "data": {"train": f"file://{tmp_path}/none"},
            "workers": {"min": 1, "max": 1},
        },
        workers=1,
    )
    end = life.end()
    assert (end.status, end.reason) == ("FAILED", "START_FAILED")
    assert f"there is nothing at file://{tmp_path}/none" in end.message
