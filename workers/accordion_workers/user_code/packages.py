"""Packages of a job on one node: installed once, from the wheels in the job's storage, and used by
all worker processes there.

    TMPDIR/accordion-packages-UID/KEY/        an environment; KEY stands for wheels and Python
    TMPDIR/accordion-packages-UID/KEY.1/      another one, if KEY lacks files and is in use
    TMPDIR/accordion-packages-UID/KEY.lock    locked while a process installs or takes one of them

An environment is renamed into place, so it is complete or not there.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import itertools
import logging
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from accordion_workers.common.errors import PackagesError
from accordion_workers.common.node_cache import UnsafeRootError, keep_in_use, lock_entry, open_root
from accordion_workers.records.contract import Launch
from accordion_workers.user_code.install import lock_folder
from accordion_workers.user_code.pip_process import run_pip
from accordion_workers.user_code.resolution import (
    WHEELS,
    Resolution,
    packages_folder,
    read_resolution,
)

INSTALL_LIMIT_S = 1800.0
"""How long a process may wait for an environment, or install it."""
UNUSED_S = 3 * 86_400.0
"""An environment unused for this long is removed when another one is installed."""

log = logging.getLogger(__name__)


def install_packages(launch: Launch, *, clock: Callable[[], float] = time.monotonic) -> None:
    """Make the packages of the job importable in this process, after all others.

    Files `.pth` of packages are ignored: they could put paths before those of the node.

    Raises:
        PackagesError: they cannot be installed here, or this node lacks a package that they need.
        OSError: the storage cannot be read.
    """
    storage, began = Path(launch.storage), clock()
    resolution = read_resolution(storage)
    if resolution is None:
        raise PackagesError(
            f"there is no resolution of the job's packages in {packages_folder(storage)}; retry"
            " the job"
        )

    def raise_if_late() -> None:
        if clock() - began >= INSTALL_LIMIT_S:
            raise PackagesError(
                f"the packages of the job were not installed within {INSTALL_LIMIT_S:g} s; is the"
                " temporary directory of this node slow or full?"
            )

    if resolution.wheels:
        wheels = packages_folder(storage) / WHEELS
        try:
            folder = ensure_environment(
                resolution, wheels, root=_open_root(), raise_if_stopped=raise_if_late
            )
        except OSError as error:
            raise PackagesError(
                "the temporary directory of this node cannot hold the packages of the job"
                f" ({error}); free space there, or set TMPDIR to another folder"
            ) from error
        sys.path.append(str(folder))
        importlib.invalidate_caches()
        log.info("%d packages are ready after %.1f s", len(resolution.wheels), clock() - began)
    if unmet := find_unmet(launch.spec.pip, resolution.names):
        raise PackagesError(
            f"{'; '.join(unmet)}; the packages were resolved on the head node: install the same"
            " packages on both nodes, then clone the job"
        )


def ensure_environment(
    resolution: Resolution, wheels: Path, *, root: Path, raise_if_stopped: Callable[[], None]
) -> Path:
    """Return the folder of an environment with these wheels, which stays until this process ends.

    The first process installs it, the others wait. One that lacks files is replaced, or left to the
    processes that use it. `raise_if_stopped` is called while this process waits; what it raises
    ends the wait.

    Raises:
        PackagesError: pip cannot install the wheels.
        OSError: the folder cannot be written.
    """
    first = root / _make_key(resolution)
    with lock_entry(first, raise_if_stopped) as lock:
        folder = next(
            one for one in _list_names(first) if _is_complete(one, resolution) or _is_free(one)
        )
        if not _is_complete(folder, resolution):
            draft = build_environment(
                first, resolution, wheels, lock=lock, raise_if_stopped=raise_if_stopped
            )
            _replace(folder, draft)
            _remove_unused(root, kept=folder)
        keep_in_use(folder)
    return folder


def _list_names(first: Path) -> Iterator[Path]:
    """Yield the names that an environment may have, in the order in which they are tried."""
    yield first
    for number in itertools.count(1):
        yield first.with_suffix(f".{number}")


def _is_free(folder: Path) -> bool:
    """Return whether no process uses the folder, or there is none."""
    try:
        lock = lock_folder(folder)
    except FileNotFoundError:
        return True
    if lock is not None:
        os.close(lock)
    return lock is not None


def _replace(folder: Path, draft: Path) -> None:
    """Rename a draft to a folder; what was there, and nobody uses, is removed."""
    old = folder.with_suffix(".old")
    shutil.rmtree(old, ignore_errors=True)
    with suppress(FileNotFoundError):
        folder.rename(old)
    draft.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def find_unmet(requirements: Sequence[str], own: Set[str]) -> list[str]:
    """Return why the requirements, and those of the packages in `own`, are not fulfilled here.

    What packages of the node's own environment require is not looked at.
    """
    unmet, seen = [], set()
    pending = [(Requirement(text), {""}) for text in requirements]
    while pending:
        requirement, extras = pending.pop()
        if str(requirement) in seen or not marker_applies(requirement, extras):
            continue
        seen.add(str(requirement))
        try:
            found = distribution(requirement.name)
        except PackageNotFoundError:
            unmet.append(f"{requirement.name} is not installed here")
            continue
        if not requirement.specifier.contains(found.version, prereleases=True):
            unmet.append(f"{requirement} is needed, and {found.version} is installed here")
        if canonicalize_name(requirement.name) in own:
            more = {"", *requirement.extras}
            pending += [(Requirement(text), more) for text in found.requires or ()]
    return unmet


def marker_applies(requirement: Requirement, extras: Set[str] = frozenset({""})) -> bool:
    """Return whether a requirement counts here, with one of these extras."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)


