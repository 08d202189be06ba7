"""Environment variables of a job's workers: names, values, and references to secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from accordion_workers.spec.types import MAX_VALUE_LENGTH, Strict

MAX_VARIABLES = 64
"""Maximum number of variables of a job."""
MAX_NAME_LENGTH = 63
"""Maximum characters of the name of a secret."""
SECRET_NAME_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"  # noqa: S105 - a pattern
ENV_NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
_RANK_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "ACCELERATE_TORCH_DEVICE",
    "CUDA_VISIBLE_DEVICES",
)
_REFUSED_NAMES = dict.fromkeys(_RANK_VARIABLES, "is set by the service for each worker")
_REFUSED_PREFIXES = {
    "ACCORDION_": "has the prefix of the service's own settings",
    "RAY_": "has the prefix of Ray's settings, which belong to the cluster",
    "LD_": "is read before a worker knows its job",
    "PYTHON": "is read before a worker knows its job",
}


class SecretRef(Strict):
    """Reference to a secret of the user who owns the job."""

    secret: Annotated[str, Field(max_length=MAX_NAME_LENGTH, pattern=SECRET_NAME_PATTERN)]
    """Name of the secret; `GET /api/v1/secrets` lists yours."""


def _check_value(value: Any) -> Any:
    """Return a text or a reference unchanged, and a whole number as text.

    Raises:
        ValueError: it is something else, such as the `true` of YAML, whose text is ambiguous.
    """
    if isinstance(value, Mapping):
        return _check_reference(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str | SecretRef):
        # A TypeError would not become an error of this field.
        raise ValueError(f"{value!r} is not a text; put it in quotes")  # noqa: TRY004
    if isinstance(value, str) and len(value) > MAX_VALUE_LENGTH:
        raise ValueError(f"a text of {len(value)} characters; at most {MAX_VALUE_LENGTH} fit")
    return value


def _check_reference(value: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return a valid reference; the union's own check would report two errors for another one.

    Raises:
        ValueError: it has other fields than `secret`, or that is not a name.
    """
    name = value.get("secret")
    if list(value) != ["secret"] or not isinstance(name, str):
        raise ValueError('a reference has one field, such as {"secret": "hf-token"}')
    if len(name) > MAX_NAME_LENGTH or not re.fullmatch(SECRET_NAME_PATTERN, name):
        raise ValueError(
            f"{name!r} is not the name of a secret; give up to {MAX_NAME_LENGTH} letters, digits"
            " and, between them, '.', '_' or '-'"
        )
    return value


_EnvName = Annotated[str, Field(max_length=128, pattern=ENV_NAME_PATTERN)]
_EnvValue = Annotated[
    Annotated[str, Field(max_length=MAX_VALUE_LENGTH)] | SecretRef, BeforeValidator(_check_value)
]


def _check_variables(env: dict[str, Any]) -> dict[str, Any]:
    if len(env) > MAX_VARIABLES:
        raise ValueError(f"{len(env)} variables; at most {MAX_VARIABLES} are passed on")
    for name in env:
        if why := _describe_refusal(name):
            raise ValueError(f"{name} {why}, so a job cannot set it; leave it out")
    return env


def _describe_refusal(name: str) -> str | None:
    prefixes = (why for prefix, why in _REFUSED_PREFIXES.items() if name.startswith(prefix))
    return _REFUSED_NAMES.get(name) or next(prefixes, None)


Env = Annotated[
    dict[_EnvName, _EnvValue],
    AfterValidator(_check_variables),
    Field(json_schema_extra={"maxProperties": MAX_VARIABLES}),
]


def list_secret_names(env: Mapping[str, str | SecretRef]) -> dict[str, str]:
    """Return the names of the secrets that variables refer to, by variable."""
    return {name: value.secret for name, value in env.items() if isinstance(value, SecretRef)}


def list_secret_values(
    env: Mapping[str, str | SecretRef], resolved: Mapping[str, str]
) -> list[str]:
    """Return the values of the variables that refer to a secret."""
    return [value for name, value in resolved.items() if isinstance(env.get(name), SecretRef)]


def resolve_env(env: Mapping[str, str | SecretRef], secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the values of the secrets, which are given by name.

    Raises:
        KeyError: a secret is not among them.
    """
    return {
        name: secrets[value.secret] if isinstance(value, SecretRef) else value
        for name, value in env.items()
    }
