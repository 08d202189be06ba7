"""What the tests of manifests need: `.ci/get_kubernetes_tools.py` installs both programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Require


@pytest.fixture
def helm(require: Require) -> Path:
    return require("helm")


@pytest.fixture
def kubectl(require: Require) -> Path:
    return require("kubectl")
