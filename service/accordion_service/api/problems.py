"""Error responses as `application/problem+json` (RFC 9457), with a stable code, the ID of the
request and the rejected values.
"""

from __future__ import annotations

import re
import sqlite3
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DatabaseError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from accordion_service.api.api_document import build_document
from accordion_service.errors import ApiError, Invalid, TooManyRequests
from accordion_service.schemas.invalid_values import describe_errors, join_items
from accordion_service.schemas.jobs import Problem, ProblemItem
from accordion_service.store.engine.database_errors import ErrorKind, classify_error

MEDIA_TYPE = "application/problem+json"
_REF = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
_CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
}
_DATABASE_SENTENCES: dict[ErrorKind | None, str] = {
    ErrorKind.FULL: "the disk of the database is full; free some space, and try again",
    ErrorKind.READ_ONLY: (
        "the database accepts no changes; make its disk writable, or let ACCORDION_DATABASE_URL"
        " name the primary server, and try again"
    ),
    ErrorKind.DAMAGED: (
        "the database is damaged; stop the service, restore a backup, and start it again"
    ),
    ErrorKind.NO_TABLES: (
        "the database lacks the tables of the service, so it was created anew; restart api and"
        " scheduler, which create them, or before that restore a backup ('accordion restore')"
    ),
}
_log = structlog.get_logger()


def describe_problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses=` of a route: these statuses, and those that every route may return."""
    every = {401, 403, 413, 422, 429, 500, 503, *statuses}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": _REF}
        for status in sorted(every)
    }


def problem_response(scope: Any, status: int, detail: str, **more: Any) -> Response:
    """Build an error response; optional keywords are `code`, `errors` and `headers`."""
    body = Problem(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=more.get("code") or _CODES.get(status, HTTPStatus(status).name.lower()),
        request_id=scope.get("state", {}).get("request_id", ""),
        errors=more.get("errors", []),
    )
    return JSONResponse(
        body.model_dump(mode="json"), status, headers=more.get("headers"), media_type=MEDIA_TYPE
    )


def api_error_response(scope: Any, error: ApiError) -> Response:
    """Build the response to an error of this service."""
    headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "2"}}.get(error.status)
    if isinstance(error, TooManyRequests):
        headers = {"Retry-After": str(error.retry_after_s)}
    items = (
        [ProblemItem(pointer=error.pointer, detail=str(error))]
        if isinstance(error, Invalid)
        else []
    )
    return problem_response(
        scope, error.status, str(error), code=error.code, errors=items, headers=headers
    )


def crash_response(scope: Any, error: Exception) -> Response:
    """Build the response to an unexpected error; the traceback goes only to the log."""
    request_id = scope.get("state", {}).get("request_id", "")
    return problem_response(
        scope, 500, explain_crash(scope["path"], request_id, error), code="internal"
    )


def explain_crash(path: str, request_id: str, error: Exception) -> str:
    """Log an unexpected error and return what users may know of it."""
    _log.error("crash", path=path, exc_info=error)
    return f"the service failed; see its log for request {request_id}"


def install_problems(app: FastAPI) -> None:
    """Return every error in one format, and declare it in the schema."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    for kind in (DatabaseError, PoolTimeout):
        app.add_exception_handler(kind, _database_error)
    app.openapi = lambda: build_document(app)  # type: ignore[method-assign]


def _api_error(request: Request, error: Exception) -> Response:
    return api_error_response(
        request.scope, error if isinstance(error, ApiError) else ApiError(str(error))
    )


def _validation_error(request: Request, error: Exception) -> Response:
    found = error.errors() if isinstance(error, RequestValidationError) else []
    if any(item["loc"] == ("body",) and isinstance(item.get("input"), bytes) for item in found):
        given = request.headers.get("content-type", "missing")
        return problem_response(
            request.scope, 415, f"Content-Type is {given}; send the body as application/json"
        )
    if any(item["type"] == "json_invalid" for item in found):
        reason = found[0].get("ctx", {}).get("error", "it cannot be read")
        return problem_response(
            request.scope, 400, f"the body is not valid JSON: {reason}", code="invalid_json"
        )
    items = describe_errors(found, _body_type(request), getattr(error, "body", None))
    detail = join_items(items, len(found))
    return problem_response(request.scope, 422, detail, code="invalid", errors=items)


def _body_type(request: Request) -> Any:
    """Return the type of the body that the route of a request accepts; None if it accepts none."""
    dependant = getattr(request.scope.get("route"), "dependant", None)
    params = getattr(dependant, "body_params", None) or []
    return getattr(params[0].field_info, "annotation", None) if params else None


def _http_error(request: Request, error: Exception) -> Response:
    known = error if isinstance(error, HTTPException) else HTTPException(500)
    path, method = request.scope["path"], request.scope["method"]
    headers = {name.lower(): value for name, value in (known.headers or {}).items()}
    detail = str(known.detail)
    if known.status_code == HTTPStatus.NOT_FOUND:
        detail = f"there is no route {path}; /docs lists all routes"
    if known.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["allow"] = ", ".join(_methods_of(request.app, path)) or headers.get("allow", "")
        detail = f"{path} does not allow {method}; it allows {headers['allow']}"
    return problem_response(request.scope, known.status_code, detail, headers=headers)


def _methods_of(app: FastAPI, path: str) -> list[str]:
    """Return all methods of a path; the framework names only those of its first route."""
    for template, operations in build_document(app)["paths"].items():
        if re.fullmatch(re.sub(r"\\{[^}]+\\}", "[^/]+", re.escape(template)), path):
            return sorted(name.upper() for name in operations)
    return []


def _database_error(request: Request, error: Exception) -> Response:
    return database_problem(request.scope, error)


def database_problem(scope: Scope, error: Exception) -> Response:
    """Build the response to a database error: 503 if the database takes nothing now, else 500."""
    detail = explain_database_error(error)
    if detail is None:
        return crash_response(scope, error)
    return problem_response(scope, 503, detail, code="unavailable", headers={"Retry-After": "2"})


def explain_database_error(error: Exception) -> str | None:
    """Log a database error and return what to do about it; None if a mistake of the service caused
    it.
    """
    kind = classify_error(error)
    # SQLite raises the same error for an invalid statement as for a file that it cannot open.
    code = getattr(getattr(error, "orig", None), "sqlite_errorcode", None)
    away = isinstance(error, OperationalError | PoolTimeout) and code != sqlite3.SQLITE_ERROR
    broke_off = isinstance(error, InternalError) and error.connection_invalidated
    if kind in {None, ErrorKind.OTHER} and not (away or broke_off):
        return None
    _log.error("database", error=str(error))
    return _DATABASE_SENTENCES.get(kind, "the database does not respond; try again in a moment")
