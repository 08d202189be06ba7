"""`accordion login` and `logout`, with a browser that is played by requests."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from accordion_client.commands import login
from accordion_client.commands.loopback_listener import open_listener
from tests.api.conftest import Live, serve_live
from tests.api.oidc_world import Provider, log_in_through, oidc_settings, run_provider
from tests.conftest import Require
from tests.unit.service.conftest import Accordion, Printed

ADMIN = "the-admin-token-of-the-settings"
pytestmark = pytest.mark.filterwarnings("ignore:get_jwt_config")  # of the provider


@pytest.fixture(scope="module")
def provider(require: Require) -> Iterator[Provider]:
    with run_provider(require) as provider:
        provider.set_user("1", preferred_username="ada", groups=["ml"])
        yield provider


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, provider: Provider) -> Iterator[Live]:
    yield from serve_live(tmp_path_factory.mktemp("guarded"), **oidc_settings(provider.issuer))


@pytest.fixture
def ours(alone: Accordion, guarded: Live, monkeypatch: pytest.MonkeyPatch) -> Accordion:
    """A command line without a token."""
    monkeypatch.setenv("ACCORDION_URL", guarded.url)
    return alone


def test_a_command_line_logs_in_through_the_provider(
    ours: Accordion, provider: Provider, printed: Printed, tmp_path: Path, guarded: Live
) -> None:
    printed(log_in_through(provider))
    said = ours("login")
    assert said.code == 0, said.err
    assert said.out.startswith(f"logged in to {guarded.url} as ada until 20")
    user, place, _, allowed = ours("whoami").out.split(maxsplit=3)
    assert (user, place) == ("ada", "at")
    assert allowed.startswith("(override, read, submit, tokens, until 20")
    assert ours("login").out.startswith(f"{guarded.url}/login?link=")
    [file] = tmp_path.rglob("logins.json")
    assert file.stat().st_mode & 0o777 == 0o600
    tokens = ours("token", "list", "--json").json()["items"]
    assert f"command line on {socket.gethostname()}" in [token["label"] for token in tokens]


def test_a_saved_token_is_sent_to_its_own_service_only(
    ours: Accordion, provider: Provider, printed: Printed
) -> None:
    printed(log_in_through(provider))
    assert ours("login", "--json").json()["user"] == "ada"
    with socket.create_server(("127.0.0.1", 0)) as other:
        seen: list[bytes] = []

        def answer() -> None:
            connection, _ = other.accept()
            seen.append(connection.recv(65536))
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        ours("token", "new", "--url", f"http://127.0.0.1:{other.getsockname()[1]}")
        thread.join()
    assert b"authorization" not in seen[0].lower()


def test_a_logout_revokes_and_forgets_the_token(
    ours: Accordion, provider: Provider, printed: Printed, guarded: Live
) -> None:
    printed(log_in_through(provider))
    token_id = ours("login", "--json").json()["token_id"]
    assert ours("logout").out == f"logged out of {guarded.url}\n"
    assert (ours("whoami").code, ours("logout").code) == (2, 0)
    headers = {"Authorization": f"Bearer {ADMIN}"}
    found = httpx2.get(f"{guarded.url}/api/v1/tokens", params={"user": "ada"}, headers=headers)
    [token] = [one for one in found.json()["items"] if one["id"] == token_id]
    assert token["revoked_at"] is not None


def test_a_code_that_was_made_up_logs_nobody_in(ours: Accordion, printed: Printed) -> None:
    printed(lambda url: httpx2.get(f"http://127.0.0.1:{httpx2.URL(url).params['port']}/?code=x"))
    said = ours("login")
    assert (said.code, "the login code is wrong" in said.err) == (2, True)


def test_a_login_that_nobody_finishes_ends(
    ours: Accordion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "LOGIN_TIMEOUT_S", 0.01)
    said = ours("login")
    assert (said.code, "nobody logged in" in said.err) == (2, True)


def test_a_code_counts_even_if_the_browser_leaves_before_the_response() -> None:
    with open_listener(0) as listener:
        for number in range(20):
            with socket.create_connection(("127.0.0.1", listener.port)) as browser:
                browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                browser.sendall(f"GET /?code={number} HTTP/1.1\r\n\r\n".encode())
            assert listener.wait_for_code(30.0) == str(number)


def test_a_taken_port_is_named(ours: Accordion) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} cannot be used" in ours("login", "--port", port).err


def test_a_wrong_token_of_the_settings_is_an_error(
    ours: Accordion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCORDION_TOKEN", "a-token-that-nobody-knows")
    said = ours("login")
    assert (said.code, "open in a browser" in said.err) == (2, False)
