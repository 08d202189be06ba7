"""One host of three behind a slow link is found by the messages between neighbors."""

from __future__ import annotations

import json

import pytest

from accordion_service.domain.performance.bottleneck import find_slow_link
from tests.netlab.lab import NET, Lab, may_make_hosts

MBIT = 10
"""Rate of the slow link: a message of 64 KiB takes 52 ms."""


@pytest.mark.parametrize("slow_host", [None, 2])
def test_the_worker_behind_a_slow_link_is_named(require, slow_host):
    require("ip")
    if not may_make_hosts():
        require.missing("making network namespaces needs root")
    expected = () if slow_host is None else (slow_host - 1,)
    with Lab(3) as lab:
        if slow_host is not None:
            lab.set_rate(slow_host, MBIT)
        workers = [
            lab.start(
                rank + 1,
                ["tests/netlab/slow_link_worker.py", str(rank), f"tcp://{NET}.1:29500"],
            )
            for rank in range(3)
        ]
        for worker in workers:
            output, errors = worker.communicate(timeout=120)
            assert worker.returncode == 0, errors
            seconds = json.loads(output)
            assert find_slow_link(seconds) == expected, seconds
