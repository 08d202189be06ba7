"""A service with users, for the tests of who may do what."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import iter_route_contexts
from fastapi.testclient import TestClient

from accordion_service.api.callers import RequiredScope
from accordion_service.domain.access import Role, Scope
from tests.api.world import DIGITS, Clock

ADMIN = "the-admin-token-of-the-settings"
JOBS = "/api/v1/jobs"
DAY_S = 86_400.0
WRITES = {"POST", "PATCH", "PUT", "DELETE"}
EVERYBODY, ANY_TOKEN = "everybody", "any token"
RULES = {
    "/livez": EVERYBODY,
    "/readyz": EVERYBODY,
    "/login": EVERYBODY,
    "/login/code": EVERYBODY,
    "/login/oidc": EVERYBODY,
    "/login/oidc/callback": EVERYBODY,
    "/logout": EVERYBODY,
    "/static/docs": EVERYBODY,
    "/static/pages/{version}/{name:path}": EVERYBODY,
    "/openapi.json": ANY_TOKEN,
    "/docs": ANY_TOKEN,
    "/docs/oauth2-redirect": ANY_TOKEN,
    "/redoc": ANY_TOKEN,
    "/audit": Scope.AUDIT,
}
"""Rules of the routes without a dependency that requires a scope, by path."""
PLAN = {"spec": {**DIGITS, "workers": {"max": 2}}, "link": {"mbit_per_s": 100.0}}


@dataclass
class Team:
    """A service with users."""

    app: FastAPI
    client: TestClient
    clock: Clock

    def call(self, token: str, method: str, path: str, **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {token}", **more.pop("headers", {})}
        return self.client.request(method, path, headers=headers, **more)

    def user(self, name: str, role: Role = Role.EDITOR, **token: Any) -> str:
        """Add a user; return a token."""
        added = self.call(ADMIN, "POST", "/api/v1/users", json={"name": name, "role": role})
        assert added.status_code == 201, added.text
        return self.token(ADMIN, user=name, **token)

    def token(self, by: str, **asked: Any) -> str:
        made = self.call(by, "POST", "/api/v1/tokens", json={"label": "test", **asked})
        assert made.status_code == 201, made.text
        token: str = made.json()["token"]
        return token

    def submit(self, token: str, **more: Any) -> str:
        made = self.call(token, "POST", JOBS, json=DIGITS, **more)
        assert made.status_code in {200, 201}, made.text
        job_id: str = made.json()["id"]
        return job_id

    def audit(self, **params: Any) -> list[dict[str, Any]]:
        found = self.call(ADMIN, "GET", "/api/v1/audit", params=params).json()["items"]
        assert isinstance(found, list)
        return found


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():  # pytest's time limit ends it
        time.sleep(0.05)


def at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def id_of(token: str) -> str:
    return token.split("_")[1]


def all_routes(app: FastAPI) -> list[Any]:
    """Every route, with its prefix and all dependencies: of the API, of pages and of files."""
    return list(iter_route_contexts(app.routes))


def api_routes(app: FastAPI) -> list[Any]:
    """Every route that requires a scope."""
    return [route for route in all_routes(app) if required_scopes(route)]


def required_scopes(route: Any) -> list[Scope]:
    dependant = getattr(route, "dependant", None)
    return scopes_of(dependant) if dependant is not None else []


def rules_of(route: Any) -> list[str]:
    """Who may use a route; a route with a rule has exactly one."""
    scopes: list[str] = [*required_scopes(route)]
    return scopes + [rule for path, rule in RULES.items() if path == route.path]


def scopes_of(dependant: Dependant) -> list[Scope]:
    own = [dependant.call.scope] if isinstance(dependant.call, RequiredScope) else []
    return own + [scope for inner in dependant.dependencies for scope in scopes_of(inner)]


def calls_of(app: FastAPI) -> Iterator[tuple[str, str, Scope]]:
    """Method, path and required scope of every route with one, for things that are not there."""
    for route in api_routes(app):
        for method in route.methods:
            yield method, fill_path(route.path), required_scopes(route)[0]


def all_calls(app: FastAPI) -> Iterator[tuple[str, str, str]]:
    """Method, path and rule of every route, for things that are not there."""
    for route in all_routes(app):
        for method in getattr(route, "methods", None) or {"GET"}:  # files have no methods
            yield method, fill_path(route.path), rules_of(route)[0]


def fill_path(path: str) -> str:
    """Return a path in which every parameter has a value."""
    path = re.sub(r"{sha256}", "0" * 64, path)
    path = re.sub(r"{name}", "nobody", path)
    return re.sub(r"{\w+(:\w+)?}", "none", path)
