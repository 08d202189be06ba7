"""Settings of the OpenID Connect provider, and what its claims say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accordion_service.access.oidc_config import is_protected_url, read_oidc_config
from accordion_service.api.app import create_app
from accordion_service.domain.access import Role
from accordion_service.domain.provider_users import choose_role
from accordion_service.errors import SettingsError
from accordion_service.settings.settings import load_settings

SECRET = "the-secret-of-the-client"
WHOLE: dict[str, Any] = {
    "admin_token": "a-token-of-twenty-chars",
    "oidc_issuer": "https://login.example.com/realms/ml",
    "oidc_client_id": "accordion",
    "oidc_client_secret": SECRET,
    "oidc_roles": {"ml": "editor"},
}


def test_without_settings_there_is_no_provider() -> None:
    assert read_oidc_config(load_settings()) is None


def test_settings_are_read_from_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    for name, value in WHOLE.items():
        monkeypatch.setenv(f"ACCORDION_{name.upper()}", str(value))
    monkeypatch.delenv("ACCORDION_OIDC_CLIENT_SECRET")
    monkeypatch.setenv("ACCORDION_OIDC_CLIENT_SECRET_FILE", str(file))
    monkeypatch.setenv("ACCORDION_OIDC_ROLES", '{"cn=ml,ou=x": "operator"}')
    config = read_oidc_config(load_settings())
    assert config is not None
    assert (config.client_secret, config.name) == (SECRET, "login.example.com")
    assert config.roles == {"cn=ml,ou=x": Role.OPERATOR}
    assert SECRET not in repr(config)


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("oidc_issuer", "ACCORDION_OIDC_ISSUER"),
        ("oidc_client_id", "ACCORDION_OIDC_CLIENT_ID"),
        ("oidc_client_secret", "ACCORDION_OIDC_CLIENT_SECRET"),
        ("oidc_roles", "ACCORDION_OIDC_ROLES"),
        ("admin_token", "ACCORDION_ADMIN_TOKEN"),
    ],
)
def test_half_of_the_settings_are_refused_at_the_start(
    tmp_path: Path, missing: str, named: str
) -> None:
    given = {name: value for name, value in WHOLE.items() if name != missing}
    with pytest.raises(SettingsError, match=named):
        create_app(load_settings(home=tmp_path, no_auth=True, **given))
    assert list(tmp_path.iterdir()) == []


def test_one_setting_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCORDION_OIDC_NAME", "Example")
    with pytest.raises(SettingsError, match="also need ACCORDION_OIDC_ISSUER, ACCORDION_OIDC_CLI"):
        read_oidc_config(load_settings())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"oidc_issuer": "http://login.example.com"}, "must begin with https://"),
        ({"oidc_issuer": "login.example.com"}, "give a URL such as"),
        ({"oidc_issuer": "https://"}, "give a URL such as"),
        ({"oidc_issuer": "https://["}, "give a URL such as"),
        ({"oidc_issuer": "https://login.example.com/?x=1"}, "give a URL such as"),
        ({"oidc_scopes": "profile"}, "without 'openid'"),
        ({"oidc_client_secret": " "}, "ACCORDION_OIDC_CLIENT_SECRET has 0 characters"),
    ],
)
def test_a_wrong_setting_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_oidc_config(load_settings(**WHOLE | changed))


@pytest.mark.parametrize("roles", ["ml=editor", "[]", '{"ml": "owner"}'])
def test_roles_that_cannot_be_read_are_refused(monkeypatch: pytest.MonkeyPatch, roles: str) -> None:
    monkeypatch.setenv("ACCORDION_OIDC_ROLES", roles)
    with pytest.raises(SettingsError, match="ACCORDION_OIDC_ROLES"):
        load_settings()


@pytest.mark.parametrize(
    ("url", "is_protected"),
    [
        ("https://login.example.com", True),
        ("http://127.0.0.1:8000/x", True),
        ("http://localhost:8000", True),
        ("http://[::1]:8000", True),
        ("http://login.example.com", False),
        ("http://127.0.0.1.example.com", False),
        ("ftp://127.0.0.1", False),
    ],
)
def test_http_is_for_loopback_only(url: str, is_protected: bool) -> None:
    assert is_protected_url(url) == is_protected


ROLES = {"a": Role.ADMIN, "o": Role.OPERATOR, "e": Role.EDITOR, "v": Role.VIEWER}


@pytest.mark.parametrize(
    ("groups", "role"),
    [
        (["v", "e"], Role.EDITOR),
        (["o", "v", "other"], Role.OPERATOR),
        (["e", "a", "o"], Role.ADMIN),
        ("e", Role.EDITOR),
    ],
)
def test_the_highest_role_of_the_groups_counts(groups: Any, role: Role) -> None:
    assert choose_role(groups, ROLES, None) is role


@pytest.mark.parametrize("groups", [None, [], "admin", ["x"], [["a"], {"a": 1}, 7], {"a": "a"}])
def test_other_groups_give_the_default_role_or_none(groups: Any) -> None:
    assert choose_role(groups, ROLES, Role.VIEWER) is Role.VIEWER
    assert choose_role(groups, ROLES, None) is None
