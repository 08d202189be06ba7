"""Completion in the shell, through the protocol of each shell and in a real bash."""

from __future__ import annotations

import os
import shlex
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from accordion_client import Client
from accordion_service.schemas.overrides import OverrideRequest
from tests.api.conftest import Live, serve_live
from tests.api.webhook_receiver import LOOPBACK
from tests.programs import run_program
from tests.unit.service.conftest import Accordion

PATIENT = {"ACCORDION_COMPLETION_TIMEOUT_S": "60"}
"""Setting for a busy machine."""

SPEC = {
    "task": {"name": "digits-mlp"},
    "training": {"epochs": 2000},
    "labels": {"team": "vision"},
    "name": "digits-long",
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    yield from serve_live(tmp_path_factory.mktemp("service"), webhook_networks=LOOPBACK)


@pytest.fixture(scope="module")
def known(service: Live) -> Iterator[dict[str, str]]:
    """Things of the service that can be completed, by the name of their placeholder."""
    with Client(service.url) as client:
        ended = client.submit({**SPEC, "training": {"epochs": 1}, "name": "digits-short"})
        list(client.events(ended.id))
        job = client.submit(SPEC)
        request = OverrideRequest.model_validate({"target": "compression", "level": "low"})
        client.override(job.id, request)
        client.add_user("ada")
        token = client.add_token("laptop")
        client.set_secret("hf-token", "secret")
        client.add_webhook("http://127.0.0.1:1/", name="ci")
        delivery = client.test_webhook("ci")
        checkpoint = client.checkpoints(ended.id).items[-1].name
        names = {"job": job.id, "ended": ended.id, "token": token.id, "delivery": delivery.id}
        yield {**names, "checkpoint": checkpoint}
        client.cancel(job.id)


def protocol(line: str, shell: str = "bash") -> dict[str, str]:
    """Return the variables in which a shell passes a line to complete."""
    return {
        "_ACCORDION_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }


def run(*arguments: str, **environment: str) -> str:
    """Run the command line in a process of its own, which prints no error; return its output."""
    done = run_program(
        [sys.executable, "-m", "accordion_client.commands.main", *arguments],
        env={**os.environ, **environment},
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


WORDS = [
    ("accordion sub", ["submit"]),
    ("accordion quota se", ["set"]),
    ("accordion show dig", ["digits-long", "digits-short"]),
    ("accordion pause dig", ["digits-long"]),
    ("accordion delete dig", ["digits-short"]),
    ("accordion retry dig", []),
    ("accordion show {job:.20}", ["{job}"]),
    ("accordion audit --job digits-l", ["digits-long"]),
    ("accordion hand-back digits-long ", ["1"]),
    ("accordion download digits-short --checkpoint b", ["best"]),
    ("accordion download digits-short --checkpoint {checkpoint:.3}", ["{checkpoint}"]),
    ("accordion list --status RUN", ["RUNNING"]),
    ("accordion list --status run", ["running"]),
    ("accordion list --label te", ["team:vision"]),
    ("accordion cancel --label team", ["team:vision"]),
    ("accordion quota set --label team", ["team:vision"]),
    ("accordion override x --level l", ["low"]),
    ("accordion override x --local-steps h", ["high"]),
    ("accordion override x --apply-at next_e", ["next_epoch"]),
    ("accordion user change a", ["ada", "admin"]),
    ("accordion user add eve --role op", ["operator"]),
    ("accordion token new --scope read", ["read", "read:all"]),
    ("accordion token revoke {token:.4}", ["{token}"]),
    ("accordion node cordon 10.", ["10.0.0.1"]),
    ("accordion secret remove h", ["hf-token"]),
    ("accordion webhook add http://a --on succ", ["succeeded"]),
    ("accordion webhook remove c", ["ci"]),
    ("accordion webhook deliveries ci --state de", ["delivered", "dead"]),
    ("accordion webhook send-again ci {delivery:.8}", ["{delivery}"]),
]


@pytest.mark.parametrize(("line", "words"), WORDS)
def test_a_word_is_completed(
    accordion: Accordion,
    known: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    *,
    line: str,
    words: list[str],
) -> None:
    for name, value in {**PATIENT, **protocol(line.format_map(known))}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        accordion()
    said = capfd.readouterr()
    assert (ended.value.code, said.err) == (0, "")
    assert sorted(said.out.split()) == sorted(word.format_map(known) for word in words)


@pytest.mark.parametrize("line", ["--profile lab show dig", "show --profile lab dig"])
def test_jobs_of_the_chosen_profile_are_completed(
    service: Live, known: dict[str, str], tmp_path: Path, line: str
) -> None:
    (tmp_path / "accordion").mkdir()
    text = f'[profiles.lab]\nurl = "{service.url}"\n'
    (tmp_path / "accordion/config.toml").write_text(text)
    places = {"XDG_CONFIG_HOME": str(tmp_path), "ACCORDION_HOME": str(tmp_path / "home")}
    words = run(**protocol(f"accordion {line}"), **places, **PATIENT).split()
    assert words == ["digits-long", "digits-short"]


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("shell", "offered"),
    [
        ("bash", "digits-short\n"),
        ("fish", "digits-short\tSUCCEEDED\n"),
        ("zsh", """_arguments '*: :(("digits-short":"SUCCEEDED"))'\n"""),
    ],
)
def test_a_shell_gets_words_and_what_they_stand_for(
    service: Live, tmp_path: Path, shell: str, offered: str
) -> None:
    asked = protocol("accordion show digits-s", shell)
    home = {"ACCORDION_HOME": str(tmp_path), "ACCORDION_URL": service.url}
    assert run(**PATIENT, **home, **asked) == offered


def test_the_url_on_the_line_is_asked(service: Live, known: dict[str, str], tmp_path: Path) -> None:
    line = f"accordion show --url {service.url} {known['job']:.20}"
    elsewhere = {"ACCORDION_HOME": str(tmp_path), "ACCORDION_URL": "http://127.0.0.1:1"}
    assert run(**PATIENT, **elsewhere, **protocol(line)) == f"{known['job']}\n"


@pytest.mark.parametrize(
    "setting",
    [
        {"ACCORDION_URL": "http://127.0.0.1:1"},
        {"ACCORDION_URL": "nonsense"},
        {"ACCORDION_PORT": "many"},
    ],
)
def test_without_a_service_nothing_is_completed_in_silence(
    tmp_path: Path, setting: dict[str, str]
) -> None:
    asked = protocol("accordion show dig")
    assert run(**PATIENT, **asked, **setting, ACCORDION_HOME=str(tmp_path)) == "\n"


class Trickle(socketserver.BaseRequestHandler):
    """A service whose response never ends."""

    request: socket.socket

    def handle(self) -> None:
        self.request.sendall(b"HTTP/1.1 200 OK\r\n")
        with suppress(OSError):
            while True:
                self.request.sendall(b"x-more: 1\r\n")
                time.sleep(0.1)


def test_a_response_that_never_ends_is_not_waited_for(tmp_path: Path) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Trickle) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        asked = protocol("accordion show dig")
        assert run(**asked, ACCORDION_URL=url, ACCORDION_HOME=str(tmp_path)) == "\n"
        server.shutdown()


def run_bash(script: str, home: Path, url: str) -> list[str]:
    """Run lines in a bash whose `accordion` is this one."""
    folder = home / "bin"
    folder.mkdir()
    program = folder / "accordion"
    program.write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m accordion_client.commands.main "$@"\n'
    )
    program.chmod(0o755)
    environment = {**os.environ, **PATIENT, "HOME": str(home), "ACCORDION_HOME": str(home)}
    done = run_program(
        ["bash", "--norc", "-e", "-c", script],
        env={**environment, "PATH": f"{folder}:{os.environ['PATH']}", "ACCORDION_URL": url},
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout.splitlines()


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    "install",
    [
        'eval "$(accordion --show-completion)"',
        "accordion --install-completion > /dev/null; source ~/.bashrc",
    ],
)
def test_bash_completes_after_its_installation(service: Live, tmp_path: Path, install: str) -> None:
    press_tab = (
        "COMP_WORDS=(accordion pause dig); COMP_CWORD=2; _accordion_completion accordion;"
        ' printf "%s\\n" "${COMPREPLY[@]}"; complete -p accordion'
    )
    offered = run_bash(f"{install}\n{press_tab}", tmp_path, service.url)
    assert offered == ["digits-long", "complete -o default -F _accordion_completion accordion"]


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("bash", "complete -o default -F _accordion_completion accordion"),
        ("fish", "complete --command accordion --no-files"),
        ("zsh", "#compdef accordion"),
    ],
)
def test_the_script_of_each_shell_is_shown(tmp_path: Path, shell: str, line: str) -> None:
    chosen = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    assert line in run("--show-completion", shell, HOME=str(tmp_path), **chosen)
