"""An object store in memory, reached by fsspec, in which one call of one worker group fails;
`faulty:///path`.

Calls are counted for each group by itself. A call may fail, have its effect and lose its answer,
kill its process, or be in flight until the test lets it arrive; what is in flight outlives the
group that sent it.
"""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass, field
from typing import Any, Literal

import fsspec

Fault = Literal["error", "lost answer", "kill", "delay", "hang"]
FAULTS: tuple[Fault, ...] = ("error", "lost answer", "kill", "delay")
"""Faults after which a job trains on without help; one that hangs waits for the test."""
ARRIVED_S = 20.0
"""Only ends a test that fails."""


class Gone(SystemExit):
    """The process that called has been killed, or its group is lost; a thread ends without
    a word.
    """


@dataclass
class Group:
    """One worker group's calls, and what becomes of one of them."""

    at: int = -1
    """Number of the call that goes wrong; negative for none."""
    fault: Fault = "error"
    times: int = 1
    """Number of calls that go wrong, one after the other."""
    calls: int = 0
    gone: bool = False
    killed: bool = False
    arrives: threading.Event = field(default_factory=threading.Event)
    """Set by the test: the call in flight takes effect now."""
    sender: threading.Thread | None = None
    """What sent the call in flight."""

    def enter(self) -> bool:
        """Count a call; True where its answer is to be lost."""
        if self.killed:
            raise Gone
        self.calls += 1
        if not self.at < self.calls <= self.at + self.times or self.at < 0:
            return False
        return self._go_wrong()

    def _go_wrong(self) -> bool:
        match self.fault:
            case "error":
                raise OSError(28, "No space left on device")
            case "kill":
                self.gone = self.killed = True
                raise Gone
            case "delay":
                self.gone, self.sender = True, threading.current_thread()
                self.arrives.wait(ARRIVED_S)
            case "hang":
                self.sender = threading.current_thread()
                self.arrives.wait(ARRIVED_S)
        return self.fault == "lost answer"

    def check(self) -> None:
        """Called by the group's own thread, not by those that write for it."""
        if self.gone:
            raise Gone

    def let_arrive(self) -> None:
        """The call in flight takes effect, and so does all that its sender does next."""
        self.arrives.set()
        if self.sender is not None:
            self.sender.join(ARRIVED_S)


@dataclass
class Store:
    """What lies in the object store, and which group calls now."""

    files: dict[str, bytes] = field(default_factory=dict)
    group: Group = field(default_factory=Group)


STORE = Store()


class FaultyFileSystem(fsspec.AbstractFileSystem):
    """Knows no directories: a file is there, whole, once it was closed or put."""

    protocol = "faulty"
    cachable = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._store, self._group = STORE, STORE.group

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        self._group.enter()

    def isdir(self, path: str) -> bool:
        self._group.enter()
        return True

    def isfile(self, path: str) -> bool:
        self._group.enter()
        return self._strip_protocol(path) in self._store.files

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        self._group.enter()
        root = self._strip_protocol(path).rstrip("/") + "/"
        below = {
            name.removeprefix(root).partition("/")
            for name in self._store.files
            if name.startswith(root)
        }
        found = {(first, "directory" if slash else "file") for first, slash, _ in below}
        return [{"name": root + name, "type": kind, "size": 0} for name, kind in sorted(found)]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self.store(path, value)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        self._group.enter()
        try:
            return self._store.files[self._strip_protocol(path)]
        except KeyError:
            raise FileNotFoundError(path) from None

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        loses_answer = self._group.enter()
        path = self._strip_protocol(path)
        for name in [
            name for name in self._store.files if name == path or name.startswith(f"{path}/")
        ]:
            del self._store.files[name]
        if loses_answer:
            raise OSError("the answer was lost")

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self._group.enter()
        return _Draft(self, path)

    def store(self, path: str, content: bytes) -> None:
        """Have a file there, whole."""
        loses_answer = self._group.enter()
        self._store.files[self._strip_protocol(path)] = content
        if loses_answer:
            raise OSError("the answer was lost")


class _Draft(io.BytesIO):
    """A file that is being sent; it is there when it was closed without an error."""

    def __init__(self, filesystem: FaultyFileSystem, path: str) -> None:
        super().__init__()
        self._filesystem, self._path = filesystem, path

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            self._filesystem.store(self._path, self.getvalue())


fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)
