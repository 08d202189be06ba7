"""Tokens that `accordion login` got, by the address of their service, in a private file of the home
directory.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, RootModel, ValidationError

from accordion_service.errors import StartError
from accordion_service.settings.home import OWNER_ONLY_DIR, write_private


class SavedLogin(BaseModel):
    """A token of a service."""

    token: str
    expires_at: float
    """Expiry in seconds since 1970."""


class _Saved(RootModel[dict[str, SavedLogin]]):
    """Content of the file: logins by the address of the service."""


class SavedLogins:
    """Reads and writes the logins of a home directory."""

    def __init__(self, home: Path) -> None:
        self._path = home / "logins.json"

    def find(self, address: str, now: float) -> str | None:
        """Return the token for an address; None if there is none, or if it has expired."""
        found = self._read().get(address.rstrip("/"))
        return None if found is None or found.expires_at <= now else found.token

    def save(self, address: str, login: SavedLogin) -> None:
        """Store a login; it replaces an earlier one of this address.

        Raises:
            StartError: the file cannot be written.
        """
        self._write({**self._read(), address.rstrip("/"): login})

    def forget(self, address: str) -> None:
        """Remove the login of an address.

        Raises:
            StartError: the file cannot be written.
        """
        logins = self._read()
        if logins.pop(address.rstrip("/"), None) is not None:
            self._write(logins)

    def _read(self) -> dict[str, SavedLogin]:
        try:
            return _Saved.model_validate_json(self._path.read_text()).root
        except (OSError, ValidationError):
            return {}

    def _write(self, logins: dict[str, SavedLogin]) -> None:
        text = json.dumps({name: login.model_dump() for name, login in logins.items()}, indent=2)
        try:
            self._path.parent.mkdir(mode=OWNER_ONLY_DIR, parents=True, exist_ok=True)
            write_private(self._path, text)
        except OSError as error:
            raise StartError(
                f"the login cannot be stored in {self._path} ({error.strerror}); set ACCORDION_HOME"
                " to a directory of yours"
            ) from error
