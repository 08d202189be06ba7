"""An OpenID Connect provider on a port, whose tokens a test may spoil, and a service with it."""

from __future__ import annotations

import base64
import html
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from fastapi.testclient import TestClient
from joserfc import jwt
from joserfc.jwk import RSAKey

from accordion_service.api.app import create_app
from accordion_service.settings.settings import load_settings
from tests.api.conftest import LOCAL
from tests.api.team import ADMIN
from tests.conftest import Require

if TYPE_CHECKING:
    import flask

CLIENT_ID = "accordion"
ROLES = {"ml": "editor", "platform": "operator", "root": "admin"}


@dataclass
class Provider:
    """The provider of a test."""

    app: flask.Flask
    issuer: str = ""
    change_claims: Callable[[dict[str, Any]], object] = lambda _: None
    """Changes the claims of the ID tokens from now on."""
    change_answer: Callable[[Any], Any] = lambda answer: answer
    """Replaces the answer with the tokens from now on."""
    foreign_key: bool = False
    """Sign ID tokens with a key that is not published."""
    is_rotating: bool = False
    """Replace the key at the next request."""
    hits: list[str] = field(default_factory=list)
    """Paths of the requests."""

    def set_user(self, subject: str, **claims: Any) -> None:
        """Add or change a user."""
        httpx2.put(f"{self.issuer}/users/{subject}", json=claims).raise_for_status()

    def log_in(self, url: str, subject: str) -> str:
        """Log in at the provider, as its form does; return the address it redirects to."""
        return str(httpx2.post(url, data={"sub": subject}, timeout=60).headers["location"])

    def before(self) -> None:
        import flask
        from authlib import jose

        self.hits.append(flask.request.path)
        if self.is_rotating:
            self.is_rotating = False
            flask.g.oidc_provider_mock_storage.jwk = jose.RSAKey.generate_key(is_private=True)

    def after(self, response: flask.Response) -> flask.Response:
        import flask

        if flask.request.path != "/oauth2/token" or response.status_code != 200:
            return response
        answer = response.get_json()
        key = flask.g.oidc_provider_mock_storage.jwk.as_dict(is_private=True)
        answer["id_token"] = self._sign(answer["id_token"], key)
        response.set_data(json.dumps(self.change_answer(answer)))
        return response

    def _sign(self, token: str, published: dict[str, Any]) -> str:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        self.change_claims(claims)
        key = RSAKey.generate_key() if self.foreign_key else RSAKey.import_key(published)
        return jwt.encode({"alg": "RS256", "kid": published["kid"]}, claims, key)


@cache
def make_key() -> Any:
    """The key with which all providers begin: making one takes a tenth of a second."""
    from authlib import jose

    return jose.RSAKey.generate_key(is_private=True)


@contextmanager
def run_provider(require: Require) -> Iterator[Provider]:
    """Run a provider inside the block; the test is skipped where its package is not installed."""
    require.package("oidc_provider_mock")
    import oidc_provider_mock
    from werkzeug.serving import make_server

    with pytest.MonkeyPatch.context() as patch:
        key = make_key()
        patch.setattr(type(key), "generate_key", lambda **_: key)
        app = oidc_provider_mock.app()
    provider = Provider(app)
    app.before_request(provider.before)
    app.after_request(provider.after)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    provider.issuer = f"{LOCAL}:{server.server_port}"
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def oidc_settings(issuer: str, **more: Any) -> dict[str, Any]:
    """Settings of a service that uses the provider."""
    return {
        "admin_token": ADMIN,
        "oidc_issuer": issuer,
        "oidc_client_id": CLIENT_ID,
        "oidc_client_secret": "the-secret-of-the-client",
        "oidc_name": "Example",
        "oidc_roles": ROLES,
        **more,
    }


@dataclass
class Browser:
    """A browser of the service."""

    client: TestClient
    provider: Provider

    def begin(self, next_page: str = "/") -> str:
        """Begin a login; return the provider's address."""
        answer = self.client.get("/login/oidc", params={"next": next_page})
        assert answer.status_code == 303, answer.text
        return str(answer.headers["location"])

    def log_in(self, subject: str = "1", next_page: str = "/") -> Any:
        """Log in through the provider; return the service's last response."""
        return self.client.get(self.provider.log_in(self.begin(next_page), subject))

    def whoami(self) -> Any:
        return self.client.get("/api/v1/me")

    def as_admin(self, method: str, path: str, **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {ADMIN}"}
        return self.client.request(method, f"/api/v1{path}", headers=headers, **more)


@contextmanager
def open_browser(home: Path, provider: Provider, **settings: Any) -> Iterator[Browser]:
    """Open a browser of a new service."""
    address = settings.get("url") or LOCAL
    app = create_app(load_settings(home=home, **oidc_settings(provider.issuer, **settings)))
    with TestClient(app, base_url=address, follow_redirects=False) as client:
        yield Browser(client, provider)
    app.state.accordion.database.close()


def log_in_through(provider: Provider, subject: str = "1") -> Callable[[str], None]:
    """Return a browser that opens the address which `accordion login` prints: its user logs in at
    the provider, and confirms.
    """

    def open_address(address: str) -> None:
        with httpx2.Client(
            follow_redirects=True, headers={"Accept": "text/html"}, timeout=60
        ) as browser:
            form = browser.get(address)
            link = re.search(r'href="(/login/oidc[^"]*)"', form.text)
            assert link is not None, form.text
            at_provider = browser.get(form.url.join(html.unescape(link[1])))
            back = browser.get(provider.log_in(str(at_provider.url), subject))
            target = re.search(r'content="0; url=([^"]*)"', back.text)
            assert target is not None, back.text
            page = browser.get(form.url.join(html.unescape(target[1]))).text
            asked = dict(re.findall(r'data-(port|challenge|label)="([^"]*)"', page))
            port = asked.pop("port")
            code = browser.post(form.url.join("/api/v1/login-codes"), json=asked).json()["code"]
            assert browser.get(f"http://127.0.0.1:{port}/favicon.ico").status_code == 404
            assert "close this page" in browser.get(f"http://127.0.0.1:{port}/?code={code}").text

    return open_address


def query_of(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
