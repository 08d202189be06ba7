"""The policy `cost_aware` with local steps: the length of rounds in running sessions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch

from accordion.base.errors import HookError
from accordion.base.local_steps import LocalSteps
from accordion.compress.exchange import GroupNetwork
from accordion.config import Config
from accordion.session.session import attach
from tests.distributed.small import build
from tests.distributed.test_local_steps import RATE, Worker

LOCAL = LocalSteps(low=8, high=8)
STEPS = 8
OPTIONS = {"wait_share": 0.2}
SLOW_S, STEP_S = 0.05, 0.2
"""Seconds of a message on the slow link, and of a step on the fast one: a busy machine delays its
exchange by several milliseconds, far less than waiting may take.
"""


@contextmanager
def link(delay_s: float) -> Iterator[None]:
    """All messages take longer."""
    original = GroupNetwork.answer_requests

    def answer_requests(*arguments: Any) -> Any:
        time.sleep(delay_s)
        return original(*arguments)

    with patch.object(GroupNetwork, "answer_requests", answer_requests):
        yield


def train(rank: int, epochs: Sequence[tuple[float, Sequence[float]]]) -> Any:
    """Train epochs on links with a delay, in which steps take longer by rank; return their
    decisions, and the parameters.
    """
    worker = Worker(rank, LOCAL, method="qsgd", policy="cost_aware", policy_options=OPTIONS)
    decisions = []
    for delay_s, step_s_by_rank in epochs:
        with link(delay_s):
            for _ in range(STEPS):
                time.sleep(step_s_by_rank[rank])
                worker.step(worker.session.steps)
            decisions.append(worker.session.end_epoch(lr=RATE, next_lr=RATE).decision)
    return decisions, worker.parameters()


def lengths(answers: list[Any]) -> list[int]:
    """The decided lengths, on which all workers agree."""
    (decisions, parameters), *others = answers
    for other_decisions, other_parameters in others:
        assert other_decisions == decisions
        assert torch.equal(other_parameters, parameters)
    return [one.local_steps for one in decisions]


def test_rounds_are_long_on_a_slow_link_and_end_when_it_is_fast(run_group):
    slow, fast = (SLOW_S, (0.0, 0.0)), (0.0, (STEP_S, STEP_S))
    answers = run_group(2, train, (slow, slow, fast))
    assert lengths(answers) == [8, 8, 1]
    assert "rounds have 8 steps because an exchange delays them by" in answers[0][0][0].reason


@pytest.mark.parametrize("step_s_by_rank", [(STEP_S, 2 * STEP_S), (2 * STEP_S, STEP_S)])
def test_waits_for_a_slower_worker_make_no_rounds(run_group, step_s_by_rank):
    assert lengths(run_group(2, train, [(0.0, step_s_by_rank)])) == [1]


def attach_without_overlap(rank: int) -> str:
    module, optimizer = build()
    config = Config(method="qsgd", policy="cost_aware", local_steps=LOCAL)
    try:
        attach(module, config, optimizer, overlap=False)
    except HookError as error:
        return str(error)
    return ""


def test_a_session_that_can_measure_nothing_is_refused(run_group):
    for said in run_group(2, attach_without_overlap):
        assert "exchanges are measured only on CPUs, beside the backward pass" in said
