"""Routes for uploaded code, which a spec refers to by its SHA-256."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Path, Request, Response
from starlette.requests import ClientDisconnect

from accordion_service.api.app_state import AppState
from accordion_service.api.callers import CallerDep, require_scope
from accordion_service.api.deps import NO_QUERY, WRITES, StateDep
from accordion_service.api.problems import describe_problems
from accordion_service.domain.access import Caller, Scope
from accordion_service.domain.audit import AuditAction
from accordion_service.errors import Invalid, NotFound, UnsupportedMediaType
from accordion_service.job_inputs.code import Code, CodeStore
from accordion_service.schemas.jobs import CodeView
from accordion_service.store.writes.audit import append_audit
from accordion_workers.records.contract import JobSpec
from accordion_workers.spec.patterns import SHA256_PATTERN
from accordion_workers.tasks import SCRIPT

ZIP = "application/zip"
router = APIRouter(prefix="/code", tags=["code"], dependencies=[NO_QUERY])
CodeSha = Annotated[str, Path(pattern=SHA256_PATTERN, description="SHA-256 of the archive")]
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {ZIP: {"schema": {"type": "string", "format": "binary"}}},
    }
}
_LOCATION = {"Location": {"description": "URL of the code", "schema": {"type": "string"}}}
_MIN_SIMILARITY = 0.8
"""Similarity of two base names from which one may be a misspelling of the other; those of Python
files are never very different, because they end alike.
"""
_MAX_COMPARED = 20
"""Base names that are compared with that of a missing script: the nearest in length. All of a large
upload would take minutes.
"""
_MAX_COMPARED_CHARS = 40
"""Longest base name to compare, in characters; the time grows with the square of the length."""
_MAX_SIMILAR = 3
"""Files that the error for a missing script names."""
_MAX_SHOWN_CHARS = 80
"""Longest path to show, in characters."""


@router.post(
    "",
    status_code=201,
    dependencies=[require_scope(Scope.SUBMIT), WRITES],
    openapi_extra=_BODY,
    responses={201: {"headers": _LOCATION}, **describe_problems(415)},
)
async def upload_code(
    request: Request, response: Response, *, state: StateDep, caller: CallerDep
) -> CodeView:
    """Upload your own Python modules as a zip file. Put the `sha256` of the response into the field
    `code` of a spec.

    Uploading the same archive again changes nothing. An upload is deleted if no job refers to it
    and no request named it for `ACCORDION_CODE_RETENTION_S` seconds (default: one day). An archive
    is rejected if it contains anything but plain files and folders, or a module whose name is
    already used by Python, by this service or by an installed distribution.
    """
    given = request.headers.get("content-type", "missing")
    if given.partition(";")[0].strip().lower() != ZIP:
        raise UnsupportedMediaType(f"Content-Type is {given}; send the archive as {ZIP}")
    store = store_of(state)
    with store.draft(state.settings.max_code_bytes) as draft:
        try:
            async for piece in request.stream():
                draft.write(piece)
        except ClientDisconnect:
            raise Invalid("the upload was interrupted; send it again") from None
        code = await anyio.to_thread.run_sync(store.keep, draft, limiter=state.upload_checks)
    if code.is_new:
        async with state.write_slots.slot():
            await anyio.to_thread.run_sync(_record_upload, state, caller, code)
    response.headers["Location"] = request.app.url_path_for("get_code", sha256=code.sha256)
    return CodeView.model_validate(code)


@router.get("/{sha256}", dependencies=[require_scope(Scope.READ)], responses=describe_problems(404))
def get_code(sha256: CodeSha, state: StateDep) -> CodeView:
    """Show the size of an upload."""
    return CodeView.model_validate(store_of(state).get(sha256))


def store_of(state: AppState) -> CodeStore:
    """Return the store of uploads."""
    return CodeStore(state.settings.code, state.clock)


def _record_upload(state: AppState, caller: Caller, code: Code) -> None:
    now = state.clock()
    after = {"files": code.files, "size_bytes": code.size_bytes}
    with state.database.write() as session:
        append_audit(
            session, caller, AuditAction.CODE_UPLOADED, subject=code.sha256, after=after, now=now
        )


def check_code(state: AppState, spec: JobSpec, *, place: str = "") -> None:
    """Check that the code of a spec has been uploaded, if it names any, and holds its script;
    `place` is that of the spec in the request.

    A class of the user's is not looked up: its module may be installed on the workers instead.

    Raises:
        Invalid: the code was never uploaded, or has been deleted, or lacks the file of the script.
    """
    if spec.code is None:
        return
    try:
        code = store_of(state).get(spec.code)
    except NotFound as error:
        raise Invalid(str(error), f"{place}/code") from error
    file = str(spec.task.options["file"]) if spec.task.name == SCRIPT else None
    if file is not None and file not in code.names:
        raise Invalid(_describe_missing(file, code), f"{place}/task/options/file")


def _describe_missing(file: str, code: Code) -> str:
    """Describe a script that the code lacks, with the files of the same or a similar name."""
    scripts = sorted(name for name in code.names if name.endswith(".py"))
    similar = _find_similar(file, scripts)[:_MAX_SIMILAR]
    missing = f"there is no {_shorten_path(file)} in the uploaded code {code.sha256}"
    if similar:
        return f"{missing}; did you mean {' or '.join(map(_shorten_path, similar))}?"
    held = ", ".join(map(_shorten_path, scripts[:_MAX_SIMILAR])) or "no .py file"
    more = len(scripts) - _MAX_SIMILAR
    return f"{missing}; it holds {held}{f' and {more} more' if more > 0 else ''}"


def _find_similar(file: str, scripts: Sequence[str]) -> list[str]:
    """Return the scripts with the base name of a file, or else those with a similar one."""
    base = PurePosixPath(file).name
    paths_by_base: dict[str, list[str]] = {}
    for path in scripts:
        paths_by_base.setdefault(PurePosixPath(path).name, []).append(path)
    if base in paths_by_base or len(base) > _MAX_COMPARED_CHARS:
        return paths_by_base.get(base, [])
    short = sorted(name for name in paths_by_base if len(name) <= _MAX_COMPARED_CHARS)
    short.sort(key=lambda name: abs(len(name) - len(base)))
    similar = get_close_matches(base, short[:_MAX_COMPARED], cutoff=_MIN_SIMILARITY)
    return [path for name in similar for path in paths_by_base[name]]


def _shorten_path(path: str) -> str:
    """Return a path in quotes, without its beginning if it is long."""
    is_short = len(path) <= _MAX_SHOWN_CHARS
    return repr(path if is_short else f"...{path[3 - _MAX_SHOWN_CHARS :]}")
