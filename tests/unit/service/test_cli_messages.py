"""What the command line says of itself, and of values that it does not take."""

from __future__ import annotations

import io
import json
import re
from importlib.metadata import version
from pathlib import Path

import pytest
from rich.text import Text

from accordion_client.commands.clean_console import CleanConsole
from accordion_client.commands.cli_support import (
    create_console,
    create_table,
    print_json,
    print_line,
)
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


HOSTILE = "a\x1b]0;title\x07\x1b[2J\x9b31m\x7f\rb"


def test_texts_of_other_users_move_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    table = create_table(HOSTILE)
    table.add_row(HOSTILE)
    for text in (table, HOSTILE, Text(HOSTILE)):
        create_console().print(text)
    print_line(HOSTILE)
    print_line(HOSTILE, err=True)
    print_json({HOSTILE: HOSTILE})
    said = capsys.readouterr()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", said.out + said.err)
    assert "]0;title" in said.err


def test_json_keeps_what_it_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"message": HOSTILE})
    assert json.loads(capsys.readouterr().out) == {"message": HOSTILE}


def test_own_colors_stay_on_a_terminal() -> None:
    out = CleanConsole(file=io.StringIO(), force_terminal=True, color_system="standard")
    out.print(Text(HOSTILE, style="red"))
    assert out.file.getvalue().startswith("\x1b[31ma\ufffd]0;")  # type: ignore[attr-defined]


def test_an_error_of_the_service_moves_no_cursor(
    accordion: Accordion,
) -> None:
    said = accordion("show", "\x1b[2J")
    assert (said.code, "\x1b" in said.err) == (2, False)
