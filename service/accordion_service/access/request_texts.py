"""Validates the texts of a request outside its body: path, query and headers."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from starlette.types import Scope

from accordion_service.errors import Invalid
from accordion_workers.common.plain_text import describe_refused_text

_STORED_HEADERS = (b"idempotency-key", b"if-match", b"last-event-id", b"x-request-id")
"""Headers whose text we store, compare or return; all others must only be free of NUL."""


def check_request_texts(scope: Scope) -> None:
    """Check that path, query and headers are UTF-8 without NUL.

    Raises:
        Invalid: a part is not; the message names it.
    """
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    parts = [
        ("path", unquote_to_bytes(path)),
        ("query", unquote_to_bytes(scope["query_string"].replace(b"+", b" "))),
    ]
    for place, value in (*parts, *_header_texts(scope["headers"])):
        why = _why_refused(value)
        if why is not None:
            raise Invalid(f"{place}: {why}", place)


def _header_texts(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[str, bytes]]:
    for name, value in headers:
        if name in _STORED_HEADERS or b"\0" in value:
            yield f"header/{name.decode('latin-1')}", value


def _why_refused(value: bytes) -> str | None:
    try:
        return describe_refused_text(value.decode())
    except UnicodeDecodeError as error:
        shown = ascii(value.decode(errors="backslashreplace"))[:80]
        return f"{shown} is not UTF-8 (byte {error.start}); send the text as UTF-8"
