"""Commands whose pipes break."""

from __future__ import annotations

import errno
import io
import os
import sys

import pytest
import typer

from accordion_client.commands import cli_app, processes
from accordion_client.commands.cli_support import create_console, create_table
from tests.api.conftest import Live
from tests.programs import run_program


@pytest.fixture
def accordion(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command line whose only command meets a broken pipe after it has written a line."""
    commands = typer.Typer()

    @commands.command(cls=cli_app.Command)
    def write() -> None:
        sys.stdout.write("a line\n")
        raise BrokenPipeError(errno.EPIPE, "the database is gone")

    monkeypatch.setattr(cli_app, "app", commands)


def test_a_table_in_a_pipe_does_not_fill_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    table = create_table("NAME", "WHY")
    table.add_row("a", "a long reason")
    table.add_row("b", "short")
    create_console().print(table)
    assert capsys.readouterr().out.splitlines() == [
        "NAME  WHY",
        "a     a long reason",
        "b     short",
    ]


@pytest.mark.usefixtures("accordion")
def test_a_reader_of_the_output_may_leave_early(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert cli_app.run_command([]) == cli_app.DONE
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("buffering", [1, -1])
def test_a_reader_of_a_table_may_leave_early(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], buffering: int
) -> None:
    commands = typer.Typer()
    print_line = commands.command(cls=cli_app.Command)
    print_line(lambda: create_console().print("a line"))
    monkeypatch.setattr(cli_app, "app", commands)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering) as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert cli_app.run_command([]) == cli_app.DONE
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("accordion")
def test_the_end_of_another_connection_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli_app.run_command([]) == cli_app.FAILED
    assert "the database is gone" in capsys.readouterr().err


def test_a_reader_that_leaves_early_is_no_error(service: Live) -> None:
    program = f"{sys.executable} -m accordion_client.commands.main"
    command = f"{program} list --json --url {service.url} | head -c 1"
    done = run_program(["bash", "-o", "pipefail", "-c", command])
    assert (done.returncode, done.stderr) == (0, "")


def test_the_service_goes_on_where_its_lines_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    went_on = []
    monkeypatch.setattr(
        "accordion_client.machine.up.up", lambda _, say: went_on.append(say("a line"))
    )
    with os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb", buffering=0) as full:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(full, write_through=True))
        processes.up()
    assert went_on == [None]


def test_a_row_of_a_table_is_one_line_in_a_pipe_however_long_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = create_table("ID", "WHY")
    table.add_row("1", "no worker could start, because " * 40)
    create_console().print(table)
    assert len(capsys.readouterr().out.splitlines()) == 2
