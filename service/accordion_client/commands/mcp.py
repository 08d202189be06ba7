"""`mcp`: a server by which an agent reads jobs and overrides them within limits."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from accordion_client.commands.cli_support import UrlOption


def mcp(
    *,
    apply: Annotated[
        bool,
        typer.Option("--apply", help="apply overrides; otherwise a person gets the command to run"),
    ] = False,
    most_overrides: Annotated[
        int, typer.Option("--most-overrides", help="overrides that are applied at most")
    ] = 10,
    most_epochs: Annotated[
        int, typer.Option("--most-epochs", help="epochs for which one holds at most")
    ] = 10,
    most_factor: Annotated[
        float, typer.Option("--most-factor", help="largest factor of the optimizer's settings")
    ] = 2.0,
    loss_factor: Annotated[
        float,
        typer.Option("--loss-factor", help="rise of the loss from which they are handed back"),
    ] = 1.5,
    url: UrlOption = "",
) -> None:
    """Serve an agent over standard input and output by the Model Context Protocol.

    Example: claude mcp add accordion -- accordion mcp
    """
    from accordion_client.agents.agent_limits import Limits
    from accordion_client.machine.connection import connect_async
    from accordion_service.errors import SettingsError

    if find_spec("mcp") is None:
        raise SettingsError(
            "accordion mcp needs the package mcp; pip install 'accordion-train[mcp]'"
        )
    from accordion_client.agents.agent_server import create_server

    limits = Limits(
        applies=apply,
        most_overrides=most_overrides,
        most_epochs=most_epochs,
        most_factor=most_factor,
        loss_factor=loss_factor,
    )
    create_server(connect_async(url), limits).run("stdio")
