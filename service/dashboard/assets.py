"""Files that the pages load, by name; a name that is not in the table is not served, so no path can
be walked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from service.errors import SettingsError

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """One file."""

    path: Path
    media_type: str


@cache
def assets() -> Mapping[str, Asset]:
    """All files by their name in the address.

    Raises:
        SettingsError: plotly, which brings the chart code, is not installed.
    """
    found = {
        str(path.relative_to(STATIC)): path
        for path in STATIC.rglob("*")
        if path.suffix in MEDIA_TYPES
    }
    found["plotly.min.js"] = _plotly()
    return {
        name: Asset(path=path, media_type=MEDIA_TYPES[path.suffix]) for name, path in found.items()
    }


@cache
def fingerprint() -> str:
    """Changes whenever a file does: part of every address, so that browsers may keep files for
    ever.
    """
    digest = hashlib.sha256(version("plotly").encode())
    for name, asset in sorted(assets().items()):
        if asset.path.is_relative_to(STATIC):
            digest.update(name.encode() + asset.path.read_bytes())
    return digest.hexdigest()[:12]


def _plotly() -> Path:
    # The package is found, not imported: importing it takes longer than the api needs to start.
    found = find_spec("plotly")
    if found is None or found.origin is None:
        raise SettingsError(
            "plotly is not installed, the charts need it; run pip install"
            " 'accordion-train[service]'"
        )
    return Path(found.origin).parent / "package_data" / "plotly.min.js"
