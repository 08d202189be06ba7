"""Settings of the OpenID Connect provider, checked together when the api starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from accordion_service.access.guards import is_loopback
from accordion_service.domain.access import Role
from accordion_service.errors import SettingsError
from accordion_service.settings.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcConfig:
    """A provider, and what its claims mean here."""

    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    name: str
    scopes: str
    user_claim: str
    groups_claim: str
    roles: Mapping[str, Role]
    default_role: Role | None


def read_oidc_config(settings: Settings) -> OidcConfig | None:
    """Return the provider of the settings; None if they name none.

    Raises:
        SettingsError: a setting is missing, or they do not fit together.
    """
    if not any(name.startswith("oidc_") for name in settings.model_fields_set):
        return None
    secret = settings.oidc_secret()
    _check_complete(settings, secret)
    _check_issuer(settings.oidc_issuer)
    return OidcConfig(
        issuer=settings.oidc_issuer,
        client_id=settings.oidc_client_id,
        client_secret=secret or "",
        name=settings.oidc_name or urlsplit(settings.oidc_issuer).netloc,
        scopes=settings.oidc_scopes,
        user_claim=settings.oidc_user_claim,
        groups_claim=settings.oidc_groups_claim,
        roles=settings.oidc_roles,
        default_role=settings.oidc_default_role,
    )


def is_protected_url(url: str) -> bool:
    """Whether nobody between can read what is sent to a URL: it is https, or on this machine."""
    parts = _split_url(url)
    return parts is not None and (
        parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    )


def _check_complete(settings: Settings, secret: str | None) -> None:
    values = {
        "ACCORDION_OIDC_ISSUER": settings.oidc_issuer,
        "ACCORDION_OIDC_CLIENT_ID": settings.oidc_client_id,
        "ACCORDION_OIDC_CLIENT_SECRET (or ACCORDION_OIDC_CLIENT_SECRET_FILE)": secret,
        "ACCORDION_OIDC_ROLES (or ACCORDION_OIDC_DEFAULT_ROLE)": (
            settings.oidc_roles or settings.oidc_default_role
        ),
        "ACCORDION_ADMIN_TOKEN (or ACCORDION_ADMIN_TOKEN_FILE)": settings.token(),
    }
    missing = [name for name, value in values.items() if not value]
    if missing:
        raise SettingsError(
            f"logins through an OpenID Connect provider also need {', '.join(missing)}; set that,"
            " or no ACCORDION_OIDC variable"
        )
    if "openid" not in settings.oidc_scopes.split():
        raise SettingsError(
            f"ACCORDION_OIDC_SCOPES is {settings.oidc_scopes!r}, without 'openid'; add it"
        )


def _check_issuer(issuer: str) -> None:
    parts = _split_url(issuer)
    if parts is None or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise SettingsError(
            f"ACCORDION_OIDC_ISSUER is {issuer!r}; give a URL such as"
            " https://login.example.com/realms/ml"
        )
    if not is_protected_url(issuer):
        raise SettingsError(
            f"ACCORDION_OIDC_ISSUER is {issuer!r}; it must begin with https://, except on loopback"
        )


def _split_url(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None
