"""Resolves the `pip` requirements of a job, once, and keeps the wheels in the job's storage.

Every node installs these wheels (`user_code/packages.py`), in every attempt. Packages that are
installed here, on the head node, are constraints: a job adds packages and replaces none.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from accordion_workers.common.errors import PackagesError
from accordion_workers.common.secret_mask import mask_url_logins
from accordion_workers.records.contract import Launch, Package, PackagesRecord, PipIndex
from accordion_workers.user_code.packages import marker_applies
from accordion_workers.user_code.pip_process import POLL_S, run_pip
from accordion_workers.user_code.resolution import (
    WHEELS,
    Resolution,
    Wheel,
    create_draft,
    publish_draft,
    read_resolution,
    write_resolution,
)

RESOLVE_LIMIT_S = 1800.0
"""How long the packages of a job may take to be resolved and downloaded."""
OUTAGE_PAUSE_S = 10.0
"""Pause after an index did not respond."""
OUTAGE_LIMIT_S = 300.0
"""How long an index may not respond until the job ends; its workers are reserved meanwhile."""
MAX_LOGGED = 10_000
"""Maximum characters of the output of pip in the job's log, if pip failed; the last ones."""
MAX_SHOWN = 200
"""Maximum characters of the requirements in the status of a job."""
_NO_WHEEL = "(from versions: none)"
"""What pip prints if an index has no wheel of a package for this Python."""
_NO_WHEEL_HINT = "; packages are installed from wheels only, so build one if there is none"

log = logging.getLogger(__name__)


