"""`doctor`: checks installation, settings and reachability, and suggests fixes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import typer

from accordion_client.commands.cli_support import (
    FAILED,
    JsonOption,
    UrlOption,
    create_console,
    print_json,
)
from accordion_client.commands.findings import Finding

if TYPE_CHECKING:
    from accordion_service.settings.settings import Settings

DISTRIBUTION = "accordion-train"
MIN_PYTHON = (3, 11)
MIN_DISK_BYTES = 2_000_000_000
"""Disk space for logs, the database and some checkpoints of a small model."""
MIN_MEMORY_BYTES = 2_000_000_000
"""Approximate memory of Ray's head, the api, the scheduler and a job with two workers
(docs/how/start.md).
"""
MIN_SHARED_BYTES = 300_000_000
"""Shared memory for the object store of a one-machine service, with overhead."""
RAY_TRAIN_PACKAGES = ("ray", "pandas", "pyarrow")
_MARKS = {"ok": "ok  ", "note": "note", "bad": "BAD "}


def doctor(url: UrlOption = "", json: JsonOption = False) -> None:
    """Check for missing, unreachable or misconfigured parts; exit code 1 if a check fails."""
    found = list(run_checks(url))
    if json:
        print_json(
            {
                "ok": all(item.state != "bad" for item in found),
                "findings": [asdict(item) for item in found],
            }
        )
    else:
        out = create_console()
        for item in found:
            out.print(f"{_MARKS[item.state]}  {item.name:<12} {item.message}")
    if any(item.state == "bad" for item in found):
        raise typer.Exit(FAILED)


def run_checks(url: str) -> Iterator[Finding]:
    """Run all checks, from installed packages to running processes."""
    from accordion_service.errors import SettingsError
    from accordion_service.settings.settings import load_settings

    yield _check_python()
    yield from _check_packages()
    try:
        settings = load_settings()
        settings.token()
    except SettingsError as error:
        yield Finding(name="settings", state="bad", message=str(error))
        return
    yield Finding(
        name="settings",
        state="ok",
        message=f"home is {settings.home}, database is {_database_url(settings)}",
    )
    yield from _check_variables()
    yield from _check_permissions(settings)
    yield from _check_tables(settings)
    yield from _check_secrets(settings)
    yield from _check_resources(settings.home)
    yield from _check_service(url)


def _check_python() -> Finding:
    version, oldest = sys.version.split()[0], ".".join(str(part) for part in MIN_PYTHON)
    if sys.version_info >= MIN_PYTHON:
        return Finding(name="python", state="ok", message=version)
    return Finding(
        name="python",
        state="bad",
        message=f"{version}; at least {oldest} is needed, install a newer one",
    )


def _check_packages() -> Iterator[Finding]:
    """Compare installed packages with the versions that the service requires."""
    from packaging.requirements import Requirement

    try:
        asked = [Requirement(text) for text in metadata.requires(DISTRIBUTION) or []]
    except metadata.PackageNotFoundError:
        yield Finding(
            name="packages",
            state="bad",
            message=f"{DISTRIBUTION} is not installed; pip install '{DISTRIBUTION}[service]'",
        )
        return
    needed = [
        item for item in asked if item.marker is None or item.marker.evaluate({"extra": "service"})
    ]
    wrong = [
        sentence
        for item in needed
        if (sentence := _describe_mismatch(item.name, str(item.specifier)))
    ]
    for sentence in wrong:
        yield Finding(
            name="packages",
            state="bad",
            message=f"{sentence}; pip install '{DISTRIBUTION}[service]'",
        )
    if not wrong:
        shown = ", ".join(
            f"{name} {metadata.version(name)}" for name in (DISTRIBUTION, "torch", "ray")
        )
        yield _check_ray_train()
        yield Finding(name="packages", state="ok", message=f"{shown}, and {len(needed) - 2} more")


def _check_ray_train() -> Finding:
    """Check whether jobs can run on Ray Train, the default engine."""
    missing = [name for name in RAY_TRAIN_PACKAGES if _describe_mismatch(name, "")]
    if missing:
        message = (
            f"{', '.join(missing)} is missing, which Ray Train needs, so jobs end before they"
            f" start; pip install '{DISTRIBUTION}[service]', or submit with --set"
            " workers.engine=actors"
        )
        return Finding(name="ray train", state="bad", message=message)
    return Finding(
        name="ray train",
        state="ok",
        message=f"of ray {metadata.version('ray')}, the default engine of jobs",
    )


def _describe_mismatch(name: str, wanted: str) -> str:
    """Describe what is wrong with an installed package; empty if nothing is."""
    from packaging.specifiers import SpecifierSet

    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{name} is missing"
    return (
        ""
        if SpecifierSet(wanted).contains(version, prereleases=True)
        else f"{name} is {version}, {wanted} is needed"
    )


def _database_url(settings: Settings) -> str:
    """Check the database; its URL is shown without the password."""
    from sqlalchemy.engine import make_url

    return make_url(settings.database).render_as_string(hide_password=True)


def _check_variables() -> Iterator[Finding]:
    """Check for variables that only look like settings."""
    from accordion_service.settings.setting_list import describe_unknown_variables
    from accordion_service.settings.settings import list_variables

    unknown = describe_unknown_variables(list_variables())
    if unknown:
        yield Finding(name="settings", state="note", message=unknown)


def _check_permissions(settings: Settings) -> Iterator[Finding]:
    """Check that only the owner can read the home directory and the token files."""
    from accordion_service.settings.home import OWNER_ONLY_DIR, OWNER_ONLY_FILE, Home

    home = Home(settings.home)
    wanted = {
        home.path: OWNER_ONLY_DIR,
        home.ray_token: OWNER_ONLY_FILE,
        home.token: OWNER_ONLY_FILE,
    }
    wanted |= {
        path: OWNER_ONLY_FILE
        for path in (settings.admin_token_file, settings.ray_token_file)
        if path
    }
    open_ = [
        (path, mode)
        for path, mode in wanted.items()
        if path.exists() and path.stat().st_mode & 0o077
    ]
    for path, mode in open_:
        message = (
            f"other users can read {path} ({path.stat().st_mode & 0o777:o}); chmod {mode:o} {path}"
        )
        yield Finding(name="permissions", state="bad", message=message)
    if home.path.exists() and not os.access(home.path, os.W_OK):
        yield Finding(
            name="permissions",
            state="bad",
            message=f"{home.path} cannot be written; chown it, or set ACCORDION_HOME",
        )
    elif not open_:
        yield Finding(
            name="permissions", state="ok", message="home and token files are the owner's only"
        )


def _check_tables(settings: Settings) -> Iterator[Finding]:
    """Check that this version can use the tables, if this machine can read the database."""
    from sqlalchemy.exc import SQLAlchemyError

    from accordion_service.errors import StartError
    from accordion_service.store.migrations import check_tables

    try:
        check_tables(settings.database)
    except StartError as error:
        yield Finding(name="database", state="bad", message=str(error))
    except (OSError, SQLAlchemyError):
        return


def _check_secrets(settings: Settings) -> Iterator[Finding]:
    """Check that the key decrypts all secrets, if this machine can read the database."""
    from sqlalchemy.exc import SQLAlchemyError

    from accordion_service.backups.secret_check import describe_unreadable
    from accordion_service.errors import StartError

    try:
        unreadable = describe_unreadable(settings)
    except OSError as error:
        message = (
            f"not checked: {error.filename} cannot be read ({error.strerror}); run this command as"
            " the user of the service"
        )
        yield Finding(name="secrets", state="note", message=message)
        return
    except (StartError, SQLAlchemyError):
        return
    if unreadable:
        yield Finding(name="secrets", state="bad", message=unreadable)


def _check_resources(home: Path) -> Iterator[Finding]:
    """Check disk space, memory and shared memory."""
    existing = next(path for path in (home, *home.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    yield _check_amount(
        "disk", free, MIN_DISK_BYTES, way_out=f"at {existing}; free some, or set ACCORDION_HOME"
    )
    memory = _available_memory()
    if memory is not None:
        way_out = "available; end other programs, or use a larger machine"
        yield _check_amount("memory", memory, MIN_MEMORY_BYTES, way_out=way_out)
    shared = Path("/dev/shm")  # noqa: S108 - read only
    if shared.exists():
        way_out = f"at {shared}; enlarge it (docker: --shm-size=1g), or Ray is slow"
        yield _check_amount(
            "shared", shutil.disk_usage(shared).free, MIN_SHARED_BYTES, way_out=way_out
        )


def _check_amount(name: str, free: int, min_bytes: int, *, way_out: str) -> Finding:
    """Check one resource; `way_out` is the place that was checked, a semicolon, and the fix if it
    is too little.
    """
    where, _, remedy = way_out.partition("; ")
    if free >= min_bytes:
        return Finding(name=name, state="ok", message=f"{free / 1e9:.1f} GB {where}")
    message = f"{free / 1e9:.1f} GB {where}, at least {min_bytes / 1e9:.1f} GB are needed; {remedy}"
    return Finding(name=name, state="bad", message=message)


def _available_memory() -> int | None:
    """Return the bytes available without swapping; None if unknown."""
    try:
        import psutil
    except ModuleNotFoundError:  # a client without the service
        return None
    return int(psutil.virtual_memory().available)


def _check_service(url: str) -> Iterator[Finding]:
    """Check whether the service is ready or, if none is expected, whether one could start."""
    from accordion_client import Client, ClientError
    from accordion_client.commands.storage_check import check_storages, read_storage_jobs
    from accordion_client.machine.connection import is_same_service, service_token, service_url
    from accordion_client.machine.profiles import load_client_settings
    from accordion_service.access.guards import is_loopback
    from accordion_service.errors import SettingsError
    from accordion_service.settings.home import Home

    try:
        settings = load_client_settings(url)
    except SettingsError as error:
        yield Finding(name="profile", state="bad", message=str(error))
        return
    address, running = service_url(settings, url), Home(settings.home).running()
    expected = bool(url or settings.url or running)
    try:
        with Client(address, service_token(settings, address)) as client:
            checks = client.ready().checks
            jobs = read_storage_jobs(client)
    except ClientError as error:
        yield (
            Finding(name="service", state="bad", message=str(error))
            if expected
            else _check_port(settings)
        )
        return
    yield Finding(name="api", state="ok", message=f"responds at {address}")
    for name, check in checks.items():
        yield Finding(name=name, state="ok" if check.ok else "bad", message=check.message)
    yield from check_storages(
        jobs,
        is_local=is_loopback(urlsplit(address).hostname or ""),
        is_own=running is not None and is_same_service(address, running),
    )


def _check_port(settings: Settings) -> Finding:
    from accordion_client.machine.programs import free_port
    from accordion_service.errors import StartError

    try:
        free_port(settings.host, settings.port)
    except StartError as error:
        return Finding(name="service", state="bad", message=f"is not running, and its {error}")
    return Finding(
        name="service", state="note", message="is not running; start it with 'accordion up'"
    )
