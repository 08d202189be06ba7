"""How a run of pytest-xdist goes on after one of its processes has crashed.

With `--dist loadfile`, pytest-xdist 3.8 then waits for ever, or crashes again with the same test
(its issues 1323, 1327 and 1378). A later release may make this file unnecessary:
`test_a_crash_fails_one_test_and_the_others_still_run` tells.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling


class _Files(LoadFileScheduling):
    """Gives whole files to processes, and what a crashed process had left to the next one."""

    def remove_node(self, node: Any) -> str | None:
        left = [
            (file, {test: False for test, ended in tests.items() if not ended})
            for file, tests in self.assigned_work.pop(node).items()
        ]
        left = [(file, tests) for file, tests in left if tests]
        if not left:
            return None
        crashed: str = next(iter(left[0][1]))
        del left[0][1][crashed]
        self.workqueue.update((file, tests) for file, tests in left if tests)
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: Any) -> None:
        """Give a process more tests; it runs one only when it has the next, or knows of its end."""
        if node not in self.registered_collections:  # it replaces a crashed one, and still collects
            return
        super()._reschedule(node)
        while self._pending_of(self.assigned_work[node]) < 2 and not node.shutting_down:
            super()._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Schedule files in our way, and everything else in that of pytest-xdist."""
    return _Files(config, log) if config.getoption("dist") == "loadfile" else None
