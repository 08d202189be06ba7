"""Options of methods, policies and tasks: values with checks and a JSON schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from accordion.base.errors import ConfigError
from accordion.base.messages import OptionValue

_JSON_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option."""

    default: OptionValue
    """Its type is the option's type; a float option also accepts whole numbers, and an integer
    option floats without a fraction.
    """
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    required: bool = False
    """Whether a value must be given; `default` then only sets the type."""
    help: str = ""
    lighter: Literal["more", "less"] | None = None
    """Direction that compresses less; the `high` level must not compress less than `low`."""

    def check(self, value: object, where: str) -> Any:
        """Return the value as the option's type; `where` names the option in errors.

        Raises:
            ConfigError: the value has another type, is out of range or is none of the choices.
        """
        kind, given = type(self.default), repr(value)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = _as_float(value, where)
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ConfigError(
                f"{where} is {given}; it must be of type {_JSON_TYPES[kind]}, such as"
                f" {self.default!r}"
            )
        if self.choices and value not in self.choices:
            raise ConfigError(f"{where} is {given}; known are {', '.join(self.choices)}")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            self._check_range(value, f"{where} is {given}")
        return value

    def _check_range(self, value: float, fault: str) -> None:
        too_small = self.minimum is not None and not value >= self.minimum
        too_large = self.maximum is not None and not value <= self.maximum
        if too_small or too_large:
            limits = [f"at least {self.minimum:g}"] if self.minimum is not None else []
            limits += [f"at most {self.maximum:g}"] if self.maximum is not None else []
            raise ConfigError(f"{fault}; it must be {' and '.join(limits)}")

    def schema(self) -> dict[str, object]:
        """Return the option as JSON schema."""
        schema: dict[str, object] = {"type": _JSON_TYPES[type(self.default)]}
        if not self.required:
            schema["default"] = self.default
        for key, value in (("minimum", self.minimum), ("maximum", self.maximum)):
            if value is not None:
                schema[key] = value
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.help:
            schema["description"] = self.help
        return schema


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOption(Option):
    """Required option that maps the first epoch of each interval to one of the choices."""

    default: OptionValue = ""
    required: bool = True

    def check(self, value: object, where: str) -> dict[int, str]:
        """Return the table with epochs as numbers; `where` names the option in errors.

        Raises:
            ConfigError: the value is no mapping, a key is no epoch, epoch 0 is missing, or a value
                is none of the choices.
        """
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"{where} is {value!r}; it must be a mapping such as {{'0': {self.choices[0]!r},"
                f" '10': {self.choices[-1]!r}}}"
            )
        for key, choice in value.items():
            if not str(key).isdecimal():
                raise ConfigError(f"{where}: {key!r} is no epoch; keys are whole numbers from 0")
            if choice not in self.choices:
                raise ConfigError(
                    f"{where}: {choice!r} at epoch {key}; known are {', '.join(self.choices)}"
                )
        table = {int(key): str(choice) for key, choice in value.items()}
        if 0 not in table:
            raise ConfigError(
                f"{where} starts at epoch {min(table, default=None)}; add an entry for epoch 0"
            )
        return table

    def schema(self) -> dict[str, object]:
        """Return the option as JSON schema."""
        values = {"type": "string", "enum": list(self.choices)}
        return {"type": "object", "description": self.help, "additionalProperties": values}


def _as_float(value: int, where: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ConfigError(
            f"{where} is a number of {value.bit_length()} bits; give one that a float can hold"
        ) from None


def check_options(
    given: Mapping[str, object], known: Mapping[str, Option], where: str
) -> dict[str, Any]:
    """Return all known options, the given ones checked and the others by default.

    `where` names the owner of the options in errors.

    Raises:
        ConfigError: a name is unknown, an option refuses its value, or a required one is missing.
    """
    unknown = sorted(set(given) - set(known))
    if unknown:
        way_out = (
            f"known are {', '.join(sorted(known))}" if known else "it takes none; set it to {}"
        )
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
    """Return the JSON schema of an object with these options."""
    required = [name for name, option in known.items() if option.required]
    return {
        "type": "object",
        "properties": {name: option.schema() for name, option in known.items()},
        "additionalProperties": False,
    } | ({"required": required} if required else {})
