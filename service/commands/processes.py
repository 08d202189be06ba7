"""`up`, `api`, `scheduler` and `demo`: commands that are processes of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.commands.common import UrlOption

HostOption = Annotated[str | None, typer.Option("--host", help="address to bind; beyond loopback a token is needed")]
PortOption = Annotated[int | None, typer.Option("--port", min=0, max=65535, help="0 takes any free one; default 8080")]


def up(host: HostOption = None, port: PortOption = None) -> None:
    """Run everything on this machine: Ray, the api with its dashboard, the scheduler. Ctrl-C stops it.

    State lives in ACCORDION_HOME (default ~/.accordion). Jobs that are unfinished at the end go on from their
    checkpoints the next time.
    """
    from service.settings import load_settings
    from service.up import up as run_all

    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    run_all(load_settings(**given), say=_say)


def api(host: HostOption = None, port: PortOption = None) -> None:
    """Run the api and the dashboard over the database; may be restarted at any time."""
    from service.app import serve
    from service.settings import load_settings

    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    serve(load_settings(**given))


def scheduler() -> None:
    """Run the scheduler: it talks to the Ray cluster that ACCORDION_RAY_ADDRESS names."""
    from service.scheduler import serve
    from service.settings import load_settings

    serve(load_settings())


def demo(
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="also write the figures as JSON")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="leave the service running afterwards")] = False,
    url: UrlOption = "",
) -> None:
    """Train a real job from end to end on this machine, and show it live."""
    from service.commands.common import console
    from service.demo import demo as run_demo
    from service.settings import load_settings

    given = {"url": url} if url else {}
    raise typer.Exit(run_demo(load_settings(**given), console(), figures=json, keep=keep))


def _say(line: str) -> None:
    """Flushed at once: whoever reads it may be waiting for it."""
    typer.echo(line)
