"""The walk through in service/README.md: each command is run, and prints what is written there."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.api.conftest import Live, serve_live
from tests.unit.service.conftest import Accordion, Said

ROOT = Path(__file__).parents[3]
README = ROOT / "service" / "README.md"
ADMIN = "the-admin-token-of-the-settings"
REPEATED = {"show", "queue"}
"""Commands that a reader repeats until they show what the text says."""
ANYTHING = re.escape("...")


@dataclass
class Step:
    """One command of the text."""

    who: str
    command: list[str]
    printed: list[str] = field(default_factory=list)
    """Lines that it prints among others, in this order."""

    def matches(self, said: Said) -> bool:
        lines = iter((said.out + said.err).splitlines())
        patterns = [re.escape(line).replace(ANYTHING, ".*") for line in self.printed]
        return all(any(re.search(pattern, line) for line in lines) for pattern in patterns)


def read_steps() -> list[Step]:
    _, _, text = README.read_text().partition("## A walk through as two people")
    steps: list[Step] = []
    for block in re.findall(r"```console\n(.*?)```", text.partition("\n## ")[0], re.DOTALL):
        for line in block.splitlines():
            who, is_command, command = line.partition("$ ")
            if is_command and who.isalpha():
                steps.append(Step(who, shlex.split(command)))
            else:
                steps[-1].printed.append(line)
    return steps


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Live]:
    yield from serve_live(tmp_path / "service", admin_token=ADMIN)


def test_the_walk_through_prints_what_is_written(
    alone: Accordion, team: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("ACCORDION_URL", team.url)
    tokens, made = {"operator": ADMIN}, ""
    steps = read_steps()
    assert len(steps) >= 15
    for step in steps:
        if step.command[0] == "export":
            tokens[step.who] = made
            continue
        monkeypatch.setenv("ACCORDION_TOKEN", tokens[step.who])
        words = [made if word.startswith("acc_") else word for word in step.command[1:]]
        if words[0] == "submit":
            words += ["--set", "training.epochs=2000", "--set", "workers={min: 1, max: 1}"]
        said = alone(*words)
        while words[0] in REPEATED and not step.matches(said):
            said = alone(*words)  # pytest's time limit ends it
        assert step.matches(said), f"{step.command}: {said}"
        made = said.out.strip() if words[:2] == ["token", "new"] else made
    assert os.environ["ACCORDION_TOKEN"] == made
