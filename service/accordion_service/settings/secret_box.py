"""Encrypts the secrets of users with a key that the database does not contain."""

from __future__ import annotations

import os
import secrets
from base64 import urlsafe_b64encode
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken

from accordion_service.errors import SettingsError
from accordion_service.settings.home import OWNER_ONLY_FILE
from accordion_service.settings.settings import Settings

KEY_BYTES = 32
GIVE_KEY = (
    "give the scheduler the key of the api (ACCORDION_SECRETS_KEY_FILE) or, after a restore, the"
    " file secrets.key of the old home directory"
)
"""What to do if the scheduler cannot decrypt a secret."""
MAKE_KEY_FIRST = (
    ". While other secrets need the missing key, an admin must first put it back, or make a new one"
    " with 'accordion secret set NAME --force'"
)
"""What to do before a secret is set again, to follow how that is done."""


class WrongKeyError(Exception):
    """A secret was encrypted with another key."""


class SecretBox:
    """Encrypts and decrypts with a key, by the scheme Fernet (AES-128-CBC and HMAC-SHA256).

    Args:
        key: random text of at least 32 characters.
    """

    def __init__(self, key: str) -> None:
        self._fernet = Fernet(urlsafe_b64encode(sha256(key.encode()).digest()))

    def encrypt(self, value: str) -> str:
        """Return the encrypted value, in ASCII."""
        return self._fernet.encrypt(value.encode()).decode()

    def decrypt(self, encrypted: str) -> str:
        """Return the value.

        Raises:
            WrongKeyError: it was encrypted with another key.
        """
        try:
            return self._fernet.decrypt(encrypted.encode()).decode()
        except InvalidToken:
            raise WrongKeyError from None

    def can_decrypt(self, encrypted: str) -> bool:
        """Return whether a value was encrypted with this key."""
        try:
            self.decrypt(encrypted)
        except WrongKeyError:
            return False
        return True


def open_secret_box(settings: Settings) -> SecretBox | None:
    """Return the box of the service's key; None while it has none.

    Raises:
        SettingsError: the key cannot be read, or is too short.
    """
    key = settings.secrets_key()
    return None if key is None else SecretBox(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceKey:
    """The key of the service as it was found, which may be missing or wrong."""

    box: SecretBox | None
    """Encrypts and decrypts with it; None if there is no key, or it cannot be read."""
    problem: str
    """Why a value that `can_decrypt` rejects cannot be decrypted."""
    is_missing: bool = False
    """Whether there is no key at all."""

    def can_decrypt(self, encrypted: str) -> bool:
        """Return whether this key decrypts a value."""
        return self.box is not None and self.box.can_decrypt(encrypted)


def find_service_key(settings: Settings, *, holder: str = "service") -> ServiceKey:
    """Return the key of the service; one that cannot be used has no box. `holder` is what messages
    call the owner of the key: the scheduler may lack a key that the api has.
    """
    try:
        box = open_secret_box(settings)
    except SettingsError as error:
        return ServiceKey(box=None, problem=str(error))
    problem = describe_wrong_key(settings, box, holder=holder)
    return ServiceKey(box=box, problem=problem, is_missing=box is None)


def describe_wrong_key(
    settings: Settings, box: SecretBox | None, *, holder: str = "service"
) -> str:
    """Return why a value cannot be decrypted with the box of the service's key, or without any."""
    if box is None:
        return f"the {holder} has no key, {settings.home_secrets_key} does not exist"
    return f"encrypted with another key than the {holder} has now"


def create_secret_box(settings: Settings) -> SecretBox:
    """Return the box of the service's key, which is created in the home directory if there is none.

    Raises:
        SettingsError: the key cannot be read, or is too short.
        OSError: it cannot be written.
    """
    box = open_secret_box(settings)
    if box is None:
        _create_key(settings.home_secrets_key)
        box = open_secret_box(settings)
    if box is None:
        raise FileNotFoundError(settings.home_secrets_key)
    return box


def _create_key(path: Path) -> None:
    """Write a new key, unless another process does so at the same time; its key then counts."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(new, flags, OWNER_ONLY_FILE), "w") as file:
        file.write(secrets.token_hex(KEY_BYTES))
        file.flush()
        os.fsync(file.fileno())
    try:
        with suppress(FileExistsError):
            path.hardlink_to(new)
    finally:
        new.unlink()
