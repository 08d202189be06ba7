"""What a named option may be: one record that checks a value, fills its default and describes
itself as JSON schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from accordion.errors import ConfigError
from accordion.messages import OptionValue

_JSON_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a method or policy."""

    default: OptionValue
    """Its type is the option's type; a whole number is accepted where a float is asked."""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    required: bool = False
    """There is no default that fits anybody; `default` says only of which type it is."""
    help: str = ""
    lighter: Literal["more", "less"] | None = None
    """Which direction compresses less; a ladder must not go that way from its light to its strong
    level.
    """

    def check(self, value: object, where: str) -> OptionValue:
        """The value, as the option's type.

        Raises:
            ConfigError: another type, out of range or none of the choices; `where` names the option
                in the sentence.
        """
        kind = type(self.default)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = _as_float(value, where)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ConfigError(
                f"{where} is {value!r}; it must be of type {_JSON_TYPES[kind]}, such as"
                f" {self.default!r}"
            )
        if self.choices and value not in self.choices:
            raise ConfigError(f"{where} is {value!r}; known are {', '.join(self.choices)}")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            self._check_range(value, where)
        return value

    def _check_range(self, value: float, where: str) -> None:
        too_small = self.least is not None and not value >= self.least
        too_large = self.most is not None and not value <= self.most
        if too_small or too_large:
            limits = [f"at least {self.least:g}"] if self.least is not None else []
            limits += [f"at most {self.most:g}"] if self.most is not None else []
            raise ConfigError(f"{where} is {value!r}; it must be {' and '.join(limits)}")

    def schema(self) -> dict[str, object]:
        """The option as JSON schema."""
        schema: dict[str, object] = {"type": _JSON_TYPES[type(self.default)]}
        if not self.required:
            schema["default"] = self.default
        for key, value in (("minimum", self.least), ("maximum", self.most)):
            if value is not None:
                schema[key] = value
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.help:
            schema["description"] = self.help
        return schema


def _as_float(value: int, where: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ConfigError(
            f"{where} is a number of {value.bit_length()} bits; give one that a float can hold"
        ) from None


def check_options(
    given: Mapping[str, object], known: Mapping[str, Option], where: str
) -> dict[str, OptionValue]:
    """All known options, the given ones checked and the others by default.

    Raises:
        ConfigError: an unknown name, a value that its option refuses, or none for an option that
            needs one; `where` names the owner in the sentence.
    """
    unknown = sorted(set(given) - set(known))
    if unknown:
        way_out = f"known are {', '.join(sorted(known))}" if known else "it takes none"
        raise ConfigError(f"{where} has no option {unknown[0]!r}; {way_out}")
    missing = [
        name
        for name, option in known.items()
        if option.required and given.get(name) in (None, option.default)
    ]
    if missing:
        raise ConfigError(
            f"{where} needs option {missing[0]!r}; give {known[missing[0]].help or 'a value'}"
        )
    return {
        name: option.check(given[name], f"{where}.{name}") if name in given else option.default
        for name, option in known.items()
    }


def options_schema(known: Mapping[str, Option]) -> dict[str, object]:
    """JSON schema of an options object."""
    required = [name for name, option in known.items() if option.required]
    return {
        "type": "object",
        "properties": {name: option.schema() for name, option in known.items()},
        "additionalProperties": False,
    } | ({"required": required} if required else {})
