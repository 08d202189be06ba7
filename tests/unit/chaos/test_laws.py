"""Each law of `make chaos` names the history that breaks it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.owners import Plan
from tests.unit.chaos.lives import EPOCHS, Life, Run, finish


def ignore(plan: str, *, after: int = 2) -> Callable[[Life], None]:
    """The service accepts the order after so many epochs, and the job trains on to its end."""
    orders: dict[str, Callable[[Life], None]] = {
        "cancel": lambda life: life.order("CANCEL", "STOPPING"),
        "pause": lambda life: life.order("PAUSE", "PAUSING"),
        "pause_and_resume": lambda life: life.order("PAUSE", "PAUSING"),
        "override": lambda life: life.override(epoch=None),
        "resize": Life.resize,
    }

    def write(life: Life) -> None:
        life.start(workers=life.job.min_workers)
        life.train(after, workers=life.job.min_workers)
        orders[plan](life)
        life.train(EPOCHS - after, workers=life.job.min_workers)
        life.leave("SUCCEEDED")

    return write


IGNORED = {
    "cancel": "is SUCCEEDED (COMPLETED: ), not CANCELLED",
    "pause": "is SUCCEEDED (COMPLETED: ), not PAUSED",
    "pause_and_resume": "was never paused",
    "override": "its override was applied never and is EXPIRED: the job ended",
    "resize": "was resized to one worker, and 2 trained its last epoch",
}
UNSHOWN = "was carried out"
"""Words of the sentence about a plan that no job shows."""


def test_a_run_in_which_all_jobs_live_as_their_owners_want_breaks_no_law() -> None:
    assert Run().find_violations() == []


@pytest.mark.parametrize(("plan", "sentence"), IGNORED.items())
def test_an_ignored_order_is_named(plan: str, sentence: str) -> None:
    first, unshown = Run(**{plan: ignore(plan)}).find_violations()
    assert first.endswith(sentence)
    assert UNSHOWN in unshown


@pytest.mark.parametrize("plan", IGNORED)
def test_an_order_in_the_last_epoch_may_come_too_late(plan: str) -> None:
    [unshown] = Run(**{plan: ignore(plan, after=EPOCHS - 1)}).find_violations()
    assert UNSHOWN in unshown


@pytest.mark.parametrize("plan", IGNORED)
def test_an_order_that_was_accepted_and_not_stored_is_named(plan: Plan) -> None:
    run = Run(**{plan: finish})
    assert any("no event of the order" in sentence for sentence in run.find_violations())


@pytest.mark.parametrize(
    ("status", "seconds_after_end", "num_broken"),
    [("SUCCEEDED", 1, 0), ("SUCCEEDED", -1, 1), ("RUNNING", 1, 1)],
)
def test_a_refused_order_is_named_unless_the_job_had_ended(
    status: str, seconds_after_end: int, num_broken: int
) -> None:
    run = Run(cancel=finish)
    job = run.lives["cancel"].job
    job.refused = f"job {job.id} is {status} and cannot be cancelled any more"
    job.refused_at = (run.lives["cancel"].row.ended_at or 0) + seconds_after_end
    *broken, unshown = run.find_violations()
    assert UNSHOWN in unshown
    assert ["had not ended when" in sentence for sentence in broken] == [True] * num_broken


def grow_again(life: Life) -> None:
    life.start(workers=2)
    life.resize()
    for workers in (2, 1, 2, 1):
        life.train(1, workers=workers)
    life.train(EPOCHS - 4)
    life.leave("SUCCEEDED")


def return_to_the_policy(life: Life) -> None:
    life.start()
    life.override(epoch=0)
    life.train(3, level="low")
    life.train(EPOCHS - 3)
    life.leave("SUCCEEDED")


def reject(life: Life) -> None:
    life.start()
    life.override(epoch=None, state="REJECTED")
    life.train(EPOCHS)
    life.leave("SUCCEEDED")


def forget_override(life: Life) -> None:
    ignore("override")(life)
    life.overrides.clear()


@pytest.mark.parametrize(
    ("plan", "write", "sentence"),
    [
        ("resize", grow_again, "grew after it was resized to one worker: [2, 1, 2, 1, 1, 1]"),
        ("override", return_to_the_policy, "levels ['high', 'low'] after the override to low"),
        ("override", reject, "was applied never and is REJECTED"),
        ("override", forget_override, "has 0 overrides of one"),
    ],
)
def test_an_order_that_does_not_last_is_named(
    plan: str, write: Callable[[Life], None], sentence: str
) -> None:
    assert any(sentence in found for found in Run(**{plan: write}).find_violations())


def lose_progress(life: Life) -> None:
    life.row.progress = {"epoch": 1}


def lose_last_epoch(life: Life) -> None:
    life.epochs.pop()


def lose_first_epoch(life: Life) -> None:
    life.epochs.pop(0)


def tell_twice(life: Life) -> None:
    [*_, last] = (event for event in life.events if event.type == "epoch")
    life.tell("epoch", **last.data)


def train_unseen(life: Life) -> None:
    life.epochs[-1].generation += 1


def train_backwards(life: Life) -> None:
    life.epochs[-1].time = life.epochs[0].time


def train_half(life: Life) -> None:
    life.epochs[-1].record = {**life.epochs[-1].record, "samples": 4}


def lose_event(life: Life) -> None:
    life.events.pop(1)


def miss_event(life: Life) -> None:
    life.job.seen.pop()


def receive_twice(life: Life) -> None:
    life.job.seen.append(life.job.seen[-1])


def fail_watcher(life: Life) -> None:
    life.job.watcher_error = "Unreachable()"


@pytest.mark.parametrize("plan", ["finish", "cancel", "pause"])
@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lose_progress, "its progress says 1"),
        (lose_last_epoch, " epochs, and its progress says "),
        (lose_first_epoch, "has the epochs [1"),
        (tell_twice, "several events of the epochs"),
        (train_unseen, "no event of the epochs (attempt, generation, epoch) [(1, 2,"),
        (train_backwards, "before the ones ahead of them"),
        (train_half, "epochs of different lengths"),
        (lose_event, "events have the numbers [1, 3,"),
        (miss_event, "its watcher received the events"),
        (receive_twice, "its watcher received the events"),
        (fail_watcher, "its watcher failed: Unreachable()"),
    ],
)
def test_a_damaged_history_is_named(
    plan: Plan, damage: Callable[[Life], None], sentence: str
) -> None:
    run = Run()
    damage(run.lives[plan])
    job = run.lives[plan].job
    named = f"{job.owner}-{job.number} ({plan}): "
    found = run.find_violations()
    assert any(one.startswith(named) and sentence in one for one in found), found


def test_a_job_that_succeeds_with_too_few_epochs_is_named() -> None:
    run = Run()
    run.lives["finish"].job.epochs += 1
    assert run.find_violations() == [f"ada-0 (finish): has {EPOCHS} epochs of {EPOCHS + 1}"]


def test_an_owner_whose_jobs_hold_more_workers_than_the_quota_is_named() -> None:
    run, another = Run(), Life("finish", 8)
    finish(another)
    run.add(another)
    assert run.find_violations() == ["the jobs of cyd held 4 workers of 3"]


def test_a_granted_worker_counts_towards_the_quota() -> None:
    run = Run()
    event = run.lives["resize"].events[3]
    event.type, event.data = "workers", {"what": "granted", "old": 2, "new": 3}
    assert "the jobs of cyd held 4 workers of 3" in run.find_violations()


@pytest.mark.parametrize(
    ("priority", "waited_s", "workers", "num_broken"),
    [(80, 20, 1, 1), (40, 20, 1, 0), (80, 5, 1, 0), (80, 20, 2, 0)],
)
def test_a_job_that_passes_a_more_important_one_that_fits_is_named(
    priority: int, waited_s: float, workers: int, num_broken: int
) -> None:
    run, start_at = Run(), 2000.0
    late = Life("finish", 6, begins_at=start_at - 2)
    waiting = Life("resize" if workers == 2 else "finish", 7, begins_at=start_at - 1 - waited_s)
    waiting.job.priority = priority
    for life in (late, waiting):
        life.start(workers=1)
    waiting.events[1].time = waiting.events[2].time = start_at + 10
    for life in (late, waiting):
        run.add(life)
    passed = [sentence for sentence in run.find_violations() if "waited for" in sentence]
    assert len(passed) == num_broken


@pytest.mark.parametrize(("held", "num_broken"), [(3, 0), (2, 1)])
def test_a_job_may_pass_one_whose_owner_holds_the_quota(held: int, num_broken: int) -> None:
    run, start_at = Run(), 2000.0
    late = Life("finish", 6, begins_at=start_at - 2)
    holder = Life("finish", 10, begins_at=start_at - 100)
    waiting = Life("finish", 7, begins_at=start_at - 21)
    waiting.job.priority = 80
    holder.start(workers=held)
    late.start()
    waiting.become("QUEUED", "WAITING_FOR_QUOTA")
    for life in (late, holder, waiting):
        run.add(life)
    passed = [sentence for sentence in run.find_violations() if "waited for" in sentence]
    assert len(passed) == num_broken


def test_a_run_without_a_preemption_or_a_full_quota_is_named() -> None:
    def start_at_once(life: Life) -> None:
        life.start()
        life.train(EPOCHS)
        life.leave("SUCCEEDED")

    found = Run(finish=start_at_once).find_violations()
    assert found == ["no job was ever PREEMPTED", "no job was ever WAITING_FOR_QUOTA"]
