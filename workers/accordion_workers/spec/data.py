"""The part of a job's specification that names its data, and where nodes keep what they fetch.

Loads pydantic, but neither ray nor torch, and fsspec only for URLs.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from accordion_workers.common.storage_url import check_storage_url
from accordion_workers.spec.patterns import DATA_NAME_PATTERN
from accordion_workers.spec.types import Strict

MAX_LOCATIONS = 16
"""Maximum number of locations of a job."""
VARIABLE_PREFIX = "ACCORDION_DATA_"
"""Start of the environment variables with the paths of a job's data."""


def name_variable(name: str) -> str:
    """Return the environment variable with the path of the data of this name."""
    return f"{VARIABLE_PREFIX}{name.upper()}"


def _check_location(location: str) -> str:
    if location.startswith("/"):
        if not location.strip("/."):
            raise ValueError(f"{location!r} is the root of the file system; name a directory in it")
        return location
    if "://" not in location:
        raise ValueError(
            f"{location!r} is neither an absolute path on the workers, such as /mnt/imagenet, nor a"
            " URL, such as s3://bucket/imagenet"
        )
    return check_storage_url(location, what="location")


def _check_number(locations: dict[str, str]) -> dict[str, str]:
    if len(locations) > MAX_LOCATIONS:
        raise ValueError(f"{len(locations)} locations; at most {MAX_LOCATIONS} are fetched")
    return locations


_DataName = Annotated[str, Field(max_length=32, pattern=DATA_NAME_PATTERN)]
_Location = Annotated[str, Field(max_length=1000), AfterValidator(_check_location)]
DataLocations = Annotated[
    dict[_DataName, _Location],
    AfterValidator(_check_number),
    Field(json_schema_extra={"maxProperties": MAX_LOCATIONS}),
]


class DataCache(Strict):
    """Where a node keeps the data that it fetched."""

    folder: str = ""
    """Directory on each node; empty for one in the temporary directory of the workers."""
    max_bytes: int = 0
    """Size up to which data are kept there; 0 if only free disk space limits them."""


__all__ = ["MAX_LOCATIONS", "DataCache", "DataLocations", "name_variable"]
