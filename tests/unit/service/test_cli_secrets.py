"""`accordion secret`."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from accordion_client import Client
from tests.api.conftest import Live, serve_live
from tests.unit.service.conftest import Accordion, Said


@pytest.fixture(autouse=True)
def _without_secrets(service: Live) -> Iterator[None]:
    """No secret outlives a test."""
    yield
    with Client(service.url) as client:
        for secret in client.secrets().items:
            client.remove_secret(secret.name, force=True)


def test_a_secret_is_set_listed_and_removed(
    accordion: Accordion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hf_abcdef\n"))
    said = accordion("secret", "set", "hf-token")
    assert said.out == "secret hf-token is set; jobs refer to it as {secret: hf-token}\n"
    head, row = (line.split() for line in accordion("secret", "list").out.splitlines())
    assert (head, row[0], row[-1]) == (["NAME", "SET", "READABLE"], "hf-token", "yes")
    [listed] = accordion("secret", "list", "--json").json()["items"]
    assert listed.keys() == {"name", "set_at", "readable"}
    assert accordion("secret", "remove", "hf-token").out == "removed secret hf-token\n"
    assert accordion("secret", "list", "--json").json() == {"items": []}


@pytest.mark.parametrize(
    ("text", "value"), [("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a\r\nb", "a\r\nb")]
)
def test_a_value_in_a_file_loses_one_line_break(
    accordion: Accordion, service: Live, spec: Path, tmp_path: Path, text: str, value: str
) -> None:
    file = tmp_path / "value"
    file.write_bytes(text.encode())
    assert accordion("secret", "set", "from-file", "--file", file).code == 0
    options = ("--set", "env.VALUE.secret=from-file", "--set", "env.NUMBER=3", "--json")
    job = accordion("submit", spec, *options).json()
    while job["id"] not in service.runtime.jobs:
        pass  # pytest's time limit ends it
    assert service.runtime.jobs[job["id"]].launch.env == {"VALUE": value, "NUMBER": "3"}


def test_a_secret_that_a_job_uses_is_removed_only_by_force(
    accordion: Accordion, spec: Path, tmp_path: Path
) -> None:
    file = tmp_path / "value"
    file.write_text("x")
    accordion("secret", "set", "in-use", "--file", file)
    job = accordion("submit", spec, "--set", "env.VALUE.secret=in-use", "--json").json()
    refused = accordion("secret", "remove", "in-use")
    assert (refused.code, refused.out) == (2, "")
    assert job["id"] in refused.err
    forced = accordion("secret", "remove", "in-use", "--force")
    assert forced.out == "removed secret in-use\n"


@pytest.fixture
def alone_live(tmp_path: Path) -> Iterator[Live]:
    """A service whose home directory is known."""
    (tmp_path / "live").mkdir()
    yield from serve_live(tmp_path / "live")


def test_secrets_of_a_lost_key_are_marked_and_given_up_only_by_force(
    alone: Accordion, alone_live: Live, tmp_path: Path
) -> None:
    def call(*words: object) -> Said:
        return alone("secret", *words, "--url", alone_live.url)

    file = tmp_path / "value"
    file.write_text("x")
    for name in ("a", "b"):
        call("set", name, "--file", file)
    (tmp_path / "live" / "secrets.key").unlink()
    refused = call("set", "a", "--file", file)
    assert (refused.code, refused.out) == (2, "")
    assert "an admin makes a new one with 'accordion secret set NAME --force'" in refused.err
    assert call("set", "a", "--file", file, "--force").code == 0
    [readable, lost] = call("list").out.splitlines()[1:]
    assert readable.rstrip().endswith("  yes")
    assert "  no: its key was lost or replaced; set the secret again, or put the key back" in lost


@pytest.mark.parametrize(
    ("options", "detail"),
    [
        (["set", "empty", "--file", "/dev/null"], "the value is empty"),
        (["set", "gone", "--file", "/no/file"], "/no/file cannot be read (No such file"),
        (["remove", "a/b"], "there is no route /api/v1/secrets/a/b"),
        (["remove", "nothing"], "user 'admin' has no secret 'nothing'"),
    ],
)
def test_a_wrong_secret_is_refused(accordion: Accordion, options: list[str], detail: str) -> None:
    said = accordion("secret", *options)
    assert said.code == 2
    assert detail in " ".join(said.err.replace("│", " ").split())
