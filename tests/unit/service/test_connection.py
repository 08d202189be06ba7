"""Finding the service, and the addresses to which the home directory's token is sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from accordion_client.machine.connection import service_token
from accordion_service.errors import SettingsError, StartError
from accordion_service.settings.home import Home, Running
from accordion_service.settings.settings import load_settings


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home directory in which a service runs on port 9."""
    home = Home(tmp_path)
    home.make()
    with home.locked():
        home.make_secrets()
        urls = {"url": "http://127.0.0.1:9", "ray_address": "127.0.0.1:8", "ray_dir": "/tmp/none"}
        home.write(Running(pid=7, pids={}, token_file=str(home.token), **urls))
        yield home


def token_for(home: Home, url: str, **settings: str) -> str | None:
    return service_token(load_settings(home=home.path, **settings), url)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://127.0.0.1:9/", "http://localhost:9"])
def test_the_service_of_this_home_is_shown_its_token(home: Home, url: str) -> None:
    assert token_for(home, url) == home.token.read_text()


def test_a_token_of_this_home_that_is_gone_is_named_by_its_path(home: Home) -> None:
    home.token.unlink()
    with pytest.raises(SettingsError, match=rf"^{home.token}, .* set ACCORDION_TOKEN"):
        token_for(home, "http://127.0.0.1:9")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8080", "http://example.org:9", "https://127.0.0.1:9", "nonsense"]
)
def test_no_other_service_is_shown_the_token_of_this_home(home: Home, url: str) -> None:
    assert token_for(home, url) is None


def test_a_token_that_is_set_wins(home: Home) -> None:
    assert (
        token_for(home, "http://127.0.0.1:9", admin_token="a-token-of-twenty-chars")
        == "a-token-of-twenty-chars"
    )


def test_a_port_that_a_stranger_took_after_the_service_ended_is_shown_nothing(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path)
    home.make()
    with home.locked():
        home.make_secrets()
    assert token_for(home, "http://127.0.0.1:9") is None


def test_a_home_of_another_user_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(
        StartError, match=r"cannot be used \(Permission denied\); name another with ACCORDION_HOME"
    ):
        Home(tmp_path).running()
