"""The service that the tests of this folder share."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from accordion_service.settings.home import Home
from tests.e2e.real_up import Up, processes_of, start, wait_for


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A running `accordion up`; a test that kills a part of it waits until that is back."""
    up = start(tmp_path_factory.mktemp("up") / "home")
    yield up
    up.stop()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home directory whose processes are gone at the end, whatever the test did."""
    home = tmp_path / "home"
    yield home
    running = Home(home).running()
    if running:
        os.kill(running.pid, signal.SIGKILL)
    wait_for(lambda: not processes_of(home))
    left = Home(home).last()
    if left:
        shutil.rmtree(left.ray_dir, ignore_errors=True)
