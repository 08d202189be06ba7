"""The images get what they need, and what they leave out is not needed by what they start."""

from __future__ import annotations

import re
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import run_program

ROOT = Path(__file__).parents[3]
RECIPES = sorted((ROOT / "deploy/docker").glob("*.Dockerfile"))

LEFT_OUT = ("torch", "ray", "numpy", "sklearn", "pandas")
BLOCK = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {LEFT_OUT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


def test_the_api_is_made_without_what_its_image_leaves_out(tmp_path):
    start = (
        "from accordion_service.api.app import create_app;"
        " from accordion_service.settings.settings import load_settings;"
        f" create_app(load_settings(home={str(tmp_path)!r}))"
    )
    said = run_program([sys.executable, "-c", BLOCK + start])
    assert said.returncode == 0, said.stderr


def test_the_blocker_blocks():
    said = run_program([sys.executable, "-c", BLOCK + "import numpy"])
    assert "No module named 'numpy'" in said.stderr


def copied_files(recipe: Path) -> Iterator[str]:
    """Files of the repository that a recipe copies; a source that does not exist is one as well."""
    for arguments in re.findall(r"^COPY (?!.*--from)(.+)$", recipe.read_text(), re.MULTILINE):
        for source in [word for word in arguments.split() if not word.startswith("--")][:-1]:
            below = [path for path in (ROOT / source).rglob("*.*") if path.is_file()]
            paths = [path for path in below if "__pycache__" not in path.parts]
            yield from (str(path.relative_to(ROOT)) for path in paths or [ROOT / source])


def is_sent(path: str, rules: list[str]) -> bool:
    """Whether the builder gets a file: the last rule that matches it or its folder counts."""
    sent = True
    for rule in rules:
        parts = re.split(r"(\*\*/|\*\*|\*)", rule.removeprefix("!"))
        wild = {"**/": "(.*/)?", "**": ".*", "*": "[^/]*"}
        pattern = "".join(wild.get(part, re.escape(part)) for part in parts)
        if re.fullmatch(f"{pattern}(/.*)?", path):
            sent = rule.startswith("!")
    return sent


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_what_an_image_copies_is_sent_to_its_builder(recipe: Path):
    rules = Path(f"{recipe}.dockerignore").read_text().split()
    copied = list(copied_files(recipe))
    assert len(copied) > 100
    assert [path for path in copied if not (ROOT / path).exists()] == []
    assert [path for path in copied if not is_sent(path, rules)] == []


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_the_wheel_is_built_from_what_an_image_copies(recipe: Path, tmp_path: Path) -> None:
    for path in copied_files(recipe):
        place = tmp_path / "context" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, place)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    said = run_program([*pip, "--wheel-dir", str(tmp_path), str(tmp_path / "context")])
    assert said.returncode == 0, said.stderr
    [wheel] = tmp_path.glob("*.whl")
    assert any("examples/jobs" in name for name in zipfile.ZipFile(wheel).namelist())


def test_an_ignore_file_leaves_out_what_no_rule_readmits():
    rules = ["*", "!accordion/**", "!LICENSE", "**/__pycache__"]
    sent = ("accordion/a.py", "accordion/b/c.py", "LICENSE")
    assert all(is_sent(path, rules) for path in sent)
    left_out = ("accordion_ray/a.py", "README.md", "accordion/b/__pycache__/c.pyc")
    assert not any(is_sent(path, rules) for path in left_out)
