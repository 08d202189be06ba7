"""Why a worker group ended, and whether to try again."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import ActorDiedError, ActorUnavailableError, NodeDiedError, OutOfMemoryError
from torch.distributed import DistBackendError

from accordion.base.errors import ConfigError
from accordion_workers.common import error_text
from accordion_workers.common.error_text import is_user_code
from accordion_workers.common.errors import (
    CheckpointError,
    LossNotFinite,
    ProcessCrashed,
    ScriptMistaken,
    StorageError,
    TaskRaised,
)
from accordion_workers.controller import failure_policy
from accordion_workers.controller.failure_causes import (
    classify_start_failure,
    find_cause,
    find_fatal_reason,
)
from accordion_workers.controller.failure_policy import (
    FIRST_PAUSE_S,
    MAX_DEATHS,
    MAX_LOST_GROUPS,
    MAX_PAUSE_S,
    FailureCounts,
    GiveUp,
    Retry,
    decide_retry,
)
from accordion_workers.records.contract import CheckpointRecord, FailureRecord
from accordion_workers.training.context import Doing, RankProgress

RAISED = TaskRaised(3, 0, "ValueError: no such label")
GLOO = RuntimeError(
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4"
)
LOST = FailureRecord(cause="infrastructure", rank=1, message="the process of rank 1 is gone")
DIED = LOST.model_copy(update={"process_died": True})
STORAGE = LOST.model_copy(update={"is_storage": True})
OWN = LOST.model_copy(update={"cause": "job", "step": 3})


def own(step: int | None, message: str = "it raised") -> FailureRecord:
    return FailureRecord(cause="job", rank=0, epoch=0, step=step, message=message)


def saved(step: int) -> CheckpointRecord:
    return CheckpointRecord(name=f"c{step}", epoch=0, step=step, size_bytes=1, seconds=0.0)


def live(*failures: FailureRecord, max_failures: int = 3, progressed: bool = True, fatal=None):
    """The last move after these failures."""
    state, move = FailureCounts(), None
    for failure in failures:
        state, move = decide_retry(
            state, failure, progressed=progressed, max_failures=max_failures, fatal=fatal
        )
    return move


def test_a_storage_that_is_full_or_away_is_waited_for_and_never_ends_the_job() -> None:
    full = find_cause({0: OSError(errno.ENOSPC, "No space left on device"), 1: GLOO})
    assert full.is_storage
    move = live(*[full] * 10 * MAX_LOST_GROUPS, progressed=False)
    assert move == Retry(pause_s=MAX_PAUSE_S)


def test_a_storage_that_cannot_serve_the_job_ends_it_before_it_begins() -> None:
    refused = StorageError("checkpoints of this job cannot be kept")
    assert find_fatal_reason({0: refused, 1: GLOO}) == "START_FAILED"


@pytest.mark.parametrize(
    "death", [ActorDiedError(), ActorUnavailableError("", b"0" * 16), NodeDiedError("")]
)
@pytest.mark.parametrize("collateral", [GLOO, RAISED, DistBackendError("NCCL error")])
def test_a_dead_worker_explains_whatever_its_peers_raised(
    death: Exception, collateral: Exception
) -> None:
    failure = find_cause({0: collateral, 1: death})
    assert (failure.cause, failure.rank) == ("infrastructure", 1)
    assert failure.message.startswith("the process of rank 1 is gone")


def test_what_the_task_raised_wins_over_the_collectives_it_broke() -> None:
    failure = find_cause({0: GLOO, 1: RAISED, 2: GLOO})
    assert (failure.cause, failure.rank, failure.step, failure.epoch) == ("job", 1, 3, 0)
    assert failure.message == f"rank 1: {RAISED}"


def test_our_own_error_wins_over_a_foreign_one() -> None:
    assert find_cause({0: KeyError("x"), 1: LossNotFinite(9, 0, 10)}).rank == 1


@pytest.mark.parametrize("error", [GLOO, DistBackendError("NCCL error")])
def test_broken_collectives_alone_say_that_a_peer_is_gone(error: Exception) -> None:
    assert find_cause({1: error}).cause == "infrastructure"


def test_a_foreign_error_is_told_with_its_type_and_first_line() -> None:
    failure = find_cause({0: ValueError("no such label\nmore")})
    assert (failure.cause, failure.message) == ("job", "rank 0: ValueError: no such label")


def test_an_error_text_that_is_no_unicode_can_be_recorded() -> None:
    failure = find_cause({0: ValueError("file \udcff is missing")})
    assert "ValueError: file \ufffd is missing" in failure.model_dump_json()


def test_a_gpu_that_is_full_is_no_dead_process() -> None:
    assert find_cause({0: torch.OutOfMemoryError("CUDA out of memory")}).cause == "job"
    assert find_cause({0: OutOfMemoryError("Ray killed the worker")}).cause == "infrastructure"


@pytest.mark.parametrize(
    ("error", "cause"), [(ActorDiedError(), "infrastructure"), (ValueError("no"), "job")]
)
def test_a_failure_of_the_controller_names_no_rank(error: Exception, cause: str) -> None:
    failure = classify_start_failure(error)
    assert (failure.cause, failure.rank) == (cause, None)
    assert type(error).__name__ in failure.message
    assert failure.message.startswith("the worker group did not run: ")


def test_the_same_error_at_the_same_step_twice_in_a_row_ends_the_job() -> None:
    move = live(own(3), own(3))
    assert move == GiveUp(reason="TASK_RAISED", message="twice in a row: it raised")


@pytest.mark.parametrize(
    "failures", [[own(3), own(4)], [own(3), own(3, "other")], [own(3), own(4), own(3)]]
)
def test_other_errors_and_other_steps_are_tried_again(failures) -> None:
    assert live(*failures) == Retry(pause_s=FIRST_PAUSE_S)


def test_an_error_without_a_step_is_tried_again_until_the_budget_is_spent() -> None:
    assert live(*[own(None)] * 3) == Retry(pause_s=FIRST_PAUSE_S)
    assert live(*[own(None)] * 4).reason == "TOO_MANY_FAILURES"


@given(st.integers(1, 10))
def test_the_budget_counts_the_jobs_own_failures_only(max_failures: int) -> None:
    mixed = [failure for step in range(max_failures) for failure in (own(step), LOST)]
    assert isinstance(live(*mixed, max_failures=max_failures), Retry)
    spent = live(*mixed, own(max_failures), max_failures=max_failures)
    assert spent.reason == "TOO_MANY_FAILURES"
    assert f"max_failures is {max_failures}; the last: it raised" in spent.message


def test_a_supervisor_that_starts_again_knows_what_was_spent() -> None:
    spent = FailureCounts.restore([own(1), LOST, own(3)])
    assert spent == FailureCounts(own=2, lost_in_a_row=1, last=(3, "it raised"))
    assert FailureCounts.restore([LOST, LOST]) == FailureCounts(lost_in_a_row=2)
    assert FailureCounts.restore([LOST, saved(10), LOST, saved(10)]) == FailureCounts(
        lost_in_a_row=1
    )


def test_a_job_without_a_budget_ends_with_its_first_failure() -> None:
    assert live(own(3), max_failures=0) == GiveUp(reason="TASK_RAISED", message="it raised")


def test_an_error_that_no_retry_can_cure_ends_the_job_at_once() -> None:
    assert live(own(9), fatal="LOSS_NOT_FINITE") == GiveUp(
        reason="LOSS_NOT_FINITE", message="it raised"
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (LossNotFinite(9, 0, 10), "LOSS_NOT_FINITE"),
        (ScriptMistaken(3, 0, "CodeError: call session.step()"), "TASK_RAISED"),
        (TaskRaised(None, None, "ImportError: no module"), "TASK_RAISED"),
        (ConfigError("local_steps.budget is 500"), "START_FAILED"),
        (RAISED, None),
        (CheckpointError("torn"), None),
    ],
)
def test_which_errors_no_retry_can_cure(error: Exception, reason: str | None) -> None:
    assert find_fatal_reason({0: error, 1: GLOO}) == reason
    always = isinstance(error, LossNotFinite | ScriptMistaken)
    later = find_fatal_reason({0: error, 1: GLOO}, has_trained=True)
    assert later == (reason if always else None)


def test_groups_that_are_lost_without_progress_end_the_job_after_twenty() -> None:
    assert isinstance(live(*[LOST] * MAX_LOST_GROUPS, progressed=False), Retry)
    move = live(*[LOST] * (MAX_LOST_GROUPS + 1), progressed=False)
    assert move.reason == "LOST"
    assert "21 worker groups in a row were lost without a new checkpoint or epoch" in move.message


def test_groups_that_leave_a_new_checkpoint_may_be_lost_for_ever() -> None:
    assert live(*[LOST] * 100) == Retry(pause_s=0.0)


def test_pauses_between_lost_groups_double_up_to_a_limit() -> None:
    pauses = [live(*[LOST] * times, progressed=False).pause_s for times in range(1, 10)]
    assert pauses == [0.0, *(min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**power) for power in range(8))]


def at(step: int, doing: Doing = "training", epoch: int = 0) -> RankProgress:
    return RankProgress(step=step, epoch=epoch, doing=doing)


@pytest.mark.parametrize("doing", ["epoch end", "finished"])
@pytest.mark.parametrize(
    "errors", [{0: GLOO}, {0: GLOO, 1: GLOO}, {0: GLOO, 1: EOFError("Ran out of input")}]
)
def test_a_rank_that_left_its_loop_early_is_named_with_the_one_that_waits(
    errors, doing: Doing
) -> None:
    failure = find_cause(errors, {0: at(18), 1: at(18, doing)})
    assert (failure.cause, failure.rank, failure.step) == ("job", 1, 18)
    assert (
        "rank 1 left its loop after step 17 (epoch 0), and rank 0 waits for it in step 18"
        in failure.message
    )


@pytest.mark.parametrize("others", [at(17), at(18), at(18, epoch=1)])
def test_ranks_that_were_torn_apart_by_a_lost_peer_are_not_blamed(others: RankProgress) -> None:
    ahead = at(18, "epoch end") if others.step == 17 else at(18)
    assert find_cause({0: GLOO, 1: GLOO}, {0: ahead, 1: others}).cause == "infrastructure"


def test_a_rank_that_stayed_away_from_a_collective_is_named() -> None:
    failure = find_cause({0: GLOO}, {0: at(18), 1: at(18)})
    assert (failure.cause, failure.step) == ("infrastructure", 18)
    assert "rank 1 did not come back from it: it stayed in step 18" in failure.message


def test_a_process_that_its_own_code_ended_is_the_jobs_failure_with_its_line() -> None:
    crashed = ProcessCrashed("the process crashed with segmentation fault at train.py:17")
    failure = find_cause({0: GLOO, 1: crashed}, {0: at(4), 1: at(2)})
    assert (failure.cause, failure.rank, failure.step) == ("job", 1, 4)
    assert (
        failure.message
        == "rank 1, in step 4: the process crashed with segmentation fault at train.py:17"
    )


def test_a_dead_process_without_a_survivor_is_told_with_its_last_known_step() -> None:
    crashed = ProcessCrashed("the process crashed with aborted at train.py:17")
    assert find_cause({0: crashed}, {0: at(2)}).message.startswith(
        "rank 0, last seen in step 2: the process crashed"
    )
    assert (
        "rank 0 is gone, last seen in step 2"
        in find_cause({0: ActorDiedError()}, {0: at(2)}).message
    )


def test_a_process_that_crashes_while_it_starts_is_the_jobs_failure() -> None:
    failure = classify_start_failure(
        ProcessCrashed("the process ended itself with os._exit(3) at task.py:9")
    )
    assert (failure.cause, failure.rank) == ("job", None)
    assert "os._exit(3) at task.py:9" in failure.message


def test_groups_that_lose_a_process_again_and_again_without_progress_end_the_job() -> None:
    state = FailureCounts()
    for _ in range(MAX_DEATHS):
        state, move = decide_retry(state, DIED, progressed=False, max_failures=3, fatal=None)
    assert isinstance(move, GiveUp)
    assert move.reason == "NO_PROGRESS"
    assert move.message.startswith(
        "6 worker groups lost a process since the last new checkpoint or epoch"
    )


def test_a_group_that_is_lost_otherwise_in_between_does_not_hide_that_processes_die() -> None:
    state, moves = FailureCounts(), []
    for failure in [DIED, LOST] * MAX_DEATHS:
        state, move = decide_retry(state, failure, progressed=False, max_failures=3, fatal=None)
        moves.append(isinstance(move, GiveUp))
    assert moves.index(True) == 2 * (MAX_DEATHS - 1)


def test_a_checkpoint_of_a_group_that_the_storage_ended_counts_as_progress() -> None:
    state = FailureCounts()
    for _ in range(MAX_DEATHS - 1):
        state, _ = decide_retry(state, DIED, progressed=False, max_failures=3, fatal=None)
    away = LOST.model_copy(update={"is_storage": True})
    state, _ = decide_retry(state, away, progressed=True, max_failures=3, fatal=None)
    state, move = decide_retry(state, DIED, progressed=False, max_failures=3, fatal=None)
    assert (state.deaths, isinstance(move, Retry)) == (1, True)


@given(st.lists(st.sampled_from([DIED, LOST, STORAGE, OWN]), max_size=20))
def test_a_restarted_supervisor_counts_failures_as_the_one_before(
    failures: list[FailureRecord],
) -> None:
    state = FailureCounts()
    for failure in failures:
        state, _ = decide_retry(state, failure, progressed=False, max_failures=100, fatal=None)
    assert FailureCounts.restore(failures) == state


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.booleans())
def test_however_groups_are_lost_the_job_ends_unless_it_gets_further(
    deaths: list[bool], progressed: bool
) -> None:
    state, moves = FailureCounts(), []
    for died in deaths:
        state, move = decide_retry(
            state, DIED if died else LOST, progressed=progressed, max_failures=3, fatal=None
        )
        moves.append(isinstance(move, GiveUp))
    assert any(moves) <= (not progressed)
    assert progressed or len(deaths) <= MAX_LOST_GROUPS or any(moves)


@pytest.mark.parametrize(
    ("notice", "told"),
    [
        ("The actor died because its node has died. Node Id: 5", "its node is gone"),
        ("Worker exit detail: Worker exits with an exit code 4.", "it ended with exit code 4"),
        (
            "unexpectedly exits with a connection error code 2. End of file.",
            "it was killed by a signal (perhaps SIGKILL",
        ),
    ],
)
def test_what_ray_knows_of_a_death_is_told(notice: str, told: str) -> None:
    died = ActorDiedError()
    died.error_msg = notice
    assert told in find_cause({1: died}).message


def test_a_descriptor_that_was_closed_in_the_process_is_the_jobs_failure() -> None:
    closed = RuntimeError("[gloo/transport/tcp/pair.cc:534] Bad file descriptor")
    assert find_cause({0: GLOO, 1: closed}).rank == 1
    assert find_cause({1: OSError(errno.EBADF, "Bad file descriptor")}).cause == "job"


def test_code_of_the_training_side_is_not_the_users() -> None:
    ours = [Path(module.__file__ or "") for module in (error_text, failure_policy)]
    assert not any(is_user_code(str(path)) for path in ours)
    assert is_user_code(str(ours[0].parents[1] / "tasks/digits.py"))