def _make_key(resolution: Resolution) -> str:
    wheels = sorted(f"{wheel.name} {wheel.version} {wheel.sha256}" for wheel in resolution.wheels)
    parts = [sys.implementation.cache_tag or "", sysconfig.get_platform(), *wheels]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _open_root() -> Path:
    """Return the folder of this user's environments.

    Raises:
        PackagesError: another user could write there.
    """
    try:
        return open_root(Path(tempfile.gettempdir(), f"accordion-packages-{os.getuid()}"))
    except UnsafeRootError as error:
        raise PackagesError(str(error)) from error


def build_environment(
    folder: Path,
    resolution: Resolution,
    wheels: Path,
    *,
    lock: int,
    raise_if_stopped: Callable[[], None],
) -> Path:
    """Install the wheels into a draft, without an index and without other packages; return it.

    Raises:
        PackagesError: pip cannot install them, or not all of their files.
        OSError: the draft cannot be written.
    """
    draft = folder.with_suffix(".new")
    pins = folder.with_suffix(".txt")
    shutil.rmtree(draft, ignore_errors=True)
    lines = (f"{one.name}=={one.version} --hash=sha256:{one.sha256}" for one in resolution.wheels)
    pins.write_text("\n".join(lines))
    offline = ("--no-index", "--no-deps", "--require-hashes", "--no-warn-script-location")
    places = ("--find-links", str(wheels), "--target", str(draft), "--requirement", str(pins))
    # Neither variables, which a job may set, nor files of the node may change what is installed.
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PIP_")}
    failure = run_pip(
        "install",
        [*offline, *places],
        environment={**environment, "PIP_CONFIG_FILE": os.devnull},
        raise_if_stopped=raise_if_stopped,
        # The lock outlives this process, if that is killed, until pip has ended.
        pass_fds=[lock],
    )
    pins.unlink()
    if failure is not None:
        raise PackagesError(f"pip cannot install the packages here: {failure.describe()}")
    if not _is_complete(draft, resolution):
        raise PackagesError(
            f"pip installed {', '.join(sorted(resolution.names))}, and files that their wheels list"
            f" are missing in {draft}; is something removing files there?"
        )
    return draft


def _is_complete(folder: Path, resolution: Resolution) -> bool:
    """Return whether the folder has these packages with all of their files."""
    records = {
        canonicalize_name(file.parent.stem.rpartition("-")[0]): file
        for file in folder.glob("*.dist-info/RECORD")
    }
    try:
        files = [file for record in records.values() for file in _list_files(record)]
    except (csv.Error, ValueError):
        # The record itself is damaged.
        return False
    return records.keys() == resolution.names and all((folder / file).exists() for file in files)


def _list_files(record: Path) -> Iterator[str]:
    """Yield the files of a package that importing it may need."""
    for file, *_ in filter(None, csv.reader(record.read_text("utf-8").splitlines())):
        # Scripts are moved to another place than the record says.
        if not file.startswith(("..", "/")) and not file.endswith(".pyc"):
            yield file


def _remove_unused(root: Path, *, kept: Path) -> None:
    """Remove environments, also half-made ones, that no process has used for a while."""
    for folder in root.iterdir():
        if folder == kept or not folder.is_dir():
            continue
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime >= UNUSED_S:
                _remove_unless_locked(folder)


def _remove_unless_locked(folder: Path) -> None:
    """Remove an environment, unless a process uses, takes or installs it.

    Raises:
        BlockingIOError: a process takes or installs it.
    """

    def give_up() -> None:
        raise BlockingIOError

    # All names of an environment share the lock of the first one.
    with lock_entry(folder.with_suffix(""), give_up):
        lock = lock_folder(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


__all__ = [
    "INSTALL_LIMIT_S",
    "build_environment",
    "ensure_environment",
    "find_unmet",
    "install_packages",
    "marker_applies",
]
