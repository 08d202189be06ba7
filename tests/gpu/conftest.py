"""What the tests on a GPU share; without one they are left out. `make test-gpu` runs them alone."""

from __future__ import annotations

import pytest
import torch

from tests.distributed.conftest import run_grid as run_grid
from tests.distributed.conftest import run_group as run_group

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]


def pytest_report_header() -> str:
    """Say why nothing is collected where there is no card."""
    return "GPU: " + (
        torch.cuda.get_device_name() if torch.cuda.is_available() else "none, tests/gpu is left out"
    )


@pytest.fixture
def card() -> torch.device:
    """The card that all ranks of a test share."""
    return torch.device("cuda:0")
