"""The table of commands, which import heavy modules themselves; `run_command` runs one of them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from service.commands import account_commands as accounts
from service.commands import (
    backups,
    compare,
    deletion,
    doctor,
    download,
    history,
    jobs,
    listing,
    logins,
    plan,
    processes,
    report,
)
from service.commands import job_control as control
from service.commands import job_states as states
from service.commands import node_commands as nodes
from service.commands import queue_commands as queues
from service.commands import secret_commands as secrets
from service.commands import watch as live
from service.commands import webhook_commands as webhooks

DONE, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3
INTERRUPTED = 128 + int(signal.SIGINT)


class Command(TyperCommand):
    """A command whose help shows flags without `<bool>`, since no value follows them, and which
    succeeds if the reader of its output has closed the pipe.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, without the types of flags in the help."""
        return _hide_flag_types(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a reader of the output that has left is no error."""
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
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return True
    return False


class _Group(TyperGroup):
    """The commands together; their flags are shown in the same way."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _hide_flag_types(super().get_params(ctx))


def _hide_flag_types(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


app = typer.Typer(
    name="accordion",
    cls=_Group,
    help="Elastic training on Ray with gradient compression that adapts while the job runs.",
    epilog=(
        "Exit codes: 0 done, 1 the job or a check failed, 2 usage, 3 the service is unreachable."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_add = partial(app.command, cls=Command)
_add("up")(processes.up)
_add("demo")(processes.demo)
_add("env")(processes.env)
_add("submit")(jobs.submit)
_add("clone")(jobs.clone)
_add("plan")(plan.plan)
_add("list")(listing.list_jobs)
_add("show")(history.show)
_add("why")(history.why)
_add("watch")(live.watch)
_add("logs")(live.logs)
_add("override")(control.override)
_add("hand-back")(control.hand_back)
_add("resize")(control.resize)
_add("pause")(states.pause)
_add("resume")(states.resume)
_add("cancel")(states.cancel)
_add("retry")(states.retry)
_add("change")(control.change)
_add("download")(download.download)
_add("report")(report.report)
_add("compare")(compare.compare)
_add("archive")(states.archive)
_add("unarchive")(states.unarchive)
_add("delete")(deletion.delete)
_add("queue")(queues.queue)
_add("nodes")(nodes.list_nodes)
_add("doctor")(doctor.doctor)
_add("login")(logins.login)
_add("logout")(logins.logout)
_add("whoami")(accounts.whoami)
_add("audit")(accounts.audit)
_add("backup")(backups.backup)
_add("restore")(backups.restore)
_add("move-database")(backups.move_database)
_add("api")(processes.api)
_add("scheduler")(processes.scheduler)

_users = typer.Typer(cls=_Group, no_args_is_help=True, help="Add, change and list users.")
_users.command("add", cls=Command)(accounts.add_user)
_users.command("change", cls=Command)(accounts.change_user)
_users.command("list", cls=Command)(accounts.list_users)
app.add_typer(_users, name="user")
_tokens = typer.Typer(cls=_Group, no_args_is_help=True, help="Create, list and revoke tokens.")
_tokens.command("new", cls=Command)(accounts.new_token)
_tokens.command("list", cls=Command)(accounts.list_tokens)
_tokens.command("revoke", cls=Command)(accounts.revoke_token)
app.add_typer(_tokens, name="token")
_quotas = typer.Typer(cls=_Group, no_args_is_help=True, help="Set, list and remove quotas.")
_quotas.command("set", cls=Command)(queues.set_quota)
_quotas.command("list", cls=Command)(queues.list_quotas)
_quotas.command("remove", cls=Command)(queues.remove_quota)
app.add_typer(_quotas, name="quota")
_nodes = typer.Typer(
    cls=_Group, no_args_is_help=True, help="Keep workers from a node, and restore it."
)
_nodes.command("cordon", cls=Command)(nodes.cordon)
_nodes.command("restore", cls=Command)(nodes.restore)
app.add_typer(_nodes, name="node")
_secrets = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    help="Set, list and remove values that jobs get in environment variables.",
)
_secrets.command("set", cls=Command)(secrets.set_secret)
_secrets.command("list", cls=Command)(secrets.list_secrets)
_secrets.command("remove", cls=Command)(secrets.remove_secret)
app.add_typer(_secrets, name="secret")
_webhooks = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    help="Notify other programs when a job changes its status.",
)
_webhooks.command("add", cls=Command)(webhooks.add_webhook)
_webhooks.command("list", cls=Command)(webhooks.list_webhooks)
_webhooks.command("rotate-secret", cls=Command)(webhooks.rotate_secret)
_webhooks.command("remove", cls=Command)(webhooks.remove_webhook)
_webhooks.command("test", cls=Command)(webhooks.send_test)
_webhooks.command("deliveries", cls=Command)(webhooks.list_deliveries)
_webhooks.command("send-again", cls=Command)(webhooks.send_again)
app.add_typer(_webhooks, name="webhook")


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
