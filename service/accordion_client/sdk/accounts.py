"""Requests for users, tokens, quotas, secrets and the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import quote

from accordion_client.sdk.answers import raise_for_status, translate_errors
from accordion_client.sdk.query_params import format_filters, format_params
from accordion_client.sdk.request_sender import RequestSender
from accordion_client.sdk.shared_methods import shared_method

if TYPE_CHECKING:
    from accordion_service.schemas.accounts import (
        AuditPage,
        CallerView,
        NewToken,
        TokenList,
        TokenView,
        UserList,
        UserView,
    )
    from accordion_service.schemas.queries import AuditKeywords
    from accordion_service.schemas.quotas import QuotaList, QuotaView
    from accordion_service.schemas.secrets import SecretList, SecretView


class AccountRequests(RequestSender):
    """Part of `Client` and `AsyncClient`."""

    @shared_method
    async def caller(self) -> CallerView:
        """Get who you are, and what your token allows."""
        from accordion_service.schemas.accounts import CallerView

        return await self._request(CallerView, "GET", "/me")

    @shared_method
    async def users(self) -> UserList:
        """Get all users."""
        from accordion_service.schemas.accounts import UserList

        return await self._request(UserList, "GET", "/users")

    @shared_method
    async def add_user(self, name: str, role: str = "editor") -> UserView:
        """Add a user."""
        from accordion_service.schemas.accounts import UserView

        return await self._request(UserView, "POST", "/users", json={"name": name, "role": role})

    @shared_method
    async def change_user(
        self, name: str, *, role: str | None = None, disabled: bool | None = None
    ) -> UserView:
        """Change the role of a user, or refuse or accept the user's tokens."""
        from accordion_service.schemas.accounts import UserView

        change = {"role": role, "disabled": disabled}
        return await self._request(UserView, "PATCH", f"/users/{name}", json=change)

    @shared_method
    async def tokens(self, user: str | None = None) -> TokenList:
        """Get the tokens of a user, by default yours."""
        from accordion_service.schemas.accounts import TokenList

        params = {"user": user} if user else {}
        return await self._request(TokenList, "GET", "/tokens", params=params)

    @shared_method
    async def add_token(
        self,
        label: str,
        *,
        scopes: Sequence[str] | None = None,
        days: float | EllipsisType | None = ...,
        user: str | None = None,
    ) -> NewToken:
        """Create a token. Only this result contains its text.

        Args:
            label: what it is for.
            scopes: what it allows; None for all that the user's role and your token allow.
            days: until it expires; None for a token that does not expire. By default 90, or as long
                as your own token if that ends earlier.
            user: whose token it is; None for yours.
        """
        from accordion_service.schemas.accounts import NewToken

        body: dict[str, Any] = {
            "label": label,
            "scopes": None if scopes is None else list(scopes),
            "user": user,
        }
        if days is not ...:
            body["days"] = days
        return await self._request(NewToken, "POST", "/tokens", json=body)

    @shared_method
    async def revoke_token(self, token_id: str) -> TokenView:
        """Revoke a token; repeating has no effect."""
        from accordion_service.schemas.accounts import TokenView

        return await self._request(TokenView, "DELETE", f"/tokens/{token_id}", repeatable=True)

    @shared_method
    async def redeem_login_code(self, code: str, verifier: str) -> NewToken:
        """Exchange the code that a logged-in browser brought for a token of its user."""
        from accordion_service.schemas.accounts import NewToken

        body = {"code": code, "verifier": verifier}
        with translate_errors(self.url):
            request = self._http.build_request("POST", "/login/code", json=body)
            response = await self._send(request)
        await raise_for_status(response)
        return self._parse_response(NewToken, response)

    @shared_method
    async def quotas(self) -> QuotaList:
        """Get all quotas, and what the jobs hold of them."""
        from accordion_service.schemas.quotas import QuotaList

        return await self._request(QuotaList, "GET", "/quotas")

    @shared_method
    async def set_quota(
        self,
        *,
        user: str | None = None,
        label: str | None = None,
        jobs: int | None = None,
        workers: int | None = None,
        gpus: float | None = None,
    ) -> QuotaView:
        """Limit what the jobs of a user, or with a label, may hold at the same time.

        Args:
            user: whose jobs; `*` for every user without a quota of their own.
            label: label of the jobs as `key:value`, in place of a user.
            jobs: maximum number of jobs that hold workers; None for no limit.
            workers: maximum number of workers across these jobs; None for no limit.
            gpus: maximum number of GPUs across these jobs; None for no limit.
        """
        from accordion_service.schemas.quotas import QuotaView

        body = {"user": user, "label": label, "jobs": jobs, "workers": workers, "gpus": gpus}
        return await self._request(QuotaView, "PUT", "/quotas", json=body)

    @shared_method
    async def remove_quota(self, *, user: str | None = None, label: str | None = None) -> QuotaView:
        """Remove the quota of a user or a label, and return it."""
        from accordion_service.schemas.quotas import QuotaView

        params = {"user": user} if label is None else {"label": label}
        return await self._request(QuotaView, "DELETE", "/quotas", params=params)

    @shared_method
    async def secrets(self) -> SecretList:
        """Get your secrets, without their values."""
        from accordion_service.schemas.secrets import SecretList

        return await self._request(SecretList, "GET", "/secrets")

    @shared_method
    async def set_secret(self, name: str, value: str, *, force: bool = False) -> SecretView:
        """Set one of your secrets, which jobs refer to in `env`; it replaces the previous value.

        Args:
            name: name of the secret.
            value: its value.
            force: whether to make a new key if that of the service is gone, although other secrets
                were encrypted with it and must then be set again.
        """
        from accordion_service.schemas.secrets import SecretView

        path = f"/secrets/{quote(name, safe='')}"
        params = {"force": "true"} if force else {}
        return await self._request(SecretView, "PUT", path, params=params, json={"value": value})

    @shared_method
    async def remove_secret(self, name: str, *, force: bool = False) -> SecretView:
        """Remove one of your secrets, and return it without its value.

        Args:
            name: name of the secret.
            force: whether to remove it although jobs of yours, or their loggers, need it.
        """
        from accordion_service.schemas.secrets import SecretView

        path = f"/secrets/{quote(name, safe='')}"
        params = {"force": "true"} if force else {}
        return await self._request(SecretView, "DELETE", path, params=params)

    @shared_method
    async def audit(
        self, /, *, limit: int = 50, cursor: int | None = None, **filters: Unpack[AuditKeywords]
    ) -> AuditPage:
        """Get one page of the changes that users made, newest first, that match all given filters.

        Args:
            limit: most entries of the page.
            cursor: `next_cursor` of the previous page.
            filters: such as `user="ada"`, `action="job.cancelled"` or
                `time_after`, a time with a time zone.

        Raises:
            TypeError: there is no such filter.
        """
        from accordion_service.schemas.accounts import AuditPage
        from accordion_service.schemas.queries import AuditKeywords

        params = format_params({"limit": limit, "cursor": cursor})
        params |= format_filters(AuditKeywords, filters)
        return await self._request(AuditPage, "GET", "/audit", params=params)
