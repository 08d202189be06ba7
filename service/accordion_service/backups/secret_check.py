"""Checks whether the key of the service decrypts what its database has encrypted."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from accordion_service.settings.secret_box import find_service_key
from accordion_service.settings.settings import Settings
from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import SecretRow, WebhookRow
from accordion_service.store.writes.copying import check_file

_NAMED_SECRETS = 5
"""Unreadable secrets that are named; more are counted."""
_SET_AGAIN = "'accordion secret set' and 'accordion webhook rotate-secret'"
_MAKE_KEY = "an admin makes a new one with 'accordion secret set NAME --force', and "


def describe_unreadable(settings: Settings) -> str:
    """Return how many secrets the key of the service cannot decrypt, why, and what to do; empty if
    it can decrypt all.

    Raises:
        StartError: the database has no file.
        SQLAlchemyError: the database cannot be read.
        OSError: the directory of the database or of the key may not be searched.
    """
    encrypted, key = _read_encrypted(settings.database), find_service_key(settings)
    unreadable = [name for name, value in encrypted if not key.can_decrypt(value)]
    if not unreadable:
        return ""
    num_readable = len(encrypted) - len(unreadable)
    way_out = (
        _explain_mixed_keys(unreadable, num_readable) if num_readable else _explain_lost(settings)
    )
    return (
        f"{len(unreadable)} of {len(encrypted)} secrets of jobs and webhooks cannot be decrypted"
        f" ({key.problem}), and jobs that refer to them wait; {way_out}"
    )


def _explain_mixed_keys(unreadable: Sequence[str], num_readable: int) -> str:
    """Return what to do if the present key is right for some secrets and wrong for others."""
    more = len(unreadable) - _NAMED_SECRETS
    named = f"{', '.join(unreadable[:_NAMED_SECRETS])}{f' and {more} more' if more > 0 else ''}"
    others = "the other one" if num_readable == 1 else f"the {num_readable} others"
    return (
        f"their users set them again with {_SET_AGAIN}: {named}. Keep the present key, which"
        f" decrypts {others}: an older one in its place would not"
    )


def _explain_lost(settings: Settings) -> str:
    """Return what to do if no secret can be decrypted."""
    if settings.secrets_key_text is not None:
        put_back = "give the key of the service that encrypted them in ACCORDION_SECRETS_KEY"
    else:
        file = settings.secrets_key_file or settings.home_secrets_key
        put_back = (
            f"copy the secrets.key of the service that encrypted them to {file}, or name it in"
            " ACCORDION_SECRETS_KEY_FILE"
        )
    is_set = settings.secrets_key_text or settings.secrets_key_file
    new_key = "" if is_set or settings.home_secrets_key.exists() else _MAKE_KEY
    return f"{put_back}. If it is lost, {new_key}users set them again with {_SET_AGAIN}"


def _read_encrypted(url: str) -> list[tuple[str, str]]:
    """Return the names and encrypted values of the secrets of users and of webhooks."""
    check_file(url)
    secrets = select(SecretRow.user, SecretRow.name, SecretRow.encrypted)
    webhooks = select(WebhookRow.user, WebhookRow.name, WebhookRow.encrypted)
    secrets = secrets.order_by(SecretRow.user, SecretRow.name)
    webhooks = webhooks.order_by(WebhookRow.user, WebhookRow.name)
    database = Database(url)
    try:
        with database.read() as session:
            return [
                (f"{kind} {name} of {user}", value)
                for kind, query in (("secret", secrets), ("webhook", webhooks))
                for user, name, value in session.execute(query)
            ]
    finally:
        database.close()
