"""`accordion examples`: files to start from."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.unit.service.conftest import Accordion

DEPLOY = Path(__file__).parents[3] / "deploy"


def test_examples_are_the_projects_and_each_job_file_is_one(
    alone: Accordion, tmp_path: Path
) -> None:
    written = tmp_path / "examples"
    said = alone("examples", written)
    assert said.code == 0
    assert f"accordion check {written}/jobs/digits.yaml" in said.out
    files = [path for path in written.rglob("*") if path.is_file()]
    assert said.out.startswith(f"wrote {len(files)} files")
    for path in files:
        ours = (DEPLOY / path.relative_to(written)).read_bytes()
        assert path.read_bytes().replace(bytes(written), b"deploy") == ours
    job = (written / "jobs/digits.yaml").read_text()
    assert f"accordion submit {written}/jobs/digits.yaml" in job
    names = {str(path.relative_to(written)) for path in files}
    assert {"jobs/own-script/code/train.py", "examples/train_with_lightning.py"} <= names
    assert any(name.startswith("grafana/dashboards/") for name in names)
    assert alone("check", written / "jobs/own-task/job.yaml").code == 0
    assert yaml.safe_load((written / "prometheus/prometheus.yml").read_text())["scrape_configs"]


def test_files_that_are_there_are_not_written_over(alone: Accordion, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    said = alone("examples", tmp_path)
    assert (said.code, "exists and is not empty; give a new directory" in said.err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("name", ["/proc/nowhere", 300 * "a"])
def test_a_directory_that_cannot_be_written_is_named(alone: Accordion, name: str) -> None:
    said = alone("examples", name)
    assert (said.code, f"{name} cannot be written" in said.err) == (2, True)
