"""The walk through in docs/guides/team.md: each command is run as it stands there, and prints
what is written there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from accordion_client import Client
from tests.api.conftest import Live, serve_live
from tests.api.oidc_world import Provider, log_in_through, oidc_settings, run_provider
from tests.api.team import ADMIN
from tests.conftest import Require
from tests.unit.service.conftest import Accordion, Printed, Said

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "guides" / "team.md"
ADDRESS = "https://accordion.example.org"
"""Address of the service in the text."""
GROUPS = {"olga": "platform", "ada": "ml"}
"""Group of each user at the provider, which is also the user's subject there."""
REPEATED = {"show", "queue", "list"}
"""Commands that a reader repeats until they show what the text says."""
ANYTHING = re.escape("...")
ERROR = "accordion: "
"""Beginning of what a refused command prints."""
DONE, USAGE = 0, 2
pytestmark = pytest.mark.filterwarnings("ignore:get_jwt_config")  # of the provider


@dataclass
class Step:
    """One command of the text."""

    who: str
    command: list[str]
    printed: list[str] = field(default_factory=list)
    """Lines that it prints among others, in this order."""

    @property
    def code(self) -> int:
        """Its exit code."""
        return USAGE if any(line.startswith(ERROR) for line in self.printed) else DONE

    def matches(self, said: Said) -> bool:
        lines = iter((said.err + said.out).splitlines())
        patterns = [re.escape(line).replace(ANYTHING, ".*") for line in self.printed]
        is_printed = all(any(re.search(pattern, line) for line in lines) for pattern in patterns)
        return said.code == self.code and is_printed


def read_steps() -> list[Step]:
    _, _, text = PAGE.read_text().partition("## A walk through as two people")
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
def provider(require: Require) -> Iterator[Provider]:
    with run_provider(require) as provider:
        for name, group in GROUPS.items():
            provider.set_user(name, preferred_username=name, groups=[group])
        yield provider


@pytest.fixture
def team(tmp_path: Path, provider: Provider) -> Iterator[Live]:
    yield from serve_live(tmp_path / "service", **oidc_settings(provider.issuer))


@pytest.fixture
def run_as(
    alone: Accordion, team: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Step], Said]:
    """Runs a command in the home directory and with the variables of its user."""
    urls: dict[str, str] = {}

    def run(step: Step) -> Said:
        program, *words = step.command
        if program == "export":
            [urls[step.who]] = [word.removeprefix("ACCORDION_URL=") for word in words]
            return Said(0, "", "")
        assert (program, urls[step.who]) == ("accordion", ADDRESS)
        monkeypatch.setenv("ACCORDION_URL", team.url)
        monkeypatch.setenv("ACCORDION_HOME", str(tmp_path / step.who))
        return alone(*words)

    monkeypatch.chdir(ROOT)
    return run


def statuses(team: Live) -> dict[str, str]:
    with Client(team.url, ADMIN) as client:
        return {job.name: job.status for job in client.jobs().items}


def test_the_walk_through_prints_what_is_written(
    run_as: Callable[[Step], Said], provider: Provider, printed: Printed, team: Live
) -> None:
    steps = read_steps()
    assert {step.who for step in steps} == GROUPS.keys()
    for step in steps:
        printed(log_in_through(provider, step.who))
        said = run_as(step)
        while step.command[1] in REPEATED and said.code == DONE and not step.matches(said):
            said = run_as(step)  # pytest's time limit ends it
        assert step.matches(said), f"{step.who}: {step.command}: {said}"
    assert statuses(team) == dict.fromkeys(("first", "second", "third"), "CANCELLED")
