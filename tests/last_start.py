"""The time after which no test begins, which `.ci/run` sets: on a machine that is slow that day,
the parts that come first are complete, and the summary counts what was not run.
"""

from __future__ import annotations

import os
import time

import pytest

LAST_START = float(os.environ.get("ACCORDION_LAST_START", "inf"))
"""Seconds since the epoch."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Skip a test that would begin later, before its fixtures are set up."""
    if time.time() > LAST_START:
        pytest.skip("NOT RUN: the time in which tests begin is over (ACCORDION_LAST_START)")
