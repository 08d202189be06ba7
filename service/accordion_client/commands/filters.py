"""Filters of commands that list: an option for each field of the query."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer
from pydantic import AwareDatetime, BaseModel
from pydantic.fields import FieldInfo

from accordion_client.commands.completion import complete_words

if TYPE_CHECKING:
    from accordion_client import Client

_TIME = "a date or time such as 2027-01-31 or 2027-01-31T22:00:00+01:00; without a zone, yours"
_Command = TypeVar("_Command", bound=Callable[..., None])


@dataclass(frozen=True, kw_only=True)
class FilterOption:
    """An option as far as it does not follow from the field of the query."""

    name: str = ""
    """Name of the option, such as `--exact-name`; empty for that of the field."""
    metavar: str = ""
    """Value in the help; empty for the name of the option, `NUMBER` or `TIME`."""
    help: str = ""
    """Text of the help; empty for the description of the field."""
    complete: Callable[..., Any] | None = None
    """What the shell completes; None for the values of the field, if it has few."""


class FilterOptions:
    """The options of a command for the fields of a query."""

    def __init__(self, query: type[BaseModel], **options: FilterOption) -> None:
        self._fields = query.model_fields
        self._options = options

    def add_to(self, command: _Command) -> _Command:
        """Add the options to a command, except for fields that its own parameters stand for.

        Typer reads them from the signature; the command gets them by the names of the fields.
        """
        own = inspect.signature(command, eval_str=True)
        added = (name for name in self._fields if name not in own.parameters)
        named = (one for one in own.parameters.values() if one.kind is one.KEYWORD_ONLY)
        vars(command)["__signature__"] = own.replace(
            parameters=[*map(self._create_parameter, added), *named]
        )
        return command

    def parse(self, given: Mapping[str, Any], *, without: str) -> dict[str, Any]:
        """Return the filters that are given, with words as the service writes them.

        Args:
            given: what the options have, by the name of the field.
            without: what leaving a filter out is good for, such as "to list all jobs".

        Raises:
            BadParameter: one is empty, as with a variable of the shell that is not set, or is no
                time.
        """
        found = {name: value for name, value in given.items() if value is not None}
        parsed = {name: self._parse_value(name, value) for name, value in found.items()}
        for name, value in parsed.items():
            if value == "" or (isinstance(value, list) and "" in value):
                raise typer.BadParameter(f"{self._option(name)} is empty; leave it out {without}")
        return parsed

    def _option(self, name: str) -> str:
        option = self._options.get(name, FilterOption())
        return option.name or f"--{name.replace('_', '-')}"

    def _create_parameter(self, name: str) -> inspect.Parameter:
        field, own = self._fields[name], self._options.get(name, FilterOption())
        option, kinds = self._option(name), set(_list_types(field))
        text, metavar = f"{field.description}".replace("`", ""), option.removeprefix("--").upper()
        value: Any = str
        if AwareDatetime in kinds:
            text, metavar = f"{text}: {_TIME}", "TIME"
        if int in kinds:
            value, metavar = int, "NUMBER"
        if list in kinds:
            value, text = list[str], f"{text}; may be repeated"
        found = typer.Option(
            option,
            metavar=own.metavar or metavar,
            help=own.help or text,
            autocompletion=own.complete or _complete_enum(field),
        )
        return inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[value | None, found],
        )

    def _parse_value(self, name: str, value: Any) -> Any:
        field = self._fields[name]
        if AwareDatetime in _list_types(field):
            return _parse_time(self._option(name), value)
        known = {word.lower(): word for word in _list_words(field)}
        if isinstance(value, list):
            return [known.get(word.lower(), word) for word in value]
        return known.get(value.lower(), value) if isinstance(value, str) else value


def _parse_time(option: str, text: str) -> datetime:
    """Parse a date or time; one without a zone is in the zone of this machine."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{option} is {text!r}; give {_TIME}") from None


def _list_types(field: FieldInfo) -> Iterator[Any]:
    """List the types in the annotation of a field: `list` and `Status` of `list[Status]`."""
    left: list[Any] = [field.annotation]
    for one in left:
        left += get_args(one)
        yield getattr(one, "__origin__", one)


def _list_words(field: FieldInfo) -> list[str]:
    """List the values of a field that has few."""
    kinds = (one for one in _list_types(field) if isinstance(one, type))
    return [word.value for kind in kinds if issubclass(kind, StrEnum) for word in kind]


def _complete_enum(field: FieldInfo) -> Callable[..., Any] | None:
    words = _list_words(field)
    return complete_words(*words) if words else None


def describe_unknown_user(client: Client, user: str | None) -> str:
    """Return that there is no such user, to follow that nothing matches; empty if there is one, or
    if the caller may not see users.
    """
    from accordion_client import Refused
    from accordion_service.domain.access import ServiceUser

    if user is None or user in list(ServiceUser):
        return ""
    try:
        known = [one.name for one in client.users().items]
    except Refused:
        return ""
    return "" if user in known else f"; there is no user {user!r}, 'accordion user list' shows all"
