"""The option `--profile`, of `accordion` itself and of every command that asks a service."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Annotated, Any

import typer
from typer.main import get_command

_CHOSEN = "accordion.profile"
"""Key of the chosen profile among what the contexts of a command line share."""


def _list_names(incomplete: str) -> list[str]:
    """Complete the name of a profile."""
    from accordion_client.machine.profiles import list_profiles
    from accordion_service.errors import SettingsError

    try:
        return [name for name in list_profiles() if name.startswith(incomplete)]
    except SettingsError:
        return []


def _choose(context: typer.Context, name: str) -> None:
    """Let the command ask the service of this profile."""
    if not name:
        return
    context.meta[_CHOSEN] = name
    if context.resilient_parsing:  # the shell asks for completions
        return
    if os.environ.get("ACCORDION_URL"):
        raise typer.BadParameter(
            f"ACCORDION_URL names a service too ({os.environ['ACCORDION_URL']}); unset it, or leave"
            " --profile out"
        )
    context.with_resource(ask_chosen(context))


@contextmanager
def ask_chosen(context: typer.Context) -> Iterator[None]:
    """Ask, inside the block, the service of the profile that the command line chooses, if any."""
    before = os.environ.get("ACCORDION_PROFILE", "")  # empty as if it were not set
    os.environ["ACCORDION_PROFILE"] = context.meta.get(_CHOSEN, before)
    try:
        yield
    finally:
        os.environ["ACCORDION_PROFILE"] = before


def check_profile(context: typer.Context) -> None:
    """Refuse a command that names its service twice.

    Raises:
        typer.BadParameter: it has a URL and a profile.
    """
    if context.meta.get(_CHOSEN) and context.params.get("url"):
        raise typer.BadParameter("--profile and --url both name a service; leave one of them out")


ProfileOption = Annotated[
    str,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="profile of ~/.config/accordion/config.toml whose service to ask",
        callback=_choose,
        expose_value=False,
        autocompletion=_list_names,
    ),
]


@cache
def profile_option() -> Any:
    """Return the option for a command; typer builds it from a signature."""

    def take_profile(*, _profile: ProfileOption = "") -> None: ...

    one = typer.Typer(add_completion=False)
    one.command()(take_profile)
    [option] = get_command(one).params
    return option


__all__ = ["ProfileOption", "ask_chosen", "check_profile", "profile_option"]
