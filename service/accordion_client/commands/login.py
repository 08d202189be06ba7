"""`login` and `logout`: of this command line, and of a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from accordion_client.commands.cli_support import JsonOption, UrlOption, connect_client, print_json

if TYPE_CHECKING:
    from accordion_client import Client
    from accordion_service.schemas.accounts import NewToken

LOGIN_TIMEOUT_S = 600.0
"""How long the command waits for the user, in seconds."""
_UNAUTHORIZED = 401
_LABEL_LENGTH = 128
_VERIFIER_BYTES = 48


def login(
    page: Annotated[str, typer.Argument(metavar="[PAGE]", help="path of the page to open")] = "/",
    *,
    port: Annotated[
        int,
        typer.Option(
            "--port",
            metavar="NUMBER",
            min=0,
            max=65535,
            help="port of 127.0.0.1 at which the command waits for the browser; 0 for any free one",
        ),
    ] = 0,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Log in this command line through a browser; if it is logged in, print a link that logs in a
    browser.

    The link works once, within 15 minutes. On a remote machine, choose a port with --port and
    forward it: ssh -L PORT:127.0.0.1:PORT.
    """
    from accordion_client import APIStatusError

    with connect_client(url) as client:
        try:
            link = client.login_link(page)
        except APIStatusError as error:
            if error.status != _UNAUTHORIZED or _is_token_given(url):
                raise
            made = _log_in(client, port)
            _report_login(client, made, as_json=json)
            return
    if json:
        print_json({"url": link})
    else:
        typer.echo(link)


def logout(*, url: UrlOption = "", json: JsonOption = False) -> None:
    """Revoke and forget the token with which `accordion login` logged in this command line."""
    import time

    from accordion_client.machine.connection import service_url
    from accordion_client.machine.profiles import load_client_settings
    from accordion_client.machine.saved_logins import SavedLogins

    settings = load_client_settings(url)
    address, logins = service_url(settings, url), SavedLogins(settings.home)
    token = logins.find(address, time.time())
    if token is not None:
        _revoke(address, token)
    logins.forget(address)
    if json:
        print_json({"url": address, "logged_out": token is not None})
    else:
        typer.echo(f"{'logged out of' if token else 'was not logged in to'} {address}")


def _revoke(address: str, token: str) -> None:
    """Revoke a token, unless it is not accepted any more."""
    from accordion_client import APIStatusError, Client

    with Client(address, token) as client:
        try:
            client.revoke_token(token.split("_")[1])
        except APIStatusError as error:
            if error.status != _UNAUTHORIZED:
                raise


def _is_token_given(url: str) -> bool:
    """Whether the settings name a token, which goes before a saved one."""
    from accordion_client.machine.profiles import load_client_settings

    settings = load_client_settings(url)
    return (settings.client_token() or settings.token()) is not None


def _log_in(client: Client, port: int) -> NewToken:
    """Wait until a browser logs in this command line, and save the token."""
    import secrets
    import socket
    from urllib.parse import urlencode

    from accordion_client.commands.loopback_listener import open_listener
    from accordion_client.machine.saved_logins import SavedLogin, SavedLogins
    from accordion_service.settings.settings import load_settings

    verifier = secrets.token_urlsafe(_VERIFIER_BYTES)
    label = f"command line on {socket.gethostname()}"[:_LABEL_LENGTH]
    with open_listener(port) as listener:
        challenge = _hash_verifier(verifier)
        query = urlencode({"port": listener.port, "challenge": challenge, "label": label})
        typer.echo(f"open in a browser: {client.url}/login/command-line?{query}", err=True)
        code = listener.wait_for_code(LOGIN_TIMEOUT_S)
    made = client.redeem_login_code(code, verifier)
    expires_at = made.expires_at.timestamp() if made.expires_at else 0.0
    saved = SavedLogin(token=made.token, expires_at=expires_at)
    SavedLogins(load_settings().home).save(client.url, saved)
    return made


def _hash_verifier(verifier: str) -> str:
    """Return the challenge of PKCE's method S256 (RFC 7636)."""
    from base64 import urlsafe_b64encode
    from hashlib import sha256

    return urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def _report_login(client: Client, made: NewToken, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "url": client.url,
                "user": made.user,
                "token_id": made.id,
                "expires_at": made.expires_at.isoformat() if made.expires_at else None,
            }
        )
        return
    until = f" until {made.expires_at.astimezone():%Y-%m-%d %H:%M}" if made.expires_at else ""
    typer.echo(f"logged in to {client.url} as {made.user}{until}")
