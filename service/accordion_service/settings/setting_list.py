"""Settings as lines for users, and variables that only look like settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import AliasChoices, SecretStr

from accordion_service.settings.settings import PREFIX, Settings, list_variables
from accordion_workers.common.described_models import read_docstrings
from accordion_workers.spec.data import VARIABLE_PREFIX

_LOGIN_IN_URL = re.compile(r"://.*@")
_SECRET_IN_QUERY = re.compile(r"([?&][^=&]*(?:key|pass|secret|token)[^=&]*=)[^&]*", re.IGNORECASE)
_FIRST_SENTENCE = re.compile(r"(.*?)\.(?:\s|$)")
_CACHE = f"{VARIABLE_PREFIX}CACHE"
"""Prefix of the settings of the data cache; other `VARIABLE_PREFIX` variables are paths of data."""
_OF_TESTS = re.compile(rf"{PREFIX}(CRASHES|DATA|LAST_START|REQUIRE|TEST_.*)")
"""Variables of the tests (CONTRIBUTING.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingLine:
    """One setting, as users see it."""

    name: str
    """Variable of the environment."""
    value: str
    """Value in force, without secrets; empty if there is none."""
    is_default: bool
    description: str
    """What it does, in one line."""


def list_settings(settings: Settings) -> Iterator[SettingLine]:
    """Iterate over all settings, in the order of `Settings`."""
    descriptions = dict(read_docstrings(Settings))
    for field, info in Settings.model_fields.items():
        value = getattr(settings, field)
        yield SettingLine(
            name=_list_variables_of(field)[0],
            value=_format_value(value),
            is_default=field not in settings.model_fields_set or value == info.default,
            description=_shorten(descriptions.get(field, "")),
        )


def describe_unknown_variables(names: Iterable[str]) -> str:
    """Return a sentence about unknown `ACCORDION_...` variables, with the most similar setting of
    each; empty if there are none.
    """
    variables = [_list_variables_of(field) for field in Settings.model_fields]
    known = {name for names_of_one in variables for name in names_of_one}
    shown = {one[0].removeprefix(PREFIX): one[0] for one in variables}
    parts = []
    for name in names:
        if name.upper() not in known and not _is_known_elsewhere(name.upper()):
            similar = get_close_matches(name.upper().removeprefix(PREFIX), shown, n=1)
            hint = f" (did you mean {shown[similar[0]]}?)" if similar else ""
            parts.append(f"{name}{hint}")
    if not parts:
        return ""
    what = "is not a setting and has" if len(parts) == 1 else "are not settings and have"
    return f"{', '.join(parts)} {what} no effect; 'accordion settings' lists all"


def log_unknown_variables() -> None:
    """Log a warning if the environment has unknown `ACCORDION_...` variables."""
    import structlog

    unknown = describe_unknown_variables(list_variables())
    if unknown:
        structlog.get_logger().warning("unknown settings", error=unknown)


def _list_variables_of(field: str) -> list[str]:
    """Return the variables of a setting; the first is the one that users see."""
    alias, own = Settings.model_fields[field].validation_alias, f"{PREFIX}{field.upper()}"
    match alias:
        case str():
            return [alias, own]
        case AliasChoices():
            return [*(str(choice) for choice in alias.choices), own]
    return [own]


def _is_known_elsewhere(name: str) -> bool:
    is_path = name.startswith(VARIABLE_PREFIX) and not name.startswith(_CACHE)
    return is_path or _OF_TESTS.fullmatch(name) is not None


def _format_value(value: Any) -> str:
    match value:
        case None:
            return ""
        case SecretStr():
            return "***"
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(map(str, value))
        case dict():
            return json.dumps(value)
    return _SECRET_IN_QUERY.sub(r"\1***", _LOGIN_IN_URL.sub("://***@", str(value)))


def _shorten(docstring: str) -> str:
    """Return the first sentence of a docstring, in one line."""
    text = " ".join(docstring.split())
    found = _FIRST_SENTENCE.match(text)
    return found[1] if found else text
