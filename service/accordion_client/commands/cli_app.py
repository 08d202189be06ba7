"""The command line: `run_command` runs one of the commands of `command_table.py`."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections import UserDict
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_install_completion_arguments

from accordion_client.commands.command_table import COMMANDS, CommandGroup
from accordion_client.commands.missing_packages import missing_package
from accordion_client.commands.profile_option import (
    ProfileOption,
    check_profile,
    profile_option,
)

_DISTRIBUTION = "accordion-train"
DONE, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3
INTERRUPTED = 128 + int(signal.SIGINT)


class Command(TyperCommand):
    """A command whose help shows flags without `<bool>`, since no value follows them, and which
    succeeds if the reader of its output has closed the pipe.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, without the types of flags in the help; commands that ask a
        service have one more.
        """
        found = super().get_params(ctx)
        if any(one.name == "url" for one in found):
            found = [*found, profile_option()]
        return _hide_flag_types(found)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a reader of the output that has left is no error."""
        check_profile(ctx)
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # Typer would take it for the end of standard output in each case, and fail silently.
            if not _is_output_closed():
                raise ConnectionError(str(error)) from error
            # Python would report it again when it closes standard output.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return DONE


def _is_output_closed() -> bool:
    """Return whether it is standard output whose reader is gone, and not another connection."""
    poll = select.poll()
    try:
        poll.register(sys.stdout, 0)
    except OSError:  # it is no file, but an object of a caller
        return False
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


class _Commands(UserDict[str, Any]):
    """Commands by name. Each is imported, and its signature read, when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if isinstance(found, str | CommandGroup):
            found = self.data[name] = _build_command(name, found)
        return found


class _Group(TyperGroup):
    """The commands together; their flags are shown in the same way."""

    def __init__(
        self,
        places: Mapping[str, str | CommandGroup],
        hints: Mapping[str, str] | None = None,
        **given: Any,
    ) -> None:
        super().__init__(no_args_is_help=True, **given)
        self.commands = _Commands(places)
        self._hints = hints or {}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; of a word that is none, say what to type in its place."""
        hint = self._hints.get(args[0])
        if hint and args[0] not in self.commands:
            ctx.fail(f"No such command {args[0]!r}. Type: {hint}")
        return super().resolve_command(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        return _hide_flag_types(super().get_params(ctx))


def _build_command(name: str, found: str | CommandGroup) -> Any:
    if isinstance(found, CommandGroup):
        return _Group(found.places, found.hints, name=name, help=found.help)
    module, _, function = found.partition(":")
    # Typer builds an application of one command as that command.
    one = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    one.command(name, cls=Command)(
        getattr(import_module(f"accordion_client.commands.{module}"), function)
    )
    return get_command(one)


def _hide_flag_types(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


def _print_version(context: typer.Context, given: bool) -> None:
    """Print the version of the package and end."""
    if not given or context.resilient_parsing:  # the shell asks for completions
        return
    from importlib.metadata import PackageNotFoundError, version

    from accordion_service.errors import StartError

    try:
        typer.echo(f"accordion {version(_DISTRIBUTION)}")
    except PackageNotFoundError as error:
        raise StartError(
            f"{_DISTRIBUTION} is not installed; pip install {_DISTRIBUTION}"
        ) from error
    raise typer.Exit


def _list_options() -> list[Any]:
    """Return the options of `accordion` itself; typer builds them from a signature."""

    def take_options(
        *,
        _version: Annotated[
            bool,
            typer.Option(
                "--version",
                help="Show the version and exit.",
                callback=_print_version,
                is_eager=True,
                expose_value=False,
            ),
        ] = False,
        _profile: ProfileOption = "",
    ) -> None: ...

    one = typer.Typer(add_completion=False)
    one.callback()(take_options)
    return [*get_command(one).params, *get_install_completion_arguments()]


app = _Group(
    COMMANDS,
    name="accordion",
    params=_list_options(),
    help="Elastic training on Ray with gradient compression that adapts while the job runs.",
    epilog=(
        "Exit codes: 0 done, 1 the job or a check failed, 2 usage, 3 the service is unreachable."
    ),
)


def run_command(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; errors are printed as one line on standard error."""
    try:
        result = app(list(arguments), standalone_mode=False, prog_name="accordion")
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - users see one line, never a traceback
        return _print_error(error)
    return result if isinstance(result, int) else DONE


def _print_error(error: Exception) -> int:
    """Print the error and return its exit code."""
    message, code = _describe_error(error)
    if message:
        from accordion_workers.common.plain_text import clean_for_terminal

        sys.stderr.write(f"accordion: {clean_for_terminal(message)}\n")
    return code


def _describe_error(error: Exception) -> tuple[str, int]:
    from accordion_client import ClientError, ServiceFailed, Unreachable
    from accordion_service.errors import RuntimeUnavailable, ServiceError, StartError

    match error:
        case typer.Exit():
            return "", error.exit_code
        case typer.Abort():
            return "", INTERRUPTED
        case Unreachable() | ServiceFailed() | RuntimeUnavailable():
            return str(error), UNREACHABLE
        case ClientError() | StartError() | ServiceError():
            return str(error), USAGE
        case ModuleNotFoundError() if package := missing_package(error):
            return (
                f"this command needs the package {package!r}, which only the service needs besides;"
                f" pip install '{_DISTRIBUTION}[service]'"
            ), USAGE
    return _describe_usage_error(error)


def _describe_usage_error(error: Exception) -> tuple[str, int]:
    """Show a usage error of typer; anything else is a bug of the service."""
    show, code = getattr(error, "show", None), getattr(error, "exit_code", None)
    if callable(show) and isinstance(code, int):
        show()
        return "", code
    return (
        (
            f"unexpected error ({type(error).__name__}: {error}); 'accordion doctor'"
            " may find the cause"
        ),
        FAILED,
    )
