"""The table of commands; `run_command` returns the exit code. Commands import slow modules later."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

import typer

from service.commands import doctor, history, jobs, processes
from service.commands import job_control as control
from service.commands import watch as live

DONE, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3
INTERRUPTED = 128 + int(signal.SIGINT)

app = typer.Typer(
    name="accordion",
    help="Elastic training on Ray with gradient compression that adapts while the job runs.",
    epilog=(
        "Exit codes: 0 done, 1 the job or a check failed, 2 usage, 3 the service is unreachable."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("up")(processes.up)
app.command("demo")(processes.demo)
app.command("env")(processes.env)
app.command("submit")(jobs.submit)
app.command("list")(jobs.list_jobs)
app.command("show")(history.show)
app.command("watch")(live.watch)
app.command("logs")(live.logs)
app.command("override")(control.override)
app.command("hand-back")(control.hand_back)
app.command("resize")(control.resize)
app.command("pause")(control.pause)
app.command("resume")(control.resume)
app.command("cancel")(control.cancel)
app.command("doctor")(doctor.doctor)
app.command("login")(processes.login)
app.command("api")(processes.api)
app.command("scheduler")(processes.scheduler)


def run_command(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; errors are printed as one line on standard error."""
    try:
        result = app(list(arguments), standalone_mode=False, prog_name="accordion")
    except BrokenPipeError:
        # The reader closed the pipe; Python would report that again when it closes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - users see one line, never a traceback
        return _print_error(error)
    return result if isinstance(result, int) else DONE


def _print_error(error: Exception) -> int:
    """Print the error and return its exit code."""
    message, code = _describe_error(error)
    if message:
        sys.stderr.write(f"accordion: {message}\n")
    return code


def _describe_error(error: Exception) -> tuple[str, int]:
    from service.client import ClientError, ServiceFailed, Unreachable
    from service.errors import RuntimeUnavailable, ServiceError, StartError

    match error:
        case typer.Exit():
            return "", error.exit_code
        case typer.Abort():
            return "", INTERRUPTED
        case Unreachable() | ServiceFailed() | RuntimeUnavailable():
            return str(error), UNREACHABLE
        case ClientError() | StartError() | ServiceError():
            return str(error), USAGE
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
