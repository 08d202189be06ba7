"""What the command line says of itself, and of values that it does not take."""

from __future__ import annotations

import io
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.unit.service.conftest import Accordion


def test_the_version_is_that_of_the_package(alone: Accordion) -> None:
    said = alone("--version")
    assert (said.code, said.out) == (0, f"accordion {version('accordion-train')}\n")
    assert "--version" in alone("--help").out


WRONG_NAMES = [
    (("secret", "set", "bad name"), "'bad name' is not the name of a secret; use letters, digits"),
    (("secret", "remove", "a-"), "'a-' is not the name of a secret"),
    (("list", "--id", "digits"), "'digits' is not the start of a job ID, which has digits, the"),
    (("token", "revoke", "No"), "neither the ID of a token nor a whole token"),
    (("webhook", "remove", "No"), "'No' is not the name of a webhook; use lower-case letters"),
]


@pytest.mark.parametrize(("arguments", "sentence"), WRONG_NAMES)
def test_a_wrong_name_is_refused_in_words(
    accordion: Accordion,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    sentence: str,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("value"))
    said = accordion(*arguments)
    assert said.code == 2
    assert sentence in said.err
    assert "pattern" not in said.err


def test_an_unknown_level_is_answered_with_the_levels_as_the_command_takes_them(
    accordion: Accordion, running: str
) -> None:
    said = accordion("override", running, "--level", "lowest")
    assert said.code == 2
    assert "level: unknown level 'lowest'; known are low (0), high (1), or options" in said.err
    option = re.search(r"options such as (\S+)", said.err)
    assert option is not None
    assert accordion("override", running, "--level", option[1]).code == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("user", "disable", "ada"), "Type: accordion user change NAME --disable"),
        (("user", "delete", "ada"), "Type: accordion user change NAME --disable; users are not"),
        (("token", "create"), "Type: accordion token new --label TEXT"),
        (("user", "lst"), "Did you mean 'list'?"),
        (("user", "change", "ada"), "nothing to change; give --role, --disable or --enable"),
    ],
)
def test_what_is_called_otherwise_is_answered_with_what_to_type(
    alone: Accordion, arguments: tuple[str, ...], sentence: str
) -> None:
    said = alone(*arguments)
    assert said.code == 2
    assert sentence in " ".join(said.err.replace("│", " ").split())


def test_show_tells_the_large_batch_and_no_levels_of_an_uncompressed_job(
    accordion: Accordion, spec: Path
) -> None:
    settings = ("--set", "compression.method=none", "--set", "batch.high=256")
    job_id = accordion("submit", spec, *settings, "--json").json()["id"]
    shown = accordion("show", job_id).out
    assert "none, policy two_level" in shown
    assert "batch      grows to 256 samples a step" in shown
