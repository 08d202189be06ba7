"""The ledger against the interface counters of two plain processes, each alone in its own network
namespace.
"""

from __future__ import annotations

import json

import pytest

from tests.netlab.lab import NET, Lab, may_make_hosts

MOST = 1.01
"""Frames, acknowledgements and the step signals, for collectives of 400 KB and more."""


@pytest.fixture(scope="module")
def lab(require):
    require("ip")
    if not may_make_hosts():
        require.missing("making network namespaces needs root")
    with Lab(2) as lab:
        yield lab


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("none", {}),
        ("half", {"dtype": "fp16"}),
        ("powersgd", {"rank": 128}),
        ("topk", {"density": 0.1}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_interface_sends_what_the_ledger_says_and_at_most_one_percent_more(
    lab, method, options
):
    port = 29500 + len(method)
    arguments = [f"tcp://{NET}.1:{port}", method, json.dumps(options)]
    workers = [
        lab.start(rank + 1, ["tests/netlab/bytes_worker.py", str(rank), *arguments])
        for rank in range(2)
    ]
    for worker in workers:
        output, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors
        rounds = json.loads(output)
        assert all(found["ledger"] <= found["interface"] for found in rounds), rounds
        # A busy machine adds acknowledgements and resent frames: the quietest round counts.
        assert min(found["interface"] / found["ledger"] for found in rounds) <= MOST, rounds
