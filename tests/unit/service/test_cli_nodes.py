"""`accordion nodes` and `node`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from accordion_client import Client
from accordion_workers.records.contract import FailureRecord
from tests.api.conftest import Live
from tests.unit.service.conftest import Accordion

NODE = "10.0.0.1"
"""The only node of the live service."""


@pytest.fixture(autouse=True)
def _restored(service: Live) -> Iterator[None]:
    """The scheduler has seen the node, and no cordon outlives a test."""
    with Client(service.url) as client:
        while not client.nodes().items:
            pass  # pytest's time limit ends it
        yield
        client.restore_node(NODE)


def row_of(accordion: Accordion) -> list[str]:
    lines = accordion("nodes").out.splitlines()
    return next(line.split() for line in lines if line.startswith(NODE))


def test_a_node_is_listed_cordoned_and_restored(accordion: Accordion) -> None:
    assert row_of(accordion) == [NODE, NODE, "available", "4", "0", "0"]
    said = accordion("node", "cordon", NODE, "--reason", "new GPUs")
    assert said.out == (
        f"node {NODE} is cordoned by admin: new GPUs; an operator can restore it with 'accordion"
        f" node restore {NODE}'\n"
    )
    assert row_of(accordion) == [NODE, NODE, "cordoned", "admin", "4", "0", "0", "new", "GPUs"]
    [node] = accordion("nodes", "--json").json()["items"]
    assert (node["state"], node["reason"]) == ("CORDONED", "new GPUs")
    assert accordion("node", "restore", NODE).out == f"node {NODE} takes workers\n"
    assert row_of(accordion)[2] == "available"


def test_an_unknown_node_is_refused_with_the_way_to_the_names(accordion: Accordion) -> None:
    said = accordion("node", "cordon", "gpu-9")
    assert said.code == 2
    assert "there is no node 'gpu-9'; 'accordion nodes'" in said.err


def test_failures_are_listed_with_their_jobs(
    accordion: Accordion, service: Live, running: str
) -> None:
    failure = FailureRecord(
        cause="infrastructure", rank=0, message="it was killed", nodes=("node-0",)
    )
    service.runtime.report(running, failure)
    while running not in accordion("nodes").out:
        pass  # pytest's time limit ends it
    [line] = [line for line in accordion("nodes").out.splitlines() if running in line]
    assert f" {NODE} {running} admin it was killed" in " ".join(line.split())
    assert row_of(accordion)[5] == "1"
