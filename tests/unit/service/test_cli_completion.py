"""Completion in the shell, through the protocol of each shell and in a real bash."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from service.api.override_schemas import OverrideRequest
from service.client import Client
from service.client.stream import Waiter
from tests.api.conftest import Live, serve_live
from tests.api.webhook_receiver import LOOPBACK

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


def complete(line: str, url: str, home: Path, *, shell: str = "bash") -> list[str]:
    """Return the words that a shell would offer at the end of a line."""
    words = line.split(" ")
    done = subprocess.run(
        [sys.executable, "-m", "service.cli"],
        env={
            **os.environ,
            "ACCORDION_HOME": str(home),
            "ACCORDION_URL": url,
            "_ACCORDION_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
            "_TYPER_COMPLETE_ARGS": line,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout.splitlines()


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
    ("accordion override x --apply-at next_e", ["next_epoch"]),
    ("accordion user change a", ["ada", "admin"]),
    ("accordion user add eve --role op", ["operator"]),
    ("accordion token new --scope read", ["read", "read:all"]),
    ("accordion token revoke {token:.4}", ["{token}"]),
    ("accordion secret remove h", ["hf-token"]),
    ("accordion webhook add http://a --on succ", ["succeeded"]),
    ("accordion webhook remove c", ["ci"]),
    ("accordion webhook deliveries ci --state de", ["delivered", "dead"]),
    ("accordion webhook send-again ci {delivery:.8}", ["{delivery}"]),
]


@pytest.mark.parametrize(("line", "words"), WORDS)
def test_a_word_is_completed(
    service: Live, known: dict[str, str], tmp_path: Path, line: str, words: list[str]
) -> None:
    offered = complete(line.format_map(known), service.url, tmp_path)
    assert sorted(filter(None, offered)) == sorted(word.format_map(known) for word in words)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("shell", "offered"),
    [("zsh", '"digits-long":"RUNNING"'), ("fish", "digits-long\tRUNNING")],
)
def test_other_shells_show_what_a_word_stands_for(
    service: Live, tmp_path: Path, shell: str, offered: str
) -> None:
    with Client(service.url, waiter=Waiter()) as client:
        job = client.find("digits-long")
        next(event for event in client.events(job.id) if getattr(event, "type", "") == "epoch")
    assert offered in "\n".join(
        complete("accordion show digits-l", service.url, tmp_path, shell=shell)
    )


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "http://example.org:x"])
def test_a_service_that_is_away_completes_nothing_in_silence(tmp_path: Path, url: str) -> None:
    assert complete("accordion show dig", url, tmp_path) == [""]


def test_a_wrong_setting_completes_nothing_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCORDION_PORT", "many")
    assert complete("accordion show dig", "", tmp_path) == [""]


def test_the_url_on_the_line_is_asked(service: Live, known: dict[str, str], tmp_path: Path) -> None:
    line = f"accordion show --url {service.url} {known['job']:.20}"
    assert complete(line, "http://127.0.0.1:1", tmp_path) == [known["job"]]


def test_a_service_that_never_ends_its_response_is_not_waited_for(tmp_path: Path) -> None:
    ended = threading.Event()

    def trickle(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            while not ended.wait(0.1):
                connection.sendall(b"x-more: 1\r\n")

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=trickle, args=(listener,))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert complete("accordion show dig", url, tmp_path) == [""]
        ended.set()
        thread.join()


def run_bash(script: str, home: Path, url: str) -> list[str]:
    """Run lines in a bash whose `accordion` is this one."""
    folder = home / "bin"
    folder.mkdir()
    program = folder / "accordion"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m service.cli "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "HOME": str(home), "ACCORDION_HOME": str(home)}
    done = subprocess.run(
        ["bash", "--norc", "-e", "-c", script],
        env={**environment, "PATH": f"{folder}:{os.environ['PATH']}", "ACCORDION_URL": url},
        capture_output=True,
        text=True,
        check=False,
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
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", "--show-completion", shell],
        env={**environment, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert line in done.stdout
