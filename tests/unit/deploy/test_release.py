"""What a release consists of: workflows of GitHub, as far as they can be judged here, and the
archives that they publish.
"""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.programs import run_program

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_follow_their_schema(path: Path) -> None:
    checker = Path(sys.executable).with_name("check-jsonschema")
    said = run_program([checker, "--builtin-schema", "vendor.github-workflows", path])
    assert said.returncode == 0, said.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_may_do_no_more_than_they_say_and_name_what_is_there(path: Path) -> None:
    text = path.read_text()
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    assert all("permissions" in job for job in workflow["jobs"].values())
    assert "secrets." not in text
    images = {
        path.name.removesuffix(".Dockerfile") for path in ROOT.glob("deploy/docker/*.Docker*")
    }
    if path.name == "images.yml":
        matrix = workflow["jobs"]["image"]["strategy"]["matrix"]["image"]
        assert set(matrix) == {name for name in images if "." not in name}


def test_a_wheel_of_the_sdist_is_that_of_the_checkout(tmp_path: Path) -> None:
    hatch = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path]
    assert run_program(hatch, cwd=ROOT).returncode == 0
    [sdist] = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [unpacked] = (path for path in tmp_path.iterdir() if path.is_dir())
    names = []
    for number, source in enumerate((ROOT, unpacked)):
        folder = tmp_path / f"wheel-{number}"
        wheel = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        assert run_program(wheel, cwd=source).returncode == 0
        [file] = folder.glob("*.whl")
        names.append(set(zipfile.ZipFile(file).namelist()))
    assert names[0] == names[1]
    assert sum(name.endswith(".py") for name in names[0]) > 500
