"""Home directory of a one-machine service: record of the running service, lock and secrets."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from accordion_service.errors import StartError

OWNER_ONLY_DIR = 0o700
OWNER_ONLY_FILE = 0o600
TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Record of a running `accordion up`, stored in `up.json`."""

    pid: int
    url: str
    ray_address: str
    ray_dir: str
    """Private parent folder of Ray's temporary directory; removed on shutdown."""
    pids: dict[str, int]
    """Current process ids of `ray`, `api` and `scheduler`."""
    token_file: str = ""
    """File with the admin token, for clients of this home; empty if there is none."""
    grace_s: float = 0.0
    """Seconds that running jobs have to save when the service stops."""


class Home:
    """Paths of one home directory; `make` creates it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self.token = path / "token"
        """The admin token of the api."""
        self.ray_token = path / "ray.token"
        self.stop_report = path / "last-stop.txt"
        """What became of running jobs when the service was last stopped, one a line; missing if
        none ran.
        """
        self._lock = path / "up.lock"
        self._record = path / "up.json"

    def make(self) -> None:
        """Create what is missing, readable by the owner only.

        Raises:
            StartError: the directory cannot be created or written.
        """
        try:
            for folder in (self.path, self.logs):
                folder.mkdir(mode=OWNER_ONLY_DIR, parents=True, exist_ok=True)
            self.path.chmod(OWNER_ONLY_DIR)
        except OSError as error:
            raise self._unusable_error(error) from error

    def check(self) -> None:
        """Create the directory if it is missing, and check that this process may write there.

        Raises:
            StartError: it cannot be created, or not be written.
        """
        try:
            self.path.mkdir(mode=OWNER_ONLY_DIR, parents=True, exist_ok=True)
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "it may not be written")
        except OSError as error:
            raise self._unusable_error(error) from error

    def make_secrets(self) -> None:
        """Create missing tokens and make all of them private. The lock must be held.

        Raises:
            StartError: they cannot be written.
        """
        try:
            for path in (self.token, self.ray_token):
                if not path.exists():
                    write_private(path, secrets.token_hex(TOKEN_BYTES))
                path.chmod(OWNER_ONLY_FILE)
        except OSError as error:
            raise self._unusable_error(error) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the home directory against a second `accordion up`; the kernel releases it when the
        process ends.

        Raises:
            StartError: another process holds it.
        """
        with self._lock.open("a") as file:
            if not _try_lock(file.fileno(), fcntl.LOCK_EX):
                raise StartError(self._describe_holder())
            yield

    def running(self) -> Running | None:
        """The service that runs on this home; None if there is none, or if it is still starting.

        Raises:
            StartError: the home directory belongs to another user.
        """
        try:
            found = self._record.exists()
        except PermissionError as error:
            raise self._unusable_error(error) from error
        return self.last() if found and self._is_held() else None

    def last(self) -> Running | None:
        """Return the record that a killed service left; None if there is none."""
        try:
            return Running(**json.loads(self._record.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, running: Running) -> None:
        """Store the record of the running service atomically.

        Raises:
            OSError: it cannot be written; the record is still the last one.
        """
        write_private(self._record, json.dumps(asdict(running), indent=2))

    def clear(self) -> None:
        """Remove the record of the running service."""
        self._record.unlink(missing_ok=True)

    def _is_held(self) -> bool:
        try:
            with self._lock.open("a") as file:
                return not _try_lock(file.fileno(), fcntl.LOCK_SH)
        except OSError:
            return False

    def _unusable_error(self, error: OSError) -> StartError:
        return StartError(
            f"the home directory {self.path} cannot be used ({error.strerror}); name another with"
            " ACCORDION_HOME"
        )

    def _describe_holder(self) -> str:
        other = self.last()
        who = f"as process {other.pid}, at {other.url}" if other else "and is just starting"
        stop = f"stop it with 'kill {other.pid}'" if other else "wait for it"
        return (
            f"accordion is already running in {self.path} {who}; use that one, {stop}, "
            "or start another with ACCORDION_HOME=DIRECTORY accordion up --port 0"
        )


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically; other users can never read it."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    try:
        with os.fdopen(
            os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY_FILE), "w"
        ) as file:
            file.write(text)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
