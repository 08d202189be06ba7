"""`accordion submit` and `accordion show` of jobs with loggers, and what serves those."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.conftest import Live, serve_live
from tests.api.team import wait_for
from tests.architecture.source import ROOT
from tests.unit.service.conftest import Accordion


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        yield from serve_live(tmp_path_factory.mktemp("service"))


def test_a_job_shows_where_its_loggers_are(accordion: Accordion, spec: Path) -> None:
    with spec.open("a") as file:
        file.write("loggers:\n- {kind: tensorboard}\n")
    job = accordion("submit", spec, "--json").json()

    def list_loggers() -> list[dict]:
        return accordion("show", job["id"], "--json").json()["loggers"]

    wait_for(lambda: list_loggers()[0]["state"] == "DONE")
    [logger] = list_loggers()
    assert list(Path(logger["location"]).iterdir())
    shown = accordion("show", job["id"]).out
    assert "EPOCHS SENT" in shown
    assert "tensorboard" in shown
    assert logger["location"] in "".join(shown.split())


def test_a_logger_that_cannot_work_is_a_usage_error(accordion: Accordion, spec: Path) -> None:
    said = accordion("submit", spec, "--set", "loggers=[{kind: wandb, project: p}]")
    assert said.code == 2
    assert "mode online needs an API key" in said.err


def test_a_job_without_loggers_shows_none(accordion: Accordion, spec: Path) -> None:
    job = accordion("submit", spec, "--json").json()
    assert "EPOCHS SENT" not in accordion("show", job["id"]).out
    assert accordion("show", job["id"], "--json").json()["loggers"] == []
