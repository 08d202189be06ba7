"""The part of a job's specification that names packages, and records of what they resolve to.

Loads pydantic and packaging, but neither ray nor torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import AfterValidator, Field

from accordion_workers.common.secret_mask import mask_url_logins
from accordion_workers.spec.public_records import Package
from accordion_workers.spec.types import Strict

MAX_REQUIREMENTS = 64
"""Maximum number of requirements of a job."""
MAX_REQUIREMENT_LENGTH = 500
"""Maximum characters of a requirement."""
_ARCHIVE = re.compile(r"\.(whl|zip|tar|t?[gblx]z2?|bz2|lzma)$", re.IGNORECASE)
"""Endings by which pip takes a requirement for the name of a file."""


def _check_requirement(text: str) -> str:
    """Return a requirement in its normal form.

    Raises:
        ValueError: it is an option of pip, a URL or a path, or no requirement.
    """
    if text.lstrip().startswith("-"):
        option = re.split(r"[\s=]", text.strip(), maxsplit=1)[0]
        raise ValueError(
            f"{option} is an option of pip, and only names with versions are accepted; the index is"
            " a setting of the service (ACCORDION_PIP_INDEX_URL)"
        )
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        why = str(error).splitlines()[0]
        raise ValueError(
            f"{mask_url_logins(text)!r} is not a requirement ({mask_url_logins(why)}); give a name"
            " and a version, such as einops==0.8.0; paths and URLs are not accepted"
        ) from None
    # pip takes what follows `===` for a part of a path.
    has_path = any(one.operator == "===" for one in requirement.specifier)
    parts = (requirement.name, str(requirement).partition(";")[0].strip())
    if requirement.url is not None or has_path or any(map(_ARCHIVE.search, parts)):
        raise ValueError(
            f"{requirement.name} is given as a URL or a file, or with ===; give a name and a"
            " version, such as einops==0.8.0, and publish packages of your own on the index of the"
            " service"
        )
    _check_marker(requirement)
    return str(requirement)


def _check_marker(requirement: Requirement) -> None:
    """Check that the marker of a requirement can be evaluated.

    Raises:
        ValueError: it cannot.
    """
    if requirement.marker is None:
        return
    try:
        requirement.marker.evaluate({"extra": ""})
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"the marker of {requirement} cannot be evaluated; compare variables with ==, !=, <, >"
            " or in, such as python_version < '3.12'"
        ) from None


PipRequirements = Annotated[
    tuple[
        Annotated[
            str,
            Field(min_length=1, max_length=MAX_REQUIREMENT_LENGTH),
            AfterValidator(_check_requirement),
        ],
        ...,
    ],
    Field(max_length=MAX_REQUIREMENTS),
]


_ORDINARY_PATHS = frozenset({"", "/simple", "/pypi/simple"})
"""Paths of indexes that hold no token."""


class PipIndex(Strict):
    """Where the packages of jobs come from; URLs may hold a user name and a password."""

    url: str = ""
    """URL of the index; if empty, pip uses its configuration on the head node."""
    extra_urls: str = ""
    """URLs of further indexes, separated by spaces."""

    def list_secret_values(self) -> list[str]:
        """Return the parts of the URLs that may hold a token; programs print URLs in parts."""
        return [
            part for url in f"{self.url} {self.extra_urls}".split() for part in _list_parts(url)
        ]


def _list_parts(url: str) -> Iterator[str]:
    """Yield login, password, path and query of a URL, except an ordinary path."""
    login, _, _ = url.partition("://")[2].partition("/")[0].rpartition("@")
    yield from (login, login.partition(":")[2])
    rest = "/" + url.partition("://")[2].partition("/")[2]
    path, _, query = rest.rstrip("/").partition("?")
    yield query
    if path.rstrip("/") not in _ORDINARY_PATHS:
        yield path.rstrip("/")


class PackagesRecord(Strict):
    """The packages of a job were resolved, and their wheels are in its storage."""

    kind: Literal["packages"] = "packages"
    packages: tuple[Package, ...]
    """Packages that the workers install, by name; empty if the workers have all of them."""
    size_bytes: int
    """Size of their wheels."""
    seconds: float
    """Seconds that it took to resolve and download them."""
