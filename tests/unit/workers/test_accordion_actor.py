"""The Accordion actor as a plain class."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.base.errors import StateError
from accordion.base.messages import Report
from accordion.decide.controller import Controller
from accordion_workers.hub import accordion_actor as actor_module
from accordion_workers.hub.actor_messages import (
    DecideRequest,
    DecideResponse,
    Fenced,
    NotRegistered,
    Registration,
)
from accordion_workers.hub.record_sender import TICK_S
from accordion_workers.records.contract import (
    Cursor,
    DesiredState,
    EndRecord,
    LogLine,
    Progress,
    Record,
)
from tests.unit.workers.world import (
    JOB,
    LAYERS,
    SPEC,
    FakeCluster,
    cursor_of,
    note,
    record,
    token,
    until,
)


def controller() -> Controller:
    return Controller(SPEC.config(), LAYERS)


def report(epoch: int, norm: float = 1.0) -> Report:
    statistic = {layer.name: norm for layer in LAYERS}
    rates = {"lr": 0.1, "next_lr": 0.1}
    place = {"epoch": epoch, "step": 4 * (epoch + 1), "epoch_end": True}
    return Report(
        **place,
        **rates,
        world_size=2,
        global_batch=64,
        window_steps=4,
        statistic_by_layer=statistic,
    )


def registration(of: Controller) -> Registration:
    return Registration(spec=SPEC, layers=LAYERS, controller_state=of.state_dict())


def question(epoch: int) -> DecideRequest:
    return DecideRequest(report=report(epoch), number=epoch + 1)


def line(text: str) -> LogLine:
    return LogLine(attempt=1, rank=0, time=0.0, text=text)


def progress(step: int) -> Progress:
    counts = {"epoch": 0, "step": step, "steps_per_epoch": 4, "epochs": 2, "world_size": 2}
    rates = {"loss": 1.0, "lr": 0.1, "samples_per_s": 1.0, "bytes": {}, "seconds_by_phase": {}}
    return Progress(attempt=1, generation=1, time=0.0, **counts, **rates)


def test_a_run_that_has_ended_keeps_its_end_when_the_database_goes_back(
    cluster: FakeCluster,
) -> None:
    end = Record(
        attempt=1,
        generation=1,
        seq=4,
        time=0.0,
        payload=EndRecord(status="SUCCEEDED", reason="COMPLETED"),
    )
    cluster.call("post", JOB, token(), [record(1), record(2), record(3)])
    cluster.drain(cursor_of(record(3)))
    cluster.call("post", JOB, token(), [end])
    assert cluster.drain(cursor_of(record(1))).records == (end,)


def test_a_registered_job_gets_the_decisions_that_rank_0_would_make(cluster: FakeCluster) -> None:
    local = controller()
    cluster.call("register", JOB, token(), registration(local))
    for epoch in range(4):
        answer = cluster.call("decide", JOB, token(), question(epoch))
        assert answer == DecideResponse(decision=local.decide(report(epoch)))


def test_the_same_question_gets_the_same_answer(cluster: FakeCluster) -> None:
    cluster.call("register", JOB, token(), registration(controller()))
    cluster.call("decide", JOB, token(), question(0))
    answers = [cluster.call("decide", JOB, token(), question(1)) for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("epoch", [1, 5])
def test_a_question_of_a_job_that_went_on_without_the_actor_is_answered_with_unknown(
    cluster, epoch: int
) -> None:
    cluster.call("register", JOB, token(), registration(controller()))
    assert cluster.call("decide", JOB, token(), question(epoch)) == NotRegistered()


def test_a_question_older_than_the_actors_state_is_answered_with_unknown(
    cluster: FakeCluster,
) -> None:
    ahead = controller()
    ahead.decide(report(0))
    ahead.decide(report(1))
    cluster.call("register", JOB, token(), registration(ahead))
    assert (
        cluster.call("decide", JOB, token(), DecideRequest(report=report(0), number=2))
        == NotRegistered()
    )


def test_a_restarted_actor_asks_to_register_and_returns_the_recorded_decision(
    cluster,
) -> None:
    local = controller()
    proposal = local.decide(report(0))
    cluster.call("register", JOB, token(), registration(controller()))
    cluster.kill_actor()
    assert cluster.call("decide", JOB, token(), question(0)) == NotRegistered()
    cluster.call("register", JOB, token(), registration(local))
    assert cluster.call("decide", JOB, token(), question(0)) == DecideResponse(decision=proposal)


def test_a_new_generation_has_to_register_its_own_controller(cluster: FakeCluster) -> None:
    cluster.call("register", JOB, token(1), registration(controller()))
    assert cluster.call("decide", JOB, token(2), question(0)) == NotRegistered()


@pytest.mark.parametrize("older", [token(6, attempt=2), token(9, attempt=1)])
def test_nothing_of_an_older_generation_or_attempt_is_taken(cluster: FakeCluster, older) -> None:
    newest = token(7, attempt=2)
    cluster.call("register", JOB, newest, registration(controller()))
    calls = [
        ("register", registration(controller())),
        ("decide", question(0)),
        ("post", [record(0)]),
    ]
    answers = [cluster.call(method, JOB, older, content) for method, content in calls]
    assert answers == [Fenced(newest=newest)] * 3
    assert cluster.held() == []


def test_a_controller_state_of_another_model_is_refused(cluster: FakeCluster) -> None:
    other = Controller(SPEC.config(), LAYERS[:1])
    with pytest.raises(StateError, match="another model"):
        cluster.call("register", JOB, token(), registration(other))


@given(
    st.lists(
        st.tuples(st.sampled_from(["post", "drain"]), st.integers(0, 20), st.integers(0, 20)),
        max_size=30,
    )
)
def test_every_record_arrives_once_and_in_order_despite_repeated_posts_and_drains(
    steps,
) -> None:
    received, posted = [], set()
    # a cluster for every example, with a thread of its own: what runs in this one does not matter
    with closing(FakeCluster()) as cluster:
        for step, first, last in [*steps, ("drain", 0, 0)]:
            if step == "post":
                # an sender sends in order: nothing new is posted before what comes before it
                seqs = range(min(first, len(posted)), max(last, len(posted)))
                cluster.call("post", JOB, token(), [record(seq) for seq in seqs])
                posted |= set(seqs)
            else:
                received += cluster.drain(cursor_of(received[-1]) if received else None).records
    assert received == [record(seq) for seq in sorted(posted)]


def test_records_are_held_until_the_database_confirms_them_and_posters_learn_it(
    cluster: FakeCluster,
) -> None:
    cluster.call("post", JOB, token(), [record(seq) for seq in range(3)])
    assert cluster.held() == [note(0), note(1), note(2)]
    assert [item.seq for item in cluster.drain(cursor_of(record(1))).records] == [2]
    assert cluster.call("post", JOB, token(), [record(0)]).confirmed == cursor_of(record(1))
    assert cluster.held() == [note(2)]


def test_records_meant_for_a_dead_actor_are_refused_and_the_receipt_reports_the_loss(
    cluster,
) -> None:
    believed = cluster.call("post", JOB, token(), [record(0)]).incarnation
    cluster.kill_actor()
    receipt = cluster.call("post", JOB, token(), [record(1)], incarnation=believed)
    assert (cluster.held(), receipt.incarnation != believed) == ([], True)
    cluster.call("post", JOB, token(), [record(0), record(1)], incarnation=receipt.incarnation)
    assert cluster.held() == [note(0), note(1)]


def test_many_records_are_handed_over_in_portions(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_module, "DRAIN_LIMIT", 4)
    cluster.call("post", JOB, token(), [record(seq) for seq in range(6)])
    first = cluster.drain().records
    assert [item.seq for item in (*first, *cluster.drain(cursor_of(first[-1])).records)] == [
        0,
        1,
        2,
        3,
        4,
        5,
    ]


def test_the_newest_progress_is_kept_when_a_later_post_brings_none(cluster: FakeCluster) -> None:
    cluster.call("post", JOB, token(), [], progress=progress(1))
    cluster.call("post", JOB, token(), [], progress=progress(2))
    cluster.call("post", JOB, token(), [record(0)])
    assert cluster.drain().progress == progress(2)


def test_log_lines_are_handed_over_once_with_the_count_of_those_dropped(
    cluster: FakeCluster,
) -> None:
    cluster.call("log", JOB, [line("one")], 3)
    cluster.call("log", JOB, [line("two")], 4)
    drained = cluster.drain()
    assert ([item.text for item in drained.logs], drained.logs_dropped) == (["one", "two"], 7)
    assert (cluster.drain().logs, cluster.drain().logs_dropped) == ((), 0)


@pytest.mark.parametrize("text", ["x" * 99, "ü" * 49, ""])
def test_the_oldest_lines_are_dropped_and_counted_where_nobody_drains(
    cluster, monkeypatch, text: str
) -> None:
    monkeypatch.setattr(actor_module, "LOG_LIMIT_BYTES", 1000)
    for _ in range(30):
        cluster.call("log", JOB, [line(text)] * 99 + [line("newest")], 0)
    drained = cluster.drain()
    assert drained.logs[-1].text == "newest"
    assert len(drained.logs) + drained.logs_dropped == 3000
    assert len(drained.logs) <= 1000
    assert sum(len(item.text.encode()) for item in drained.logs) <= 1000


def test_whoever_watches_hears_of_new_orders_when_they_come(cluster: FakeCluster) -> None:
    heard: list[DesiredState] = []
    watcher = threading.Thread(
        target=lambda: heard.append(cluster("watch", JOB, 0, 60.0, timeout_s=60.0))
    )
    watcher.start()
    until(lambda: "watch" in cluster.calls)
    cluster.call("order", JOB, DesiredState(version=1, stop="cancel"))
    watcher.join(20.0)
    assert heard == [DesiredState(version=1, stop="cancel")]


def test_whoever_watches_in_vain_gets_the_orders_held(cluster: FakeCluster) -> None:
    cluster.call("order", JOB, DesiredState(version=3))
    assert cluster.call("watch", JOB, 3, 0.0) == DesiredState(version=3)
    assert cluster.call("watch", "another", -1, 0.0) == DesiredState()


def test_only_newer_orders_take_the_place_of_those_held(cluster: FakeCluster) -> None:
    versions = [
        cluster.call("order", JOB, DesiredState(version=version)) for version in (2, 1, 2, 3)
    ]
    assert versions == [2, 2, 2, 3]
    assert cluster.drain().orders_version == 3


def test_of_a_forgotten_job_nothing_is_held(cluster: FakeCluster) -> None:
    cluster.call("post", JOB, token(5), [record(0)])
    cluster.call("forget", JOB)
    cluster.call("forget", JOB)
    assert cluster.held() == []


def test_several_jobs_are_drained_in_one_call_each_above_its_cursor(cluster: FakeCluster) -> None:
    for job_id in ("a", "b"):
        cluster.call("post", job_id, token(), [record(0), record(1)])
    drained = cluster.call(
        "drain_many", {"a": Cursor(), "b": cursor_of(record(0)), "unknown": Cursor()}
    )
    assert {job_id: len(found.records) for job_id, found in drained.items()} == {
        "a": 2,
        "b": 1,
        "unknown": 0,
    }


def test_jobs_that_a_large_answer_has_no_room_for_come_first_the_next_time(
    cluster: FakeCluster, monkeypatch
) -> None:
    monkeypatch.setattr(actor_module, "DRAIN_LIMIT", 1)
    cursors = {job_id: Cursor() for job_id in "abc"}
    for job_id in cursors:
        cluster.call("post", job_id, token(), [record(0)])
    answers = [set(cluster.call("drain_many", cursors)) for _ in range(3)]
    assert set().union(*answers) == set(cursors)


@pytest.mark.parametrize("jobs", [1, 100, 1000])
def test_jobs_together_do_not_call_more_often_than_the_actor_can_answer(
    cluster: FakeCluster, jobs: int
) -> None:
    receipts = [cluster.call("post", f"job-{number}", token(), ()) for number in range(jobs)]
    pause_s = max(TICK_S, receipts[-1].pause_s)
    assert jobs / pause_s <= actor_module.POSTS_PER_S
    assert (pause_s == TICK_S) == (jobs <= 100)
