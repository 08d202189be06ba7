"""Logs of the service's processes."""

from __future__ import annotations

import sys

from tests.programs import run_program

SEND = """
import logging
import httpx2
from accordion_service.process.logs import configure_logs

configure_logs("DEBUG", "scheduler")
answer = httpx2.MockTransport(lambda request: httpx2.Response(204))
with httpx2.Client(transport=answer) as client:
    client.post("https://hooks.test/a-secret-path")
logging.getLogger("httpcore2.connection").debug("a-secret-path")
logging.getLogger("service").info("sent")
"""


def test_the_url_of_a_request_is_not_logged() -> None:
    """A process of its own: logs are configured once for all loggers."""
    done = run_program([sys.executable, "-c", SEND], check=True)
    assert "sent" in done.stderr
    assert "a-secret-path" not in done.stderr
