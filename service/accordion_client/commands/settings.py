"""`settings`: lists the settings of this environment."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from accordion_client.commands.cli_support import (
    JsonOption,
    create_console,
    create_table,
    print_json,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from accordion_service.settings.setting_list import SettingLine


def settings(
    *,
    changed: Annotated[
        bool, typer.Option("--changed", help="only settings that differ from their default")
    ] = False,
    json: JsonOption = False,
) -> None:
    """List the settings: their variables, their values in this environment, and what they do.

    Values that are not the default are marked with *; those of a profile count. Secrets are not
    shown.
    """
    from accordion_client.machine.profiles import load_client_settings
    from accordion_service.settings.setting_list import describe_unknown_variables, list_settings
    from accordion_service.settings.settings import list_variables

    found = list_settings(load_client_settings())
    lines = [line for line in found if not (changed and line.is_default)]
    unknown = describe_unknown_variables(list_variables())
    if json:
        print_json({"items": [asdict(line) for line in lines], "warning": unknown or None})
        return
    _print_table(lines)
    if unknown:
        typer.echo(f"accordion: {unknown}", err=True)


def _print_table(lines: Sequence[SettingLine]) -> None:
    if not lines:
        typer.echo("all settings have their defaults")
        return
    table = create_table("SETTING", "", "VALUE", "MEANING")
    for line in lines:
        mark = "" if line.is_default else "*"
        table.add_row(line.name, mark, line.value or "-", line.description)
    create_console().print(table)
