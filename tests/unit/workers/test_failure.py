"""Why a worker group ended, and whether to try again."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import ActorDiedError, ActorUnavailableError, NodeDiedError, OutOfMemoryError
from torch.distributed import DistBackendError

from workers.contract import FailureRecord
from workers.errors import CheckpointError, LossNotFinite, TaskRaised
from workers.failure import (
    CONTROLLER,
    FIRST_PAUSE_S,
    MOST_LOST_GROUPS,
    MOST_PAUSE_S,
    Failures,
    GiveUp,
    Retry,
    failure_of,
    fatal_reason,
    next_move,
)

RAISED = TaskRaised(3, 0, "ValueError: no such label")
GLOO = RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4")
LOST = FailureRecord(cause="infrastructure", rank=1, message="the process of rank 1 is gone")


def own(step: int | None, message: str = "it raised") -> FailureRecord:
    return FailureRecord(cause="job", rank=0, epoch=0, step=step, message=message)


def live(*failures: FailureRecord, most_own: int = 3, progressed: bool = True, fatal=None):
    """The last move after these failures."""
    state, move = Failures(), None
    for failure in failures:
        state, move = next_move(state, failure, progressed=progressed, most_own=most_own, fatal=fatal)
    return move


@pytest.mark.parametrize("death", [ActorDiedError(), ActorUnavailableError("", b"0" * 16), NodeDiedError("")])
@pytest.mark.parametrize("collateral", [GLOO, RAISED, DistBackendError("NCCL error")])
def test_a_dead_worker_explains_whatever_its_peers_raised(death: Exception, collateral: Exception) -> None:
    failure = failure_of({0: collateral, 1: death})
    assert (failure.cause, failure.rank, failure.message) == ("infrastructure", 1, "the process of rank 1 is gone")


def test_what_the_task_raised_wins_over_the_collectives_it_broke() -> None:
    failure = failure_of({0: GLOO, 1: RAISED, 2: GLOO})
    assert (failure.cause, failure.rank, failure.step, failure.epoch) == ("job", 1, 3, 0)
    assert failure.message == str(RAISED)


def test_our_own_error_wins_over_a_foreign_one() -> None:
    assert failure_of({0: KeyError("x"), 1: LossNotFinite(9, 0, 10)}).rank == 1


@pytest.mark.parametrize("error", [GLOO, DistBackendError("NCCL error")])
def test_broken_collectives_alone_say_that_a_peer_is_gone(error: Exception) -> None:
    assert failure_of({1: error}).cause == "infrastructure"


def test_a_foreign_error_is_told_with_its_type_and_first_line() -> None:
    failure = failure_of({0: ValueError("no such label\nmore")})
    assert (failure.cause, failure.message) == ("job", "ValueError: no such label")


def test_an_error_text_that_is_no_unicode_can_be_recorded() -> None:
    failure = failure_of({0: ValueError("file \udcff is missing")})
    assert "ValueError: file \ufffd is missing" in failure.model_dump_json()


def test_a_gpu_that_is_full_is_no_dead_process() -> None:
    assert failure_of({0: torch.OutOfMemoryError("CUDA out of memory")}).cause == "job"
    assert failure_of({0: OutOfMemoryError("Ray killed the worker")}).cause == "infrastructure"


@pytest.mark.parametrize(("error", "cause"), [(ActorDiedError(), "infrastructure"), (ValueError("no"), "job")])
def test_a_failure_of_the_controller_names_no_rank(error: Exception, cause: str) -> None:
    failure = failure_of({CONTROLLER: error})
    assert (failure.cause, failure.rank) == (cause, None)
    assert type(error).__name__ in failure.message
    assert failure.message.startswith("the worker group did not run: ")


def test_the_same_error_at_the_same_step_twice_in_a_row_ends_the_job() -> None:
    move = live(own(3), own(3))
    assert move == GiveUp(reason="TASK_RAISED", message="twice in a row: it raised")


@pytest.mark.parametrize("failures", [[own(3), own(4)], [own(3), own(3, "other")], [own(3), own(4), own(3)]])
def test_other_errors_and_other_steps_are_tried_again(failures) -> None:
    assert live(*failures) == Retry(pause_s=FIRST_PAUSE_S)


def test_an_error_without_a_step_is_tried_again_until_the_budget_is_spent() -> None:
    assert live(*[own(None)] * 3) == Retry(pause_s=FIRST_PAUSE_S)
    assert live(*[own(None)] * 4).reason == "TOO_MANY_FAILURES"


@given(st.integers(1, 10))
def test_the_budget_counts_the_jobs_own_failures_only(most_own: int) -> None:
    mixed = [failure for step in range(most_own) for failure in (own(step), LOST)]
    assert isinstance(live(*mixed, most_own=most_own), Retry)
    spent = live(*mixed, own(most_own), most_own=most_own)
    assert spent.reason == "TOO_MANY_FAILURES"
    assert f"max_failures is {most_own}; the last: it raised" in spent.message


def test_a_supervisor_that_starts_again_knows_what_was_spent() -> None:
    spent = Failures.recorded([own(1), LOST, own(3)])
    assert spent == Failures(own=2, last=(3, "it raised"))
    assert Failures.recorded([LOST]) == Failures()


def test_a_job_without_a_budget_ends_with_its_first_failure() -> None:
    assert live(own(3), most_own=0) == GiveUp(reason="TASK_RAISED", message="it raised")


def test_an_error_that_no_retry_can_cure_ends_the_job_at_once() -> None:
    assert live(own(9), fatal="LOSS_NOT_FINITE") == GiveUp(reason="LOSS_NOT_FINITE", message="it raised")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (LossNotFinite(9, 0, 10), "LOSS_NOT_FINITE"),
        (TaskRaised(None, None, "ImportError: no module"), "TASK_RAISED"),
        (RAISED, None),
        (CheckpointError("torn"), None),
    ],
)
def test_which_errors_no_retry_can_cure(error: Exception, reason: str | None) -> None:
    assert fatal_reason({0: error, 1: GLOO}) == reason


def test_groups_that_are_lost_without_a_step_end_the_job_after_twenty() -> None:
    assert isinstance(live(*[LOST] * MOST_LOST_GROUPS, progressed=False), Retry)
    move = live(*[LOST] * (MOST_LOST_GROUPS + 1), progressed=False)
    assert move.reason == "LOST"
    assert "21 worker groups in a row were lost without a step" in move.message


def test_groups_that_are_lost_after_a_step_never_end_the_job() -> None:
    assert live(*[LOST] * 100) == Retry(pause_s=0.0)


def test_pauses_between_lost_groups_double_up_to_a_limit() -> None:
    pauses = [live(*[LOST] * times, progressed=False).pause_s for times in range(1, 10)]
    assert pauses == [0.0, *(min(MOST_PAUSE_S, FIRST_PAUSE_S * 2**power) for power in range(8))]
