"""A directory in which one call of one worker group fails, as `faulty.py` does it for an object
store.
"""

from __future__ import annotations

from pathlib import Path, PosixPath
from typing import Any

import pytest

from accordion_workers.checkpoint.storage import LocalStorage
from tests.unit.workers.faulty import STORE, Group


class FaultyPath(PosixPath):
    """A path whose calls are counted for one worker group; paths made from it are of the same
    group.
    """

    group: Group

    def mkdir(self, *arguments: Any, **named: Any) -> None:
        self._call(super().mkdir, *arguments, **named)

    def iterdir(self) -> Any:
        return self._call(super().iterdir)

    def open(self, *arguments: Any, **named: Any) -> Any:  # type: ignore[override]
        return self._call(super().open, *arguments, **named)

    def replace(self, target: Any) -> Any:
        return self._call(super().replace, target)

    def unlink(self, missing_ok: bool = False) -> None:
        self._call(super().unlink, missing_ok)

    def _call(self, call: Any, *arguments: Any, **named: Any) -> Any:
        loses_answer = self.group.enter()
        result = call(*arguments, **named)
        if loses_answer:
            raise OSError(5, "the answer was lost")
        return result


def make_paths_faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every directory of checkpoints be one in which calls fail."""
    begin = LocalStorage.__init__

    def begin_faulty(storage: LocalStorage, root: Path) -> None:
        of_group = type("FaultyPath", (FaultyPath,), {"group": STORE.group})
        begin(storage, of_group(root))

    monkeypatch.setattr(LocalStorage, "__init__", begin_faulty)