class ResolutionStopped(Exception):
    """The job is to stop, and its packages are not resolved yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolutionHost:
    """Services that a resolution needs from its supervisor."""

    is_stopping: Callable[[], bool]
    """Whether the job is to stop."""
    publish_status: Callable[[str], None]
    """Publishes what is done, in one sentence."""
    write_record: Callable[[PackagesRecord], object]
    """Writes the record of a new resolution to the journal, before it counts."""


def resolve_packages(
    launch: Launch,
    host: ResolutionHost,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """Resolve the packages of a job and download their wheels, unless an attempt has done so.

    Raises:
        PackagesError: they cannot be resolved beside what the workers have, or not in time.
        ResolutionStopped: the job is to stop; the next attempt begins again.
        OSError: the storage cannot be read or written.
    """
    storage, began = Path(launch.storage), clock()

    def raise_if_stopped() -> None:
        if host.is_stopping():
            raise ResolutionStopped
        if clock() - began >= RESOLVE_LIMIT_S:
            raise PackagesError(
                f"the packages of the job were not resolved within {RESOLVE_LIMIT_S:g} s; give"
                " exact versions, so that pip compares fewer, and check that the head node reaches"
                " the package index"
            )

    # The storage may be unreachable, and a job that is to stop does not wait for it.
    raise_if_stopped()
    if read_resolution(storage) is not None:
        return
    shown = textwrap.shorten(", ".join(launch.spec.pip), MAX_SHOWN, placeholder=" ...")
    host.publish_status(f"resolving the packages of the job: {shown}")
    pip = _Pip(
        environment=_make_environment(launch.pip_index),
        raise_if_stopped=raise_if_stopped,
        host=host,
        clock=clock,
        pause=pause,
    )
    draft = create_draft(storage)
    try:
        wheels, size_bytes = _download_checked(pip, launch.spec.pip, draft / WHEELS)
        write_resolution(draft, Resolution(wheels=wheels))
        seconds = clock() - began
        # The record comes first: what is on disk is not resolved again, so it would be lost.
        host.write_record(_make_record(wheels, size_bytes, seconds))
        publish_draft(draft, storage)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    names = ", ".join(f"{wheel.name} {wheel.version}" for wheel in wheels)
    log.info("resolved %d packages in %.1f s: %s", len(wheels), seconds, names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pip:
    """Calls pip, and waits for an index that does not respond."""

    environment: Mapping[str, str]
    raise_if_stopped: Callable[[], None]
    host: ResolutionHost
    clock: Callable[[], float]
    pause: Callable[[float], object]

    def run(self, command: str, *arguments: str) -> None:
        """Run pip, again while the index does not respond.

        Raises:
            PackagesError: pip cannot do what is asked, or the index has not responded for too long.
        """
        failed_at: float | None = None
        while failure := run_pip(
            command,
            arguments,
            environment=self.environment,
            raise_if_stopped=self.raise_if_stopped,
        ):
            why, now = failure.describe(), self.clock()
            failed_at = now if failed_at is None else failed_at
            if not failure.is_outage:
                hint = _NO_WHEEL_HINT if _NO_WHEEL in failure.output else ""
                log.error("pip failed:\n%s", mask_url_logins(failure.output)[-MAX_LOGGED:])
                raise PackagesError(f"the packages of the job cannot be resolved: {why}{hint}")
            if now - failed_at >= OUTAGE_LIMIT_S:
                raise PackagesError(
                    f"the package index has not responded for {OUTAGE_LIMIT_S:g} s ({why}); check"
                    " that the head node reaches it, then retry the job"
                )
            log.warning("the package index does not respond: %s", why)
            self.host.publish_status(
                f"the package index does not respond; retrying in {OUTAGE_PAUSE_S:g} s: {why}"
            )
            for _ in range(round(OUTAGE_PAUSE_S / POLL_S)):
                self.raise_if_stopped()
                self.pause(POLL_S)


def _make_environment(index: PipIndex | None) -> dict[str, str]:
    """Return the variables of pip; URLs with a password do not belong on a command line."""
    given = {"PIP_INDEX_URL": index.url, "PIP_EXTRA_INDEX_URL": index.extra_urls} if index else {}
    return {**os.environ, **{name: url for name, url in given.items() if url}}


def _download_checked(
    pip: _Pip, requirements: Iterable[str], folder: Path
) -> tuple[tuple[Wheel, ...], int]:
    """Call `download_wheels`; what pip or an index gives and this module cannot read ends the job.

    Raises:
        PackagesError: that, or what `download_wheels` raises.
    """
    try:
        return download_wheels(pip, requirements, folder)
    except (KeyError, ValueError) as error:
        why = f"{type(error).__name__}: {mask_url_logins(str(error))}"
        raise PackagesError(
            f"what the package index or pip returned is unreadable ({why}); give other versions"
            " of the packages, or update pip on the head node"
        ) from error


def download_wheels(
    pip: _Pip, requirements: Iterable[str], folder: Path
) -> tuple[tuple[Wheel, ...], int]:
    """Download the wheels that the workers lack; return them and their size in bytes."""
    to_install = find_missing_packages(pip, [Requirement(text) for text in requirements])
    if to_install:
        pins = (f"{one['metadata']['name']}=={one['metadata']['version']}" for one in to_install)
        pip.run("download", "--no-deps", "--dest", str(folder), *pins)
    found = [_read_wheel(file) for file in sorted(folder.iterdir())]
    _check_unchanged(to_install, found)
    return tuple(found), sum(file.stat().st_size for file in folder.iterdir())


def find_missing_packages(pip: _Pip, needed: Sequence[Requirement]) -> list[dict[str, Any]]:
    """Return what the workers lack, as pip reports it."""
    installed = _list_installed()
    _refuse_replacements(needed, installed)
    with tempfile.TemporaryDirectory() as folder:
        constraints, report = Path(folder, "constraints.txt"), Path(folder, "report.json")
        pins = (f"{name}=={version}\n" for name, version in installed.items())
        constraints.write_text("".join(pins))
        places = ("--constraint", str(constraints), "--report", str(report))
        pip.run("install", "--dry-run", *places, *map(str, needed))
        to_install: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    return to_install


def _list_installed() -> dict[str, str]:
    """Return the versions of all packages that are installed here, by name in its normal form."""
    installed: dict[str, str] = {}
    for found in distributions():
        # What is left of a removed package may lack metadata, as None or as one of two errors. No
        # requirement could name an invalid version.
        with suppress(FileNotFoundError, KeyError, InvalidVersion):
            name, version = found.metadata["Name"], found.metadata["Version"]
            if not name or not version:
                continue
            Version(version)
            # The first on the path is the one that is imported.
            installed.setdefault(canonicalize_name(name), version)
    return installed


def _refuse_replacements(needed: Iterable[Requirement], installed: Mapping[str, str]) -> None:
    """Reject requirements that only another version of an installed package satisfies.

    Raises:
        PackagesError: there is one.
    """
    for requirement in needed:
        version = installed.get(canonicalize_name(requirement.name))
        applies = marker_applies(requirement)
        if version is None or not applies:
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            raise PackagesError(
                f"the job asks for {requirement}, and {requirement.name} {version} belongs to the"
                " workers' own environment, which a job cannot change; ask for"
                f" {requirement.name}=={version}, or leave it out"
            )


def _read_wheel(file: Path) -> Wheel:
    name, version, _, _ = parse_wheel_filename(file.name)
    with file.open("rb") as content:
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    return Wheel(name=name, version=str(version), sha256=sha256)


def _check_unchanged(to_install: Iterable[Mapping[str, Any]], found: Iterable[Wheel]) -> None:
    """Check that the wheels are those that pip resolved a moment before.

    Raises:
        PackagesError: they are not.
    """
    sha256_by_name = {wheel.name: wheel.sha256 for wheel in found}
    resolved = {
        canonicalize_name(one["metadata"]["name"]): one["download_info"].get("archive_info", {})
        for one in to_install
    }
    changed = sorted(resolved.keys() ^ sha256_by_name.keys()) or [
        name
        for name, info in resolved.items()
        if info.get("hashes", {}).get("sha256", sha256_by_name[name]) != sha256_by_name[name]
    ]
    if changed:
        raise PackagesError(
            f"the package index changed while {', '.join(changed)} was downloaded; retry the job"
        )


def _make_record(wheels: Iterable[Wheel], size_bytes: int, seconds: float) -> PackagesRecord:
    packages = tuple(Package(name=wheel.name, version=wheel.version) for wheel in wheels)
    return PackagesRecord(packages=packages, size_bytes=size_bytes, seconds=seconds)


__all__ = ["RESOLVE_LIMIT_S", "ResolutionHost", "ResolutionStopped", "resolve_packages"]
