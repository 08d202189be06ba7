"""Logs users in at an OpenID Connect provider: authorization code flow with PKCE, state and nonce.

Authlib sends the requests, joserfc checks signatures. Waiting for the provider occupies no thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import structlog
from authlib.common.errors import AuthlibBaseError
from authlib.common.security import generate_token
from authlib.integrations.httpx_client import AsyncOAuth2Client
from authlib.oidc.core import CodeIDToken
from authlib.oidc.discovery import get_well_known_url
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from accordion_service.access.oidc_config import OidcConfig, is_protected_url
from accordion_service.domain.provider_users import ProviderUser, is_subject, read_claims
from accordion_service.errors import ApiError, Unauthorized, Unavailable

TIMEOUT_S = 10.0
"""Timeout in seconds of a request to the provider."""
METADATA_KEPT_S = 3600.0
"""How long the provider's discovery document is used again."""
LEEWAY_S = 60
"""How far the provider's clock may differ, in seconds."""
_ALGORITHMS = [f"{family}{bits}" for family in ("RS", "PS", "ES") for bits in (256, 384, 512)]
"""Accepted signatures: only those that need the provider's private key."""
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
"""Addresses that the discovery document must have."""
_SECRET_LENGTH = 48
"""Characters of state, nonce and verifier: 285 random bits."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSecrets:
    """Secrets of one login, which its browser keeps in a cookie."""

    state: str
    nonce: str
    verifier: str


class WrongDocumentError(Exception):
    """A document of the provider has another form than it should."""


class OidcProvider:
    """The provider of the settings. Used on the event loop only, so nothing is locked."""

    def __init__(self, config: OidcConfig, clock: Callable[[], float]) -> None:
        self.config = config
        self._clock = clock
        self._metadata: Mapping[str, Any] = {}
        self._metadata_read_at = 0.0
        self._keys: KeySet | None = None

    async def begin_login(self, redirect_uri: str) -> tuple[str, LoginSecrets]:
        """Return the address at which the user logs in, and the secrets of this login.

        Raises:
            Unavailable: the provider does not respond as it should.
        """
        secrets = LoginSecrets(
            state=generate_token(_SECRET_LENGTH),
            nonce=generate_token(_SECRET_LENGTH),
            verifier=generate_token(_SECRET_LENGTH),
        )
        async with self._connect() as client:
            metadata = await self._read_metadata(client)
            url, _ = client.create_authorization_url(
                metadata["authorization_endpoint"],
                redirect_uri=redirect_uri,
                state=secrets.state,
                nonce=secrets.nonce,
                code_verifier=secrets.verifier,
            )
        return str(url), secrets

    async def finish_login(
        self, code: str, secrets: LoginSecrets, *, redirect_uri: str
    ) -> ProviderUser:
        """Exchange the code of the redirect for the user who logged in.

        Raises:
            Unavailable: the provider does not respond as it should.
            Unauthorized: the provider refuses the code, or its ID token is not accepted.
        """
        async with self._connect() as client:
            metadata = await self._read_metadata(client)
            with _reading("the discovery document"):
                client.token_endpoint_auth_method = _choose_auth_method(metadata)
            with _reading("the answer with the token"):
                token = await client.fetch_token(
                    metadata["token_endpoint"],
                    grant_type="authorization_code",
                    code=code,
                    redirect_uri=redirect_uri,
                    code_verifier=secrets.verifier,
                )
            claims = await self._read_id_token(client, token, secrets.nonce)
            claims = await self._add_user_info(client, claims)
        config = self.config
        if not is_subject(claims["sub"]):
            raise self._unacceptable("its subject is not a text of 1 to 255 ASCII characters")
        return read_claims(
            claims,
            issuer=config.issuer,
            user_claim=config.user_claim,
            groups_claim=config.groups_claim,
            roles=config.roles,
            default_role=config.default_role,
        )

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Any]:
        """Open a connection, and translate its errors."""
        client = AsyncOAuth2Client(
            self.config.client_id,
            self.config.client_secret,
            scope=self.config.scopes,
            code_challenge_method="S256",
            timeout=TIMEOUT_S,
            leeway=0,
        )
        try:
            async with client:
                yield client
        except ApiError:
            raise
        except AuthlibBaseError as error:
            raise Unauthorized(
                f"{self.config.name} refuses the login ({error}); log in again"
            ) from error
        except JoseError as error:
            raise self._unacceptable(str(error)) from error
        except (httpx2.HTTPError, httpx2.InvalidURL, WrongDocumentError) as error:
            # Addresses of the provider are for the log only: anybody can open the login page.
            reason = f"{type(error).__name__}: {error}"
            _log.warning("the OpenID Connect provider fails", reason=reason)
            raise Unavailable(
                f"{self.config.name} does not respond as it should, and the log of the service says"
                " why; try again later, or log in with a token"
            ) from error

    async def _read_metadata(self, client: Any) -> Mapping[str, Any]:
        """Return the discovery document."""
        age_s = self._clock() - self._metadata_read_at
        if not self._metadata or not 0 <= age_s < METADATA_KEPT_S:
            metadata = await _get_json(client, get_well_known_url(self.config.issuer, True))
            if metadata.get("issuer") != self.config.issuer:
                raise WrongDocumentError(f"it names itself {metadata.get('issuer')!r}")
            if missing := [key for key in _ENDPOINTS if key not in metadata]:
                raise WrongDocumentError(f"the discovery document lacks {', '.join(missing)}")
            ends = [key for key in metadata if key.endswith("_endpoint") or key == "jwks_uri"]
            if unsafe := [key for key in ends if not is_protected_url(str(metadata[key]))]:
                raise WrongDocumentError(f"{', '.join(unsafe)} is not https")
            self._metadata, self._metadata_read_at = metadata, self._clock()
        return self._metadata

    async def _read_id_token(
        self, client: Any, token: Mapping[str, Any], nonce: str
    ) -> Mapping[str, Any]:
        """Return the claims of a valid ID token (OpenID Connect Core 1.0, section 3.1.3.7)."""
        config = self.config
        with _reading("the answer with the token"):
            text = str(token["id_token"])
        decoded = await self._check_signature(client, text)
        claims = CodeIDToken(
            decoded.claims,
            decoded.header,
            {
                "iss": {"essential": True, "values": [config.issuer]},
                "aud": {"essential": True, "values": [config.client_id]},
            },
            {
                "nonce": nonce,
                "client_id": config.client_id,
                "access_token": token.get("access_token"),
            },
        )
        with _reading("the ID token"):
            claims.validate(now=int(self._clock()), leeway=LEEWAY_S)
        return dict(claims)

    async def _check_signature(self, client: Any, text: str) -> jwt.Token:
        """Check a signature with the known keys, and if that fails with those of now: providers
        replace their keys.
        """
        registry = JWSRegistry(algorithms=_ALGORITHMS, strict_check_header=False)
        if self._keys is not None:
            try:
                with _reading("the ID token"):
                    return jwt.decode(text, self._keys, registry=registry)
            except JoseError:
                _log.info("the keys of the OpenID Connect provider are read again")
        found = await _get_json(client, self._metadata["jwks_uri"])
        with _reading("the keys"):
            self._keys = KeySet.import_key_set(found)  # type: ignore[arg-type]
        with _reading("the ID token"):
            return jwt.decode(text, self._keys, registry=registry)

    async def _add_user_info(self, client: Any, claims: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask for claims that the ID token does not have."""
        url = self._metadata.get("userinfo_endpoint")
        if not url or {self.config.user_claim, self.config.groups_claim} <= claims.keys():
            return claims
        found = await _get_json(client, url, withhold_token=False)
        if found.get("sub") != claims["sub"]:
            raise self._unacceptable("the user info is that of another user")
        return {**found, **claims}

    def _unacceptable(self, reason: str) -> Unauthorized:
        _log.warning("an ID token of the OpenID Connect provider is refused", reason=reason)
        return Unauthorized(
            f"the login of {self.config.name} is not accepted ({reason}); log in again, and if that"
            " does not help, ask an admin"
        )


async def _get_json(client: Any, url: str, *, withhold_token: bool = True) -> dict[str, Any]:
    response = await client.request("GET", url, withhold_token=withhold_token)
    response.raise_for_status()
    with _reading(url):
        found = response.json()
    if isinstance(found, dict):
        return found
    raise WrongDocumentError(f"{url} returned no JSON object")


@contextmanager
def _reading(document: str) -> Iterator[None]:
    """Translate what a library raises on a document of another form than it should have.

    Raises:
        WrongDocumentError: it has another form.
    """
    try:
        yield
    except (ApiError, AuthlibBaseError, JoseError, httpx2.HTTPError, httpx2.InvalidURL):
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WrongDocumentError(f"{document}: {type(error).__name__}: {error}") from error


def _choose_auth_method(metadata: Mapping[str, Any]) -> str:
    """Return how the service identifies itself; providers that name no method take the first."""
    supported = metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
    return "client_secret_basic" if "client_secret_basic" in supported else "client_secret_post"
