"""An api and a scheduler as processes of their own, on a cluster of the test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accordion_client import Client
from tests.conftest import free_port
from tests.e2e.real_up import WAIT_S, accordion, ready, wait_for
from tests.elastic.nodes import Cluster

TOKEN = "the-admin-token-of-this-test"


def list_variables(cluster: Cluster, storage: Path) -> dict[str, str]:
    """Environment of a service on this cluster."""
    return {
        "ACCORDION_RAY_ADDRESS": cluster.address,
        "ACCORDION_STORAGE": str(storage),
        "ACCORDION_ADMIN_TOKEN": TOKEN,
        "ACCORDION_LOG_LEVEL": "WARNING",  # nobody reads the pipes while it runs
        **{name: os.environ[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")},
    }


@contextmanager
def serve(home: Path, variables: dict[str, str]) -> Iterator[Client]:
    """A ready service, whose processes end as on a machine that loses power."""
    port = str(free_port())
    programs = [
        accordion(home, "api", **variables, ACCORDION_PORT=port),
        accordion(home, "scheduler", **variables),
    ]
    try:
        with Client(f"http://127.0.0.1:{port}", TOKEN) as client:
            client.limit_time(WAIT_S)
            wait_for(lambda: ready(client), lambda: [one.poll() for one in programs])
            yield client
    finally:
        for program in programs:
            program.kill()
            program.communicate()
