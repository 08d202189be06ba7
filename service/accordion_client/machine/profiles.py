"""Profiles: services that a client knows by name, in `~/.config/accordion/config.toml`.

    default = "lab"

    [profiles.lab]
    url = "https://accordion.example.com"
    token_file = "~/.config/accordion/lab.token"

`ACCORDION_PROFILE` or `accordion --profile` names another one. A profile counts only where neither
`--url` nor `ACCORDION_URL` names a service, so that its token goes to no other, and the default one
only where no service runs on this home.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from accordion_service.errors import SettingsError
from accordion_service.settings.home import Home
from accordion_service.settings.settings import Settings, load_settings

_OTHERS = 0o077
"""Permissions of everybody but the owner."""


class Profile(BaseModel):
    """One service."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(pattern=r"^https?://")
    token_file: Path | None = None
    request_timeout_s: float | None = Field(default=None, gt=0)
    request_total_s: float | None = Field(default=None, gt=0)


class _ConfigFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    default: str = ""
    profiles: dict[str, Profile] = {}


def load_client_settings(url: str = "") -> Settings:
    """Return the settings of a client: those of the environment, and of a profile if neither
    `url` nor the environment names a service, and none runs on this home. A profile that
    `ACCORDION_PROFILE` names counts beside a service on this home too.

    Raises:
        SettingsError: a setting is wrong, a file cannot be read, or there is no such profile.
    """
    settings = load_settings()
    if url or settings.url or (not settings.profile and Home(settings.home).running()):
        return settings
    name, profile = _find_profile(settings.profile, config_file(os.environ))
    if profile is None:
        return settings
    given: dict[str, Any] = {"url": profile.url}
    if settings.user_token is None and settings.user_token_file is None and profile.token_file:
        given["user_token_file"] = _find_token(name, profile.token_file)
    for field in ("request_timeout_s", "request_total_s"):
        if field not in settings.model_fields_set and getattr(profile, field) is not None:
            given[field] = getattr(profile, field)
    return load_settings(**given)


def config_file(variables: Mapping[str, str]) -> Path:
    """Return where the profiles are, by the XDG base directories."""
    folder = variables.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "accordion/config.toml"


def list_profiles() -> list[str]:
    """Return the names of all profiles.

    Raises:
        SettingsError: their file cannot be read.
    """
    return list(_read(config_file(os.environ)).profiles)


def _find_token(profile: str, file: Path) -> Path:
    """Return where the token of a profile is; a relative path is below the folder of the profiles.

    Raises:
        SettingsError: it cannot be read, or others can read it.
    """
    path = config_file(os.environ).parent / file.expanduser()
    which = f"token_file of profile {profile!r} is {path}"
    try:
        mode = path.stat().st_mode
        path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{which}, which cannot be read ({error.strerror})") from None
    if mode & _OTHERS:
        raise SettingsError(f"{which}, which others can read; chmod 600 {path}")
    return path


def _find_profile(name: str, path: Path) -> tuple[str, Profile | None]:
    found = _read(path)
    source = "the profile to use" if name else f"default of {path}"
    name = name or found.default
    if not name:
        return "", None
    if name not in found.profiles:
        known = ", ".join(found.profiles) or "none"
        raise SettingsError(
            f"{source} is {name!r}, and there is no such profile; those of {path} are {known}"
        )
    return name, found.profiles[name]


def _read(path: Path) -> _ConfigFile:
    try:
        return _ConfigFile.model_validate(tomllib.loads(path.read_text()))
    except FileNotFoundError:
        return _ConfigFile()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None
    except ValidationError as error:
        item = error.errors(include_url=False)[0]
        place = ".".join(map(str, item["loc"]))
        known = ", ".join(Profile.model_fields)
        raise SettingsError(
            f"{place} of {path}: {item['msg'].lower()}; a profile has {known}"
        ) from None
