"""The command line, as the tests of the service run it."""

from __future__ import annotations

from tests.unit.service.conftest import _patient_clients, alone  # noqa: F401 - fixtures
