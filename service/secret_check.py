"""Checks whether the key of the service decrypts what its database has encrypted."""

from __future__ import annotations

from sqlalchemy import select

from service.errors import SettingsError
from service.security.secret_box import open_secret_box
from service.settings import Settings
from service.store.copying import check_file
from service.store.database import Database
from service.store.models import SecretRow, WebhookRow


def describe_unreadable(settings: Settings) -> str:
    """Return how many secrets the key of the service cannot decrypt, why, and what to do; empty if
    it can decrypt all.

    Raises:
        StartError: the database has no file.
        SQLAlchemyError: the database cannot be read.
        OSError: the directory of the database or of the key may not be searched.
    """
    encrypted = _read_encrypted(settings.database)
    try:
        box = open_secret_box(settings)
        reason = "there is no key" if box is None else "they were encrypted with another key"
    except SettingsError as error:
        box, reason = None, str(error)
    unreadable = [value for value in encrypted if box is None or not box.can_decrypt(value)]
    if not unreadable:
        return ""
    return (
        f"{len(unreadable)} of {len(encrypted)} secrets of jobs and webhooks cannot be decrypted"
        f" ({reason}); copy the secrets.key of the service that encrypted them to"
        f" {settings.home_secrets_key}, or name it in ACCORDION_SECRETS_KEY_FILE. If it is lost,"
        " users set them again with 'accordion secret set' and 'accordion webhook rotate-secret'"
    )


def _read_encrypted(url: str) -> list[str]:
    """Return the encrypted secrets of users and of webhooks."""
    check_file(url)
    database = Database(url)
    try:
        with database.read() as session:
            return [
                *session.scalars(select(SecretRow.encrypted)),
                *session.scalars(select(WebhookRow.encrypted)),
            ]
    finally:
        database.close()
