"""`accordion download`."""

from __future__ import annotations

from pathlib import Path

import pytest

from accordion_client import Client
from tests.unit.service.conftest import Accordion


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service has a model for every job."""

    def download_model(
        self: Client, job_id: str, file: Path, *, checkpoint: str | None = None
    ) -> str:
        del self, job_id
        file.write_bytes(b"tensors")
        return checkpoint or "newest"

    monkeypatch.setattr(Client, "download_model", download_model)


@pytest.mark.usefixtures("served")
def test_a_model_is_written_beside_the_caller(
    accordion: Accordion, running: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = accordion("show", running, "--json").json()["job"]["name"]
    said = accordion("download", running)
    assert said.out == f"wrote {name}.safetensors (7 B) from checkpoint newest\n"
    again = accordion("download", running)
    assert (again.code, "exists; give another file with --to, or --force" in again.err) == (2, True)
    said = accordion("download", running, "--force", "--checkpoint", "g1")
    assert said.out.endswith("from checkpoint g1\n")


@pytest.mark.usefixtures("served")
def test_a_directory_is_refused_before_anything_is_read(
    accordion: Accordion, running: str, tmp_path: Path
) -> None:
    for options in ((), ("--force",)):
        said = accordion("download", running, "--to", tmp_path, *options)
        assert said.code == 2
        assert "is a directory; give a file with --to" in " ".join(
            said.err.replace("│", " ").split()
        )


def test_a_job_without_files_says_so(accordion: Accordion, running: str, tmp_path: Path) -> None:
    said = accordion("download", running, "--to", tmp_path / "model")
    assert said.code == 2
    assert "checkpoint" in said.err
    assert list(tmp_path.glob("*model*")) == []
    said = accordion("download", "nobody", "--to", tmp_path / "model")
    assert (said.code, "nobody" in said.err) == (2, True)


def test_a_job_that_failed_before_it_saved_anything_has_no_model(
    accordion: Accordion, spec: Path, tmp_path: Path
) -> None:
    raising = ("--set", "task={name: synthetic, options: {raise_at_step: 3}}")
    job_id = accordion("submit", spec, *raising, "--json").json()["id"]
    assert accordion("watch", job_id).code == 1
    said = accordion("download", job_id, "--to", tmp_path / "model")
    assert said.code == 2
    assert "the job is FAILED and has saved no checkpoint, so there is no model of it" in said.err
    assert "again when it has" not in said.err
