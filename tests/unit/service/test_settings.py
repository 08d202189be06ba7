"""Settings: sources of values, and errors about wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from accordion_client.machine.connection import service_token
from accordion_service.access.guards import access_of, is_loopback
from accordion_service.errors import SettingsError
from accordion_service.settings.settings import load_settings


def test_nothing_needs_to_be_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = load_settings()
    assert settings.database == f"sqlite:///{tmp_path}/.accordion/accordion.db"
    assert settings.storage_of("j") == f"{tmp_path}/.accordion/storage/j"
    assert settings.token() is None


def test_a_keyword_wins_over_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCORDION_PORT", "9000")
    assert load_settings().port == 9000
    assert load_settings(port=9001).port == 9001


def test_rays_own_variables_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "t")
    settings = load_settings()
    assert (settings.ray_address, settings.ray_auth_token()) == ("10.0.0.1:6379", "t")


def test_postgresql_gets_its_driver() -> None:
    assert load_settings(database_url="postgresql://h/d").database == "postgresql+psycopg://h/d"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"port": 70000}, "ACCORDION_PORT is 70000: Input should be less than or equal to 65535"),
        (
            {"database_url": "mysql://h/d"},
            "ACCORDION_DATABASE_URL: its scheme is mysql; known are sqlite",
        ),
        ({"database_url": "nonsense"}, "it is no database URL; give one such as sqlite"),
        ({"log_level": "LOUD"}, "ACCORDION_LOG_LEVEL is 'LOUD': known are DEBUG"),
        ({"node_failures": 1}, "ACCORDION_NODE_FAILURES is 1: .*give at least 2, or 0 for never"),
        ({"node_avoid_s": 1e9}, "ACCORDION_NODE_AVOID_S is .*less than or equal to 31536000"),
        ({"prot": 1}, "ACCORDION_PROT is 1: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_value_is_named_with_its_variable(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        load_settings(**given)


def test_a_token_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"ACCORDION_ADMIN_TOKEN_FILE is .*none, which cannot be read"
    ):
        load_settings(admin_token_file=tmp_path / "none").token()


def test_a_token_is_not_shown_when_settings_are() -> None:
    assert "a-secret-of-20-chars" not in repr(load_settings(admin_token="a-secret-of-20-chars"))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *[("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True)],
        *[
            ("0.0.0.0", False),
            ("::", False),
            ("10.0.0.1", False),
            ("example.org", False),
            ("", False),
        ],
    ],
)
def test_only_loopback_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_with_a_token_any_name_is_served_unless_names_are_given() -> None:
    token = "a-secret-of-20-chars"
    assert access_of(load_settings(admin_token=token, host="0.0.0.0")).hosts is None
    named = access_of(load_settings(admin_token=token, allowed_hosts="api.example, other")).hosts
    assert named is not None
    assert {"api.example", "other", "localhost"} <= named


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me:hidden@h/d",
        "postgresql+asyncpg://me:hidden@h/d",
        "postgresql://me:hidden@h:port/d",
    ],
)
def test_a_wrong_database_url_is_not_repeated(url: str) -> None:
    with pytest.raises(SettingsError, match="ACCORDION_DATABASE_URL: it") as raised:
        load_settings(database_url=url)
    assert "hidden" not in str(raised.value)


def test_a_token_of_the_wrong_type_is_not_repeated() -> None:
    with pytest.raises(SettingsError, match="ACCORDION_ADMIN_TOKEN: Input") as raised:
        load_settings(admin_token=["hidden"])
    assert "hidden" not in str(raised.value)


def test_a_token_that_no_header_can_carry_is_refused() -> None:
    with pytest.raises(
        SettingsError,
        match="ACCORDION_ADMIN_TOKEN holds characters other than letters, digits and signs",
    ):
        load_settings(admin_token="é" * 20).token()


def test_a_token_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff" * 20)
    with pytest.raises(SettingsError, match=r"which cannot be read \(it is no text\)"):
        load_settings(admin_token_file=tmp_path / "token").token()


@pytest.mark.parametrize(
    ("text", "fault"),
    [("short", "has 5 characters; give at least 16"), ("é" * 20, "holds characters")],
)
def test_a_wrong_token_in_a_file_is_reported_with_the_file(
    tmp_path: Path, text: str, fault: str
) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(SettingsError) as raised:
        load_settings(user_token_file=file).client_token()
    assert str(raised.value).startswith(f"ACCORDION_TOKEN_FILE is {file}, which {fault}")


def test_a_service_without_a_token_does_not_start_unless_it_is_told_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ACCORDION_NO_AUTH")
    with pytest.raises(
        SettingsError, match=r"every user of this machine could run code as you.*--no-auth"
    ):
        access_of(load_settings())
    assert access_of(load_settings(no_auth=True)).token is None


def test_the_token_of_the_home_keeps_a_loopback_service_to_loopback_names(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token-of-twenty-chars")
    given = {"home": tmp_path, "admin_token_file": tmp_path / "token"}
    assert access_of(load_settings(**given)).hosts == {"localhost", "127.0.0.1", "[::1]"}
    assert access_of(load_settings(**given, host="0.0.0.0")).hosts is None


def test_the_token_of_the_command_line_has_a_variable_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("USER_TOKEN", "of another program")
    assert load_settings().client_token() is None
    monkeypatch.setenv("ACCORDION_TOKEN", "too short")
    with pytest.raises(SettingsError, match="ACCORDION_TOKEN has 9 characters"):
        load_settings().client_token()
    monkeypatch.delenv("ACCORDION_TOKEN")
    file = tmp_path / "token"
    file.write_text("a-token-of-twenty-chars\n")
    monkeypatch.setenv("ACCORDION_TOKEN_FILE", str(file))
    assert load_settings().client_token() == "a-token-of-twenty-chars"
    admin = load_settings(admin_token="the-admin-token-of-the-service")
    assert service_token(admin, "http://127.0.0.1:1") == "a-token-of-twenty-chars"


@pytest.mark.parametrize("name", ["pip_index_url", "pip_extra_index_url"])
def test_a_wrong_package_index_is_not_repeated(name: str) -> None:
    given = "https://a.example ada:s3cret-of-ada@b.example"
    with pytest.raises(SettingsError) as caught:
        load_settings(**{name: given})
    assert f"ACCORDION_{name.upper()}: it is no URL; give one such as" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_package_index_is_not_shown_when_settings_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCORDION_PIP_INDEX_URL", "https://ada:s3cret-of-ada@a.example/simple")
    monkeypatch.setenv("ACCORDION_PIP_ENABLED", "false")
    settings = load_settings()
    assert not settings.pip_enabled
    assert "s3cret" not in repr(settings)
