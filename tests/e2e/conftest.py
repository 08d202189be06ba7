"""The service that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.real_up import Up, start


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A running `accordion up`; a test that kills a part of it waits until that is back."""
    up = start(tmp_path_factory.mktemp("up") / "home")
    yield up
    up.stop()
