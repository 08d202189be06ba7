"""Secrets that the spec of a new job refers to: where it names them, and that they are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from accordion_service.errors import Invalid
from accordion_service.store.tables.models import SecretRow
from accordion_workers.records.contract import JobSpec, list_secret_names
from accordion_workers.spec.loggers import list_logger_secrets


def locate_env_secrets(spec: JobSpec, pointer: str) -> dict[str, str]:
    """Return the names of the secrets of `env`, by JSON pointer; `pointer` is that of `env`."""
    names = list_secret_names(spec.env)
    return {f"{pointer}/{variable}/secret": name for variable, name in names.items()}


def locate_logger_secrets(spec: JobSpec, pointer: str) -> dict[str, str]:
    """Return the names of the secrets of loggers, by JSON pointer; `pointer` is that of all."""
    return {
        f"{pointer}/{number}/{field}/secret": name
        for number, logger in enumerate(spec.loggers)
        for field, name in list_logger_secrets(logger).items()
    }


def lock_secrets(session: Session, user: str, name_by_pointer: Mapping[str, str]) -> None:
    """Keep secrets of a user until the end of the transaction, in which a job that needs them is
    stored.

    Raises:
        Invalid: one is missing.
    """
    if not name_by_pointer:
        return
    query = select(SecretRow.name).where(
        SecretRow.user == user, SecretRow.name.in_(set(name_by_pointer.values()))
    )
    # In one order. SQLite, which runs one writer at a time, ignores the lock.
    known = set(session.scalars(query.order_by(SecretRow.name).with_for_update(read=True)))
    for place, name in name_by_pointer.items():
        if name not in known:
            raise Invalid(describe_missing(user, name), place)


def describe_missing(user: str | None, name: str) -> str:
    """Return that a user lacks a secret, and how to set it."""
    return (
        f"user {user!r} has no secret {name!r}; set it with 'accordion secret set {name}'"
        f" (PUT /api/v1/secrets/{name})"
    )


def describe_unreadable(owner: str | None, names: Sequence[str], problem: str) -> str:
    """Return which secrets of a user cannot be decrypted, why, and how to set them again."""
    is_one = len(names) == 1
    named = f"{'' if is_one else 's'} {', '.join(map(repr, names))}"
    return (
        f"the secret{named} of user {owner!r} cannot be decrypted ({problem}); set"
        f" {'it' if is_one else 'them'} again with 'accordion secret set"
        f" {names[0] if is_one else 'NAME'}'"
    )


__all__ = [
    "describe_missing",
    "describe_unreadable",
    "locate_env_secrets",
    "locate_logger_secrets",
    "lock_secrets",
]
