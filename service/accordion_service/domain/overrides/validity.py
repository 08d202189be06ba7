"""Applies the library's checks to a requested override, and names the field that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from accordion.base.errors import OverrideError
from accordion.base.messages import Level
from accordion.config import Config
from accordion_service.errors import Invalid


def check_effect(level: Level, config: Config) -> None:
    """Check that the first override of a job can change something.

    Raises:
        OverrideError: the job never compresses, and the level does not either.
    """
    is_uncompressed = config.method == "none" and not config.by_layer
    if level.method == "none" and is_uncompressed and config.policy != "cost_aware":
        raise OverrideError(
            f"level is {level.name!r}, which changes nothing: compression.method is none, whose low"
            " and high are the same; give options of another method, such as method=powersgd,"
            " or clone the job with another compression.method",
            "level",
        )


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
