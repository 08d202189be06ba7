"""`--json`: every command that prints data has it, and then prints JSON and nothing else."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accordion_client import Client
from accordion_client.commands.cli_app import app
from accordion_service.settings.home import Home, Running
from accordion_service.store.migrations import upgrade
from tests.api.conftest import Live, serve_live
from tests.api.webhook_receiver import LOOPBACK
from tests.unit.service.conftest import Accordion

NO_DATA = {
    "api": "runs until it is stopped",
    "demo": "shows a job live; its --json names a file",
    "down": "stops what `up` runs",
    "scheduler": "runs until it is stopped",
    "mcp": "speaks to an agent until it is stopped",
    "schema": "prints a JSON Schema",
    "up": "runs until it is stopped",
}
"""Commands that print no data, and why."""
STREAMS = {"logs", "watch"}
"""Commands that print one document a line, as `submit --follow` and `clone --follow` do."""
MAY_FAIL = {"doctor", "watch"}
"""Commands whose exit code tells what they found out."""
CALLS = """
submit {spec} --set training.epochs=2000
list
whoami
audit
login
logout
doctor
settings
show {submit[id]}
why {submit[id]}
change {submit[id]} --label team:vision
override {submit[id]} --level low
hand-back {submit[id]}
resize {submit[id]} 1 2
pause {submit[id]}
resume {submit[id]}
cancel {submit[id]}
watch {submit[id]}
retry {submit[id]}
cancel --label team:vision
watch {submit[id]}
clone {submit[id]} --set training.epochs=2
watch {clone[id]}
logs {clone[id]}
logs {clone[id]} --follow
archive {clone[id]}
unarchive {clone[id]}
archive --label team:vision
download {clone[id]} --to {model}
export {clone[id]} --to {rows}
report {clone[id]} --to {report}
compare {submit[id]} {clone[id]}
report {submit[id]} {clone[id]} --to {report[file]} --force
delete {clone[id]} --yes
queue
plan {spec} --workers 2 --link 1Gbit --cluster
check {spec}
examples {examples}
simulate {spec} --workers 1 --set training.epochs=1 --out {runs}
user add ada
user change ada --role viewer
user list
token new --user ada
token list --all
token revoke {token_new[id]}
quota set --user ada --jobs 1
quota list
quota remove --user ada
secret set hf --file {spec}
secret list
secret remove hf
webhook add http://127.0.0.1:1/ --name ci
webhook test ci
webhook list
webhook deliveries ci
webhook send-again ci {webhook_test[id]}
webhook rotate-secret ci
webhook remove ci
nodes
node cordon 10.0.0.1 --reason test
node restore 10.0.0.1
"""
"""Calls against a service; {command[field]} stands for a field of what an earlier one printed."""
LOCAL_CALLS = """
env
backup {backup}
restore {backup}
move-database {target}
"""
"""Calls that use the home directory."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    yield from serve_live(tmp_path_factory.mktemp("service"), webhook_networks=LOOPBACK)


def list_commands(group: Any, *names: str) -> Iterator[tuple[str, Any]]:
    """Yield every command of the command line with its name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from list_commands(command, *names, name)
        else:
            yield " ".join((*names, name)), command


COMMANDS = dict(list_commands(app))


def name_of(line: str) -> str:
    """Return the name of the command that a line calls."""
    words = line.split()
    return next(name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS)


def call_each(accordion: Accordion, lines: str, files: dict[str, Any]) -> dict[str, Any]:
    """Call commands with --json, check what they print, and return it by command."""
    answers = dict(files)
    for line in lines.split("\n")[1:-1]:
        said = accordion(*shlex.split(line.format_map(answers)), "--json")
        name = name_of(line)
        assert said.code == 0 or (name in MAY_FAIL and said.code == 1), (line, said)
        documents = said.out.splitlines() if name in STREAMS else [said.out]
        printed = [json.loads(document) for document in documents]
        assert printed, line
        answers[name.replace(" ", "_")] = printed[0]
    return answers


def test_every_command_that_prints_data_is_called_below() -> None:
    called = {name_of(line) for line in (CALLS + LOCAL_CALLS).split("\n") if line}
    assert called | NO_DATA.keys() == COMMANDS.keys()
    assert called.isdisjoint(NO_DATA)


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - NO_DATA.keys()))
def test_a_command_that_prints_data_has_the_option(name: str) -> None:
    [option] = [one for one in COMMANDS[name].params if "--json" in one.opts]
    assert option.is_flag


def test_commands_of_a_service_print_one_document(
    accordion: Accordion, spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download_model(self: Client, job_id: str, file: Path, **_: object) -> str:
        del self, job_id
        file.write_bytes(b"tensors")
        return "g1"

    monkeypatch.setattr(Client, "download_model", download_model)
    model = tmp_path / "model.safetensors"
    report, runs = tmp_path / "report.html", tmp_path / "runs"
    files = {"spec": spec, "model": model, "report": report, "runs": runs}
    files |= {"examples": tmp_path / "examples", "rows": tmp_path / "rows"}
    printed = call_each(accordion, CALLS, files)
    assert printed["download"] == {
        "file": str(model),
        "format": "safetensors",
        "bytes": 7,
        "checkpoint": "g1",
    }
    assert printed["login"]["url"].startswith("http://127.0.0.1:")


def test_commands_of_a_home_print_one_document(
    alone: Accordion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home")
    home.make()
    upgrade(f"sqlite:///{home.path / 'accordion.db'}")
    files = {"backup": tmp_path / "b.tar.gz", "target": f"sqlite:///{tmp_path / 'target.db'}"}
    first, second, third, fourth = LOCAL_CALLS.split("\n")[1:-1]
    with home.locked():
        urls = {"url": "http://127.0.0.1:9", "ray_address": "127.0.0.1:8", "ray_dir": "/tmp/none"}
        home.write(Running(pid=7, pids={}, **urls))
        variables = call_each(alone, f"\n{first}\n", files)["env"]
    assert (variables["RAY_ADDRESS"], variables["RAY_AUTH_TOKEN"]) == ("127.0.0.1:8", None)
    call_each(alone, f"\n{second}\n{fourth}\n", files)
    monkeypatch.setenv("ACCORDION_HOME", str(tmp_path / "new"))
    call_each(alone, f"\n{third}\n", files)


def test_following_a_new_job_prints_a_document_a_line(accordion: Accordion, spec: Path) -> None:
    said = accordion("submit", spec, "--follow", "--json")
    first, *events = map(json.loads, said.out.splitlines())
    assert first["status"] == "QUEUED"
    assert events[-1]["type"] == "end"
