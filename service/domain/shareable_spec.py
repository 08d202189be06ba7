"""A job's spec as it may leave the service: without values that could be secret; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
_SECRET_NAME = re.compile(r"passw|secret|token$|api_?key|credential|private_?key", re.IGNORECASE)
_URL_LOGIN = re.compile(r"(?<=://)[^/?#\s]*@")
_URL_QUERY = re.compile(r"(://[^\s?#]*)\?[^\s#]*")


def hide_secrets(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec in which `***` replaces all values of environment variables, texts under names
    such as `api_key`, and logins and queries in URLs. References to secrets stay: they are names.
    """
    hidden = {str(name): _hide_in(name, value) for name, value in spec.items()}
    env = spec.get("env")
    if isinstance(env, Mapping):
        hidden["env"] = {
            str(name): value if isinstance(value, Mapping) else HIDDEN
            for name, value in env.items()
        }
    return hidden


def hide_in_urls(text: str) -> str:
    """Return a text in which `***` replaces logins and queries of URLs."""
    return _URL_QUERY.sub(rf"\1?{HIDDEN}", _URL_LOGIN.sub(f"{HIDDEN}@", text))


def _hide_in(name: Any, value: Any) -> Any:
    if isinstance(value, Mapping):
        if list(value) == ["secret"]:
            return dict(value)
        return {str(key): _hide_in(key, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hide_in(name, item) for item in value]
    if not isinstance(value, str):
        return value
    return HIDDEN if _SECRET_NAME.search(str(name)) else hide_in_urls(value)
