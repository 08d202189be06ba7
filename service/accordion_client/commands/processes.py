"""`up`, `down`, `demo`, `env`, `api` and `scheduler`: processes of the service."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accordion_client.commands.cli_support import JsonOption, UrlOption, print_json

if TYPE_CHECKING:
    from accordion_service.settings.settings import Settings

HostOption = Annotated[
    str | None,
    typer.Option(
        "--host", metavar="ADDRESS", help="address to bind; other than loopback requires a token"
    ),
]
NoAuthOption = Annotated[
    bool,
    typer.Option(
        "--no-auth", help="require no token; any user of this machine can then run code as you"
    ),
]
PortOption = Annotated[
    int | None,
    typer.Option(
        "--port",
        metavar="NUMBER",
        min=0,
        max=65535,
        help="port of the service; 0 for any free one (default: 8080)",
    ),
]


def up(host: HostOption = None, port: PortOption = None, *, no_auth: NoAuthOption = False) -> None:
    """Run Ray, the api with its dashboard, and the scheduler on this machine until Ctrl-C.

    State is stored in ACCORDION_HOME (default ~/.accordion). At the end, running jobs save, for
    which they have ACCORDION_CANCEL_GRACE_S (30 s; a second Ctrl-C does not wait). Unfinished jobs
    continue from their checkpoints at the next start. The service requires a token; if none is set,
    it creates one in the home directory, where the other commands read it. Open the dashboard with
    the printed one-time link.
    """
    from accordion_client.machine.up import up as run_all
    from accordion_service.settings.setting_list import describe_unknown_variables
    from accordion_service.settings.settings import list_variables

    settings = _load_settings(host, port, no_auth=no_auth)
    unknown = describe_unknown_variables(list_variables())
    if unknown:
        typer.echo(f"accordion: {unknown}", err=True)
    run_all(settings, say=_print_line)


def down(
    *,
    now: Annotated[
        bool, typer.Option("--now", help="do not wait until running jobs have saved")
    ] = False,
) -> None:
    """Stop the service that `accordion up` runs on this machine.

    Running jobs save first, for which they have ACCORDION_CANCEL_GRACE_S (30 s). Unfinished jobs
    continue from their checkpoints when it starts again. ACCORDION_HOME names the service if there
    are several.
    """
    from accordion_client.machine.down import down as stop
    from accordion_service.settings.home import Home
    from accordion_service.settings.settings import load_settings

    home = Home(load_settings().home)
    stopped = stop(home, at_once=now)
    if stopped is not None and home.stop_report.exists():
        typer.echo(home.stop_report.read_text(), nl=False)
    typer.echo(
        f"no service runs in {home.path}, or it is just starting"
        if stopped is None
        else f"stopped the service at {stopped.url}"
    )


def api(host: HostOption = None, port: PortOption = None, *, no_auth: NoAuthOption = False) -> None:
    """Run the api and the dashboard on the database. They can be restarted at any time."""
    from accordion_service.api.app import serve_api

    serve_api(_load_settings(host, port, no_auth=no_auth))


def scheduler(
    *,
    ends_cluster: Annotated[
        bool,
        typer.Option(
            "--ends-cluster",
            help="the cluster stops with the scheduler: at SIGTERM running jobs save first, at a"
            " second one they do not",
        ),
    ] = False,
) -> None:
    """Run the scheduler on the Ray cluster at ACCORDION_RAY_ADDRESS."""
    from accordion_service.scheduler.process import serve_scheduler
    from accordion_service.settings.settings import load_settings

    serve_scheduler(load_settings(), ends_cluster=ends_cluster)


def env(*, json: JsonOption = False) -> None:
    """Print the variables that connect your own Ray script to the cluster of `accordion up`.

    Use it as: eval "$(accordion env)". In JSON, a variable to unset is null.
    """
    import shlex

    from accordion_client.machine.programs import driver_environment
    from accordion_service.errors import StartError
    from accordion_service.settings.home import Home
    from accordion_service.settings.settings import load_settings

    home = Home(load_settings().home)
    running = home.running()
    if running is None:
        raise StartError(
            f"no service runs in {home.path}; start it with `accordion up`, or set ACCORDION_HOME"
            " to where it runs"
        )
    variables = driver_environment(home, running.ray_address)
    # Ray prefers a token in this variable to the file at RAY_AUTH_TOKEN_PATH.
    if json:
        print_json({"RAY_AUTH_TOKEN": None, **variables})
        return
    typer.echo("unset RAY_AUTH_TOKEN")
    for name, value in variables.items():
        typer.echo(f"export {name}={shlex.quote(value)}")


def demo(
    json: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="write the measurements to a JSON file"),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="keep the service running afterwards")
    ] = False,
    url: UrlOption = "",
) -> None:
    """Train a small job from start to end on this machine, and show it live."""
    from accordion_client.commands.cli_support import create_console
    from accordion_client.commands.demo import demo as run_demo
    from accordion_service.settings.settings import load_settings

    given = {"url": url} if url else {}
    raise typer.Exit(run_demo(load_settings(**given), create_console(), figures=json, keep=keep))


def _load_settings(host: str | None, port: int | None, *, no_auth: bool) -> Settings:
    """Load the settings and apply the given options.

    Raises:
        SettingsError: a setting is invalid, or --no-auth was given although a token is set.
    """
    from accordion_service.errors import SettingsError
    from accordion_service.settings.settings import load_settings

    given = {"host": host, "port": port, "no_auth": no_auth or None}
    settings = load_settings(**{name: value for name, value in given.items() if value is not None})
    if no_auth and settings.token() is not None:
        raise SettingsError(
            "--no-auth contradicts ACCORDION_ADMIN_TOKEN (or ACCORDION_ADMIN_TOKEN_FILE), which is"
            " set; leave one of them out"
        )
    return settings


def _print_line(line: str) -> None:
    """Print one line and flush it, for readers of a pipe. A reader that left, or a full disk, must
    not end the service.
    """
    with suppress(OSError):
        typer.echo(line)
