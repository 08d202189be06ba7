"""Secrets of the settings: given as a value, or as the name of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accordion_service.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import SecretStr


def read_secret(
    value: SecretStr | None, path: Path | None, *, name: str, shortest: int
) -> str | None:
    """Return the secret of a setting; None if neither a value nor a file is set.

    Args:
        value: the secret; it takes precedence.
        path: file with the secret.
        name: variable of the value; that of the file is called the same, with `_FILE`.
        shortest: minimum number of characters.

    Raises:
        SettingsError: the file cannot be read, or the secret is too short or not of ASCII
            characters.
    """
    if value is None and path is None:
        return None
    text = value.get_secret_value() if value is not None else _read_file(path, name)
    text, source = text.strip(), name if value is not None else f"{name}_FILE is {path}, which"
    if len(text) < shortest:
        raise SettingsError(f"{source} has {len(text)} characters; give at least {shortest}")
    if not (text.isascii() and text.isprintable()):
        raise SettingsError(
            f"{source} holds characters other than letters, digits and signs of ASCII; use only"
            " these"
        )
    return text


def _read_file(path: Path | None, name: str) -> str:
    try:
        return path.read_text() if path else ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SettingsError(
            f"{name}_FILE is {path}, which cannot be read ({reason}); give a readable file"
        ) from error
