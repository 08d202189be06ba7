"""The OpenAPI document of the REST API: what FastAPI derives from the routes, the token that they
need, and links from a created object to the operations on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from accordion_service.schemas.history import GapView
from accordion_service.schemas.jobs import EventView, Problem

SECURITY_SCHEME = "token"
"""Name of the only security scheme."""
OPEN_TO_EVERYBODY = frozenset({"livez", "readyz"})
"""Operations that need no token."""
_METHODS = frozenset({"get", "put", "post", "delete", "patch"})
_TOKEN = {
    "type": "http",
    "scheme": "bearer",
    "description": (
        "A token of `accordion token new`, of `accordion login`, or the admin token of the"
        " settings. A browser that has logged in may send its session cookie instead. A service"
        " that runs with `--no-auth` needs neither."
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Creation:
    """An operation that creates an object."""

    operation: str
    status: str
    item: str
    """Path of the object."""
    field: str
    """Field of the response with the value of the last parameter of this path."""


_CREATIONS = (
    _Creation(operation="submit", status="201", item="/api/v1/jobs/{job_id}", field="id"),
    _Creation(operation="clone", status="201", item="/api/v1/jobs/{job_id}", field="id"),
    _Creation(
        operation="add_override",
        status="202",
        item="/api/v1/jobs/{job_id}/overrides/{override_id}",
        field="id",
    ),
    _Creation(operation="add_plan", status="202", item="/api/v1/plans/{plan_id}", field="id"),
    _Creation(operation="add_token", status="201", item="/api/v1/tokens/{token_id}", field="id"),
    _Creation(operation="add_user", status="201", item="/api/v1/users/{name}", field="name"),
    _Creation(operation="add_webhook", status="201", item="/api/v1/webhooks/{name}", field="name"),
    _Creation(operation="upload_code", status="201", item="/api/v1/code/{sha256}", field="sha256"),
)


def build_document(app: FastAPI) -> dict[str, Any]:
    """Return the document; it is built once."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        _add_models(document)
        _require_token(document)
        _add_links(document)
        app.openapi_schema = document
    return app.openapi_schema


def list_operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """List all operations with their paths."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method in _METHODS:
                yield path, operation


def _add_models(document: dict[str, Any]) -> None:
    """Add the models that no route declares as its response."""
    models = document.setdefault("components", {}).setdefault("schemas", {})
    for model in (Problem, EventView, GapView):
        own = model.model_json_schema(ref_template="#/components/schemas/{model}")
        models.update(own.pop("$defs", {}))
        models[model.__name__] = own


def _require_token(document: dict[str, Any]) -> None:
    document["components"]["securitySchemes"] = {SECURITY_SCHEME: _TOKEN}
    document["security"] = [{SECURITY_SCHEME: []}]
    for _, operation in list_operations(document):
        if operation["operationId"] in OPEN_TO_EVERYBODY:
            operation["security"] = []


def _add_links(document: dict[str, Any]) -> None:
    operations = {operation["operationId"]: operation for _, operation in list_operations(document)}
    for creation in _CREATIONS:
        response = operations[creation.operation]["responses"][creation.status]
        response["links"] = {
            operation["operationId"]: {
                "operationId": operation["operationId"],
                "parameters": _link_parameters(creation),
            }
            for path, operation in list_operations(document)
            if path.startswith(creation.item)
            and _list_parameters(path) == _list_parameters(creation.item)
        }


def _link_parameters(creation: _Creation) -> dict[str, str]:
    *given, created = _list_parameters(creation.item)
    values = {name: f"$request.path.{name}" for name in given}
    return {**values, created: f"$response.body#/{creation.field}"}


def _list_parameters(path: str) -> list[str]:
    return re.findall(r"{(\w+)}", path)
