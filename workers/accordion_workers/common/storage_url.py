"""Check the URL of a checkpoint storage, or of data, in a spec; loads fsspec, and no filesystem of
it.
"""

from __future__ import annotations

import importlib.util
from urllib.parse import urlsplit

_PACKAGE_OF = {
    "arrow_hdfs": "pyarrow",
    "dbfs": "requests",
    "hdfs": "pyarrow",
    "sftp": "paramiko",
    "smb": "smbprotocol",
    "ssh": "paramiko",
    "webhdfs": "requests",
}
"""Packages that filesystems of fsspec itself need; others need the package of their class."""
_NO_STORAGE = frozenset(
    {
        "async_wrapper",
        "asynclocal",
        "asyncwrapper",
        "blockcache",
        "cached",
        "data",
        "dir",
        "filecache",
        "generic",
        "git",
        "github",
        "http",
        "https",
        "jlab",
        "jupyter",
        "libarchive",
        "reference",
        "simplecache",
        "tar",
        "zip",
    }
)
"""Filesystems of fsspec that cannot be written or that wrap another one."""


def check_storage_url(url: str, *, what: str = "storage") -> str:
    """Return the URL of a storage if it can be one; nothing is opened. `what` names it in errors.

    Raises:
        ValueError: the URL cannot be used; the message says what to change.
    """
    place = urlsplit(url)
    if not place.scheme or "://" not in url or "::" in url:
        raise ValueError(
            f"{what} {url!r} is no URL; give one such as s3://bucket/path or file:///mnt/shared"
        )
    if place.password is not None:
        raise ValueError(
            f"{what} on {place.hostname!r} carries a password, and the spec is visible to all"
            " users; leave it out and set it in the workers' environment"
        )
    if place.scheme == "memory":
        raise ValueError(
            f"{what} memory:// is seen by one process only; give a place that all workers reach"
        )
    if place.scheme in {"file", "local"} and (place.netloc or not place.path.strip("/")):
        raise ValueError(
            f"{what} {url!r} names no directory; give an absolute path, such as file:///mnt/shared"
        )
    if place.scheme in {"file", "local"} and ("?" in url or "#" in url):
        raise ValueError(
            f"{what} {url!r} has a ? or #, at which the path of a URL ends; write %3F or %23"
        )
    if not (place.netloc + place.path).strip("/"):
        raise ValueError(
            f"{what} {url!r} names no place; give a bucket or a host, such as s3://bucket/path"
        )
    _check_protocol(place.scheme, what)
    return url


def _check_protocol(protocol: str, what: str) -> None:
    from fsspec.registry import known_implementations, registry

    if protocol in registry:
        return
    if protocol in _NO_STORAGE or protocol not in known_implementations:
        known = ", ".join(sorted(known_implementations.keys() - _NO_STORAGE - {"memory"}))
        raise ValueError(
            f"{what} has the protocol {protocol!r}, which is not that of a storage; known are"
            f" {known}"
        )
    package = known_implementations[protocol]["class"].partition(".")[0]
    package = _PACKAGE_OF.get(protocol, package)
    if importlib.util.find_spec(package) is None:
        raise ValueError(
            f"{what} {protocol}:// needs the package {package}, which is not installed; run pip"
            f" install {package}, for the workers too"
        )


__all__ = ["check_storage_url"]
