"""Applies the library's checks to a requested override, and names the field that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from accordion.errors import OverrideError
from service.errors import Invalid


@contextmanager
def invalid_fields() -> Iterator[None]:
    """Refuse a request with an override that the library rejects.

    Raises:
        Invalid: an OverrideError was raised inside; it points to the field of the request.
    """
    try:
        yield
    except OverrideError as error:
        raise Invalid(str(error), f"/{error.field}" if error.field else "") from error
