"""Code blocks of the chapters Start and Guides do what they say. Two kinds are run elsewhere: the
`console` blocks of a walk through, and training scripts, under torchrun and Ray Train.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import shlex
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml
from typer import Context

from accordion_client import Client
from accordion_client.commands.cli_app import app
from accordion_service.schemas.specs import PlanRequest
from accordion_service.settings.setting_list import describe_unknown_variables
from accordion_workers.records.contract import JobSpec
from tests.api.conftest import Live, serve_live
from tests.unit.docs.code_blocks import BOOK, CHAPTERS, ROOT, Block, find_blocks, read_blocks
from tests.unit.service.conftest import Accordion

RUN_ELSEWHERE = {
    "start/torchrun": "tests/distributed/test_torchrun.py",
    "start/sharded": "tests/distributed/test_torchrun.py",
    "start/own_script": "tests/distributed/test_torchrun.py",
    "start/ray_train": "tests/e2e/test_wheel.py",
    "guides/team": "tests/unit/service/test_walk_through.py",
}
"""Tests that run the blocks of a page in `python`, `py` or `console`."""
ONLY_PARSED = re.compile(
    r"((compare|report) simulations/"
    r"|(demo|doctor|env|login|plan|simulate|up|watch|webhook test|--help)\b)"
)
"""Commands that start processes, wait for a browser, last as long as a job, or reach out, and what
needs their results.
"""
BETWEEN = {"STARTING", "RESIZING", "PAUSING", "STOPPING", "RECOVERING"}
"""Statuses that a job leaves by itself, soon."""
SLOW_TICKS = 25
"""Drains of the scripted cluster for an epoch, so that jobs last as long as their page."""


def commands_of(block: Block) -> list[list[str]]:
    """Words of each command of a shell block."""
    text = block.text.replace("\\\n", " ")
    lines = (shlex.split(line, comments=True) for line in text.splitlines())
    return [words for words in lines if words]


def run_commands_of(page: str) -> list[list[str]]:
    """Arguments of `accordion` in the order of a page, less those that are only parsed."""
    blocks = [block for block in read_blocks(page) if block.language == "sh"]
    found = [words[1:] for one in blocks for words in commands_of(one) if words[0] == "accordion"]
    return [words for words in found if not ONLY_PARSED.match(" ".join(words))]


def make_context(words: list[str]) -> Context:
    """Parse a command of `accordion`, and run nothing."""
    group, context, name = app, None, "accordion"
    while hasattr(group, "commands") and words and not words[0].startswith("-"):
        context = group.make_context(name, [*words], parent=context, resilient_parsing=True)
        name, words = words[0], words[1:]
        group = group.commands[name]
    return group.make_context(name, words, parent=context)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    for service in serve_live(tmp_path / "service"):
        service.runtime.ticks_per_epoch = SLOW_TICKS
        yield service


@pytest.fixture
def accordion(
    alone: Accordion, live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Accordion:
    """The command line beside the service, in a folder that has this repository's job files."""
    monkeypatch.setenv("ACCORDION_URL", live.url)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    monkeypatch.chdir(tmp_path)
    return alone


@pytest.fixture
def digits_watch(accordion: Accordion) -> None:
    """The job that the guides use."""
    spec = ("deploy/jobs/digits-watch.yaml", "--set", "training.epochs=400")
    assert accordion("submit", *spec, "--set", "labels.sweep=lr").code == 0


def settle(live: Live) -> None:
    """Wait until no job is about to change its status."""
    with Client(live.url) as client:
        while any(job.status in BETWEEN for job in client.jobs().items):
            pass  # pytest's time limit ends it


@pytest.mark.parametrize("block", find_blocks("yaml"), ids=str)
def test_a_job_file_of_the_book_is_accepted(block: Block) -> None:
    JobSpec.model_validate({"task": {"name": "digits-mlp"}, **yaml.safe_load(block.text)})


@pytest.mark.parametrize("block", find_blocks("sh"), ids=str)
def test_commands_of_the_book_exist_with_their_options(block: Block) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for program, *words in commands_of(block):
        if program == "accordion" and words != ["--help"]:
            assert make_context(words)
        elif program == "make":
            assert words[0] in targets
        elif program == "python" and words[0].endswith(".py"):
            assert (ROOT / words[0]).exists()
        elif "=" in program:
            assert describe_unknown_variables([program.partition("=")[0]]) == ""


@pytest.mark.parametrize("process", ["api", "scheduler"])
def test_the_unit_file_of_the_book_starts_a_process_of_the_service(process: str) -> None:
    [block] = find_blocks("ini")
    unit = ConfigParser(interpolation=None)
    unit.read_string(block.text)
    program, *words = shlex.split(unit["Service"]["ExecStart"].replace("%i", process))
    assert Path(program).name == "accordion"
    assert make_context(words)


@pytest.mark.parametrize(
    "page", sorted({block.page for block in find_blocks("sh") if run_commands_of(block.page)})
)
def test_commands_of_a_page_succeed_in_their_order(
    page: str, accordion: Accordion, live: Live, request: pytest.FixtureRequest
) -> None:
    if page.startswith("guides/"):
        request.getfixturevalue("digits_watch")
    for words in run_commands_of(page):
        settle(live)
        said = accordion(*words)
        assert said.code == 0, f"{shlex.join(words)}: {said.err}"


@pytest.mark.parametrize(
    "block", [one for one in find_blocks("python") if one.page not in RUN_ELSEWHERE], ids=str
)
def test_a_program_of_the_book_runs_beside_the_service(
    block: Block, accordion: Accordion, live: Live, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("digits_watch")
    live.runtime.ticks_per_epoch = 1
    code = compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, {})
    if inspect.iscoroutine(result):
        asyncio.run(result)


def test_the_lines_added_in_the_difference_are_those_of_the_example() -> None:
    [block] = find_blocks("diff")
    example = (ROOT / "deploy/jobs/ray-train-guest/train_compressed.py").read_text().splitlines()
    shown = {line[1:].strip() for line in block.text.splitlines()}
    assert shown - {line.strip() for line in example} == set()


def test_every_code_block_of_start_and_guides_is_run_by_a_test() -> None:
    run_here = {"yaml", "sh", "ini", "python", "diff", "{literalinclude}", "{toctree}"}
    pages = [page for chapter in CHAPTERS for page in (BOOK / chapter).glob("*.md")]
    blocks = [block for page in pages for block in read_blocks(f"{page.parent.name}/{page.stem}")]
    left = [one for one in blocks if one.language not in run_here]
    assert [str(one) for one in left if one.page not in RUN_ELSEWHERE] == []
    assert [name for name in RUN_ELSEWHERE.values() if not (ROOT / name).exists()] == []


def test_the_body_of_a_plan_is_accepted() -> None:
    blocks = read_blocks("decisions/service/plans-are-measured-by-the-scheduler-s")
    [body] = [block for block in blocks if block.language == "json"]
    assert PlanRequest.model_validate(json.loads(body.text)).spec.workers.max == 4
