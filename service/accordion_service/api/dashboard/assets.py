"""Static files of the pages, by name. Only names in the table are served, which prevents path
traversal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from accordion_service.errors import SettingsError

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """One static file."""

    path: Path
    media_type: str


@cache
def list_assets() -> Mapping[str, Asset]:
    """Return all files by their name in the URL.

    Raises:
        SettingsError: plotly, which contains the chart code, is not installed.
    """
    found = {
        str(path.relative_to(STATIC)): path
        for path in STATIC.rglob("*")
        if path.suffix in MEDIA_TYPES
    }
    found["plotly.min.js"] = _find_plotly()
    return {
        name: Asset(path=path, media_type=MEDIA_TYPES[path.suffix]) for name, path in found.items()
    }


@cache
def compute_fingerprint() -> str:
    """Return a digest of all files. It is part of every URL, so that browsers can cache files."""
    digest = hashlib.sha256(version("plotly").encode())
    for name, asset in sorted(list_assets().items()):
        if asset.path.is_relative_to(STATIC):
            digest.update(name.encode() + asset.path.read_bytes())
    return digest.hexdigest()[:12]


def _find_plotly() -> Path:
    # Importing plotly would take longer than the whole start of the API.
    found = find_spec("plotly")
    if found is None or found.origin is None:
        raise SettingsError(
            "plotly is not installed, and the charts need it; run pip install"
            " 'accordion-train[service]'"
        )
    return Path(found.origin).parent / "package_data" / "plotly.min.js"
