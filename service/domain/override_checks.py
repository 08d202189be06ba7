"""Checks of a requested override before it is stored: the library's, with the field at fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from accordion.errors import OverrideError
from service.errors import Invalid


@contextmanager
def invalid_fields() -> Iterator[None]:
    """Refuse a request whose override the library refuses.

    Raises:
        Invalid: an OverrideError was raised inside; it points to the field of the request.
    """
    try:
        yield
    except OverrideError as error:
        raise Invalid(str(error), f"/{error.field}" if error.field else "") from error
