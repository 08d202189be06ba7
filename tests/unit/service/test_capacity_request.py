"""Laws of the request to the autoscaler: what it has, in which order, and what is tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion_service.domain.capacity.bin_packing import FreeCapacity
from accordion_service.domain.capacity.queue import AllocatedJob, PendingJob, QueueRules, plan_queue
from accordion_service.domain.capacity.quotas import Quota, QuotaTable
from accordion_service.domain.capacity.requests import (
    MAX_TIED_NODES,
    NODE_GROUP_LABEL,
    NODE_ID_LABEL,
    NOTHING,
    CapacityRequest,
    NodeType,
    list_within_quotas,
    plan_capacity,
)
from accordion_service.domain.capacity.resources import ResourceRequest, Resources
from accordion_service.domain.capacity.trials import (
    NO_TRIALS,
    RETRY_S,
    Trials,
    judge_request,
    renew_trials,
)
from accordion_service.domain.jobs.statuses import Reason
from accordion_workers.common.node_selectors import format_selector, node_matches, read_selector
from tests.unit.service.test_backfill import NAMED_NODES, RUNNING, place, running_job
from tests.unit.service.test_queue import ASKED, HELD, SHARES, WAITING, ZONE_A, ZONE_B, asked

NO_QUOTAS = QuotaTable()
ACCOUNTS = ["user ada", "user bob", "label team:vision"]
LIMITS = st.one_of(st.none(), st.integers(0, 4))
QUOTAS = st.dictionaries(
    st.sampled_from(ACCOUNTS), st.builds(Quota, jobs=LIMITS, workers=LIMITS)
).map(lambda quotas: QuotaTable(quotas=quotas))
LIMITED = st.lists(
    st.tuples(ASKED, st.lists(st.sampled_from(ACCOUNTS), unique=True)), max_size=6
).map(
    lambda rows: [
        PendingJob(id=str(n), request=replace(one, max=one.min), accounts=tuple(accounts))
        for n, (one, accounts) in enumerate(rows)
    ]
)
ROOMY = [
    Resources(
        cpus=1e4,
        gpus=1e4,
        custom=(("fpga", 1e4), ("licence", 1e4)),
        labels=zone,
        node=f"roomy-{number}",
    )
    for number, zone in enumerate([ZONE_A, ZONE_B])
]


def plan(
    pending: Sequence[PendingJob],
    allocated: Sequence[AllocatedJob] = (),
    nodes: Sequence[Resources] = (),
    *,
    foreign: Sequence[Resources] = (),
    node_types: Sequence[NodeType] = (),
    max_workers: int = 1000,
    quotas: QuotaTable = NO_QUOTAS,
    trials: Trials = NO_TRIALS,
    ties_use: bool = True,
) -> CapacityRequest:
    limits = {"max_workers": max_workers, "quotas": quotas, "trials": trials}
    known = {"foreign": foreign, "node_types": node_types, "ties_use": ties_use}
    return plan_capacity(pending, allocated, nodes, **limits, **known)


def judge(
    trials: Trials, request: CapacityRequest, *, is_feasible: bool, now: float = 0.0
) -> Trials:
    """Trials after the autoscaler has judged a request."""
    return judge_request(
        trials, request.groups, used=request.held, is_feasible=is_feasible, now=now
    )


def renew(trials: Trials, now: float, request: CapacityRequest = NOTHING) -> Trials:
    """Trials before the next request, where this was the last one."""
    return renew_trials(trials, request.groups, used=request.held, now=now)


def waiting(name: str, least: int, cpus: float = 1.0, gpus: float = 0.0) -> PendingJob:
    return PendingJob(id=name, request=asked(least, least, cpus, gpus))


def started_node(name: str, cpus: float = 4.0, gpus: float = 0.0, **labels: str) -> Resources:
    """A node that an autoscaler started."""
    own = {NODE_ID_LABEL: name, NODE_GROUP_LABEL: "workers", **labels}
    return Resources(cpus=cpus, gpus=gpus, labels=frozenset(own.items()), node=name)


@given(LIMITED, HELD, QUOTAS)
def test_nodes_are_requested_for_the_jobs_that_would_start_if_there_were_room(
    pending: list[PendingJob], held: list[Resources], quotas: QuotaTable
) -> None:
    running = [
        replace(running_job(f"r{n}", "", one.cpus, one.gpus), placed=(), accounts=("user ada",))
        for n, one in enumerate(held)
    ]
    admissions = plan_queue(pending, ROOMY, running, rules=QueueRules(quotas=quotas))
    starting = [job.id for job in pending if admissions[job.id].reason is Reason.ADMITTED]
    assert list(plan(pending, running, quotas=quotas).groups) == starting


@given(LIMITED, QUOTAS, st.integers(1, 12))
def test_jobs_are_requested_for_in_the_order_of_the_queue_and_within_the_limit(
    pending: list[PendingJob], quotas: QuotaTable, limit: int
) -> None:
    request = plan(pending, quotas=quotas, max_workers=limit)
    able = [job for job in list_within_quotas(pending, (), quotas) if job.request.min <= limit]
    assert list(request.groups) == [job.id for job in able][: len(request.groups)]
    assert sum(len(group) for group in request.groups.values()) <= limit
    assert bool(request.groups) == bool(able)


@given(NAMED_NODES, RUNNING, WAITING)
def test_capacity_in_use_is_requested_once_and_fits_its_node(
    nodes: list[Resources], rows: list[tuple[ResourceRequest, int]], pending: list[PendingJob]
) -> None:
    jobs = place(rows, nodes)
    request = plan([*pending, waiting("w", 1)], jobs, nodes)
    by_id = {node.node: node for node in nodes}
    assert sorted({name for job in jobs for name in job.placed}) == [p.node for p in request.held]
    for part in request.held:
        assert FreeCapacity.of(by_id[part.node]).fits(replace(part, selector=frozenset()))
    assert sum(part.cpus for part in request.held) == pytest.approx(
        sum(job.request.cpus for job in jobs)
    )


def serve(request: CapacityRequest, bad: set[float], most: int) -> bool:
    """Whether an autoscaler can serve a request that has no node type for some sizes, and at most
    so many workers.
    """
    groups = request.groups.values()
    return all(group[0].cpus not in bad for group in groups) and sum(map(len, groups)) <= most


@given(
    st.lists(st.tuples(st.integers(1, 4), SHARES), max_size=8), st.sets(SHARES), st.integers(0, 12)
)
def test_trials_end_with_every_job_that_can_be_served_beside_those_ahead(
    rows: list[tuple[int, float]], bad: set[float], most: int
) -> None:
    pending = [waiting(str(n), least, cpus) for n, (least, cpus) in enumerate(rows)]
    trials, left, served = NO_TRIALS, most, []
    for job in pending:
        if job.request.cpus not in bad and job.request.min <= left:
            left -= job.request.min
            served.append(job.id)
    for _ in range(4 * len(pending) + 2):
        request = plan(pending, trials=trials)
        trials = judge(trials, request, is_feasible=serve(request, bad, most))
    request = plan(pending, trials=trials)
    assert list(request.groups) == served
    assert request.obstacles.keys() == {job.id for job in pending} - set(served)
    assert trials.accepted == frozenset(served)


def test_a_job_that_waits_for_its_quota_requests_nothing() -> None:
    quotas = QuotaTable(quotas={"user ada": Quota(jobs=1)})
    jobs = [replace(waiting(name, 1), accounts=("user ada",)) for name in "ab"]
    assert list(plan(jobs, quotas=quotas).groups) == ["a"]


def test_nothing_is_requested_while_no_job_waits_and_every_worker_has_a_node() -> None:
    nodes = [started_node("a"), started_node("b")]
    foreign = [replace(nodes[1], cpus=1)]
    assert plan([], [running_job("r", "a", cpus=2)], nodes, foreign=foreign).bundles == ()


def test_the_request_has_what_is_in_use_while_a_worker_has_no_node() -> None:
    starting = AllocatedJob(id="s", request=asked(1, 1), allocated_workers=1)
    request = plan([], [running_job("r", "a", cpus=2), starting], [started_node("a")])
    assert [(part.cpus, format_selector(part.selector)) for part in request.bundles] == [
        (2.0, {NODE_ID_LABEL: "a"}),
        (1.0, {}),
    ]


def test_what_other_programs_use_is_added_while_a_job_waits() -> None:
    node = started_node("a", cpus=4)
    request = plan([waiting("w", 1)], (), [node], foreign=[replace(node, cpus=3)])
    assert [part.cpus for part in request.held] == [3.0]


def test_workers_that_leave_are_left_out_and_those_without_a_node_are_not_tied() -> None:
    leaving = replace(running_job("l", "a", cpus=2), leaving=True)
    starting = AllocatedJob(id="s", request=asked(2, 2), allocated_workers=2, placed=("gone",))
    request = plan([], [leaving, starting], [started_node("a")])
    assert request.held == (Resources(cpus=1.0, gpus=0.0),) * 2


def test_nodes_that_the_autoscaler_did_not_start_are_left_out_with_what_runs_there() -> None:
    by_hand = Resources(cpus=4, gpus=0, labels=frozenset({(NODE_ID_LABEL, "h")}), node="h")
    jobs, pending = (
        [running_job("r", "h", cpus=2), running_job("s", "a", cpus=3)],
        [waiting("w", 1)],
    )
    both = plan(pending, jobs, [by_hand, started_node("a")])
    assert [part.node for part in both.held] == ["a"]
    assert [part.node for part in plan(pending, jobs[:1], [by_hand]).held] == ["h"]


@pytest.mark.parametrize(
    "texts", [{"zone": "a"}, {"zone": "!b"}, {NODE_ID_LABEL: "!in(b,c)"}, {"zone": "a", "x": "!y"}]
)
def test_capacity_in_use_is_tied_to_its_node_by_more_conditions_than_any_job_has(
    texts: dict[str, str],
) -> None:
    job = PendingJob(id="w", request=replace(asked(1, 1), selector=read_selector(texts)))
    nodes = [started_node("a", zone="a"), started_node("b", zone="a"), started_node("c")]
    [held] = plan([job, waiting("v", 1)], [running_job("r", "a", cpus=2)], nodes).held
    assert len(held.selector) > len(texts)
    assert [node.node for node in nodes if node_matches(held.selector, node.labels)] == ["a"]


def test_many_used_nodes_are_requested_whole() -> None:
    names = [f"n{number}" for number in range(MAX_TIED_NODES + 1)]
    jobs, nodes = (
        [running_job(name, name, cpus=1) for name in names],
        list(map(started_node, names)),
    )
    many = plan([waiting("w", 1)], jobs, nodes).held
    assert [(part.cpus, part.selector) for part in many] == [(4.0, frozenset())] * len(names)
    fewer = plan([waiting("w", 1)], jobs[1:], nodes).held
    assert [part.cpus for part in fewer] == [1.0] * MAX_TIED_NODES
    assert all(part.selector for part in fewer)


def test_used_nodes_are_requested_whole_where_the_autoscaler_ignores_labels() -> None:
    nodes = [replace(started_node(name), memory=8e9) for name in "abc"]
    jobs = [running_job(name, name, cpus=1) for name in "ab"]
    held = plan([waiting("w", 1)], jobs, nodes, ties_use=False).held
    assert [(part.cpus, part.memory, part.selector) for part in held] == [
        (4.0, 8e9, frozenset())
    ] * 2


GPU_4 = NodeType(name="gpu-4", resources=Resources(cpus=16, gpus=4, memory=64e9))
CPU_64 = NodeType(name="cpu-64", resources=Resources(cpus=64, gpus=0, memory=8e9))


@pytest.mark.parametrize(
    ("worker", "why"),
    [
        ({"gpus": 8.0}, "no node type of the autoscaler has 8 GPUs; largest: gpu-4 with 4"),
        ({"cpus": 96.0}, "no node type of the autoscaler has 96 CPUs; largest: cpu-64 with 64"),
        ({"memory": 1e11}, "no node type of the autoscaler has 100 GB of memory; largest: gpu-4"),
        ({"custom": (("fpga", 1.0),)}, "no node type of the autoscaler has 1 fpga; none has any"),
        ({"cpus": 32.0, "gpus": 1.0}, "no node type of the autoscaler has all that a worker needs"),
    ],
)
def test_a_job_that_fits_no_node_type_is_named_and_left_out_of_the_request(
    worker: dict[str, object], why: str
) -> None:
    large = PendingJob(id="large", request=replace(asked(1, 1), **worker))
    request = plan([large, waiting("small", 1)], node_types=[GPU_4, CPU_64])
    assert list(request.groups) == ["small"]
    assert request.obstacles["large"].startswith(why)


def test_a_job_that_fits_a_node_of_the_cluster_needs_no_node_type() -> None:
    request = plan([waiting("w", 1, cpus=96)], (), [started_node("a", 128)], node_types=[GPU_4])
    assert list(request.groups) == ["w"]


def test_a_group_above_the_limit_is_named_and_keeps_no_other_job_from_the_request() -> None:
    request = plan([waiting("huge", 9), waiting("small", 2)], max_workers=8)
    assert list(request.groups) == ["small"]
    assert request.obstacles["huge"] == (
        "no nodes are requested: 9 workers are more than ACCORDION_AUTOSCALER_MAX_WORKERS,"
        " which is 8"
    )


def try_infeasible(*names: str) -> tuple[list[PendingJob], Trials]:
    """Jobs of different sizes, and the trials after each of them was infeasible."""
    pending = [waiting(name, 1, cpus=2.0**n) for n, name in enumerate(names)]
    trials = NO_TRIALS
    for _ in range(2 * len(names)):
        request = plan(pending, trials=trials)
        trials = judge(trials, request, is_feasible=not request.groups, now=100.0)
    return pending, trials


def test_what_was_infeasible_is_tried_again_later_at_first_one_job() -> None:
    pending, trials = try_infeasible("a", "b")
    soon = renew(trials, now=100.0 + RETRY_S - 1)
    assert plan(pending, trials=soon).groups == {}
    again = plan(pending, trials=renew(trials, now=100.0 + RETRY_S))
    assert list(again.groups) == ["a"]


def test_what_was_infeasible_is_tried_again_once_less_is_in_use() -> None:
    nodes, pending = [started_node("a"), started_node("b")], [waiting("w", 3, cpus=4)]
    jobs = [running_job("r", "a", cpus=2), running_job("s", "b", cpus=1)]
    request = plan(pending, jobs, nodes)
    trials = judge(NO_TRIALS, request, is_feasible=False)
    same = plan(pending, jobs, nodes, trials=trials)
    assert (same.groups, renew(trials, 1.0, same)) == ({}, trials)
    less = plan(pending, jobs[:1], nodes, trials=trials)
    again = plan(pending, jobs[:1], nodes, trials=renew(trials, 1.0, less))
    assert list(again.groups) == ["w"]


def test_what_was_infeasible_is_not_tried_again_early_while_an_accepted_job_waits() -> None:
    nodes, jobs = [started_node("a")], [running_job("r", "a", cpus=2)]
    pending = [waiting("small", 1), waiting("large", 1, cpus=8)]
    trials = judge(NO_TRIALS, plan(pending[:1], jobs, nodes), is_feasible=True)
    trials = judge(trials, plan(pending, jobs, nodes, trials=trials), is_feasible=False)
    less = plan(pending, (), nodes, trials=trials)
    assert list(less.groups) == ["small"]
    assert renew(trials, 1.0, less) == trials
    assert renew(trials, 1.0, plan(pending[1:], (), nodes, trials=trials)) != trials


def test_a_job_infeasible_beside_an_accepted_one_is_tried_again_after_that_one() -> None:
    nodes, first, second = [started_node("a")], waiting("first", 1, 4), waiting("second", 1, 3)
    trials = judge(NO_TRIALS, plan([first]), is_feasible=True)
    trials = judge(trials, plan([first, second], trials=trials), is_feasible=False)
    runs = plan([second], [running_job("first", "a", cpus=4)], nodes, trials=trials)
    assert renew(trials, 1.0, runs) == trials
    ended = plan([second], (), nodes, trials=trials)
    assert list(plan([second], trials=renew(trials, 2.0, ended)).groups) == ["second"]


def test_each_infeasible_job_is_tried_again_once_less_is_in_use_than_beside_it() -> None:
    nodes, pending = [started_node("a")], [waiting("x", 1, 9), waiting("y", 1, 8)]
    more, less = running_job("r", "a", cpus=3), running_job("r", "a", cpus=1)
    trials = judge(NO_TRIALS, plan(pending[:1], [more], nodes), is_feasible=False)
    request = plan(pending, [less], nodes, trials=trials)
    assert list(request.groups) == ["y"]
    trials = judge(trials, request, is_feasible=False)
    assert renew(trials, 1.0, plan(pending, [less], nodes, trials=trials)).infeasible == frozenset()


def test_one_infeasible_job_among_many_is_found_in_few_requests() -> None:
    pending = [waiting(str(n), 1, cpus=99.0 if n == 37 else 1 + n / 100) for n in range(100)]
    trials, num_requests = NO_TRIALS, 0
    while len(trials.accepted) < 99:
        request = plan(pending, trials=trials)
        trials = judge(trials, request, is_feasible=serve(request, {99.0}, 1000))
        num_requests += 1
        assert num_requests < 40
    assert plan(pending, trials=trials).obstacles.keys() == {"37"}


def test_accepted_jobs_are_requested_alone_after_an_infeasible_request() -> None:
    pending = [waiting("a", 1, cpus=1.0), waiting("b", 1, cpus=2.0)]
    trials = judge(NO_TRIALS, plan(pending[:1]), is_feasible=True)
    trials = judge(trials, plan(pending, trials=trials), is_feasible=False)
    more = [*pending, waiting("c", 1, cpus=4.0)]
    alone = plan(more, trials=trials)
    assert list(alone.groups) == ["a"]
    trials = judge(trials, alone, is_feasible=True)
    assert list(plan(more, trials=trials).groups) == ["a", "c"]


def test_a_clock_that_was_set_back_does_not_keep_a_job_infeasible() -> None:
    pending, trials = try_infeasible("a")
    assert list(plan(pending, trials=renew(trials, now=50.0)).groups) == ["a"]


def test_jobs_of_the_same_size_as_an_infeasible_one_are_not_tried() -> None:
    _, trials = try_infeasible("a")
    request = plan([waiting("twin", 1, cpus=1.0)], trials=trials)
    assert request.obstacles["twin"].startswith("the autoscaler cannot add nodes for 1 worker of")


def test_jobs_that_were_accepted_are_tried_anew_when_they_become_infeasible() -> None:
    pending = [waiting("a", 1, cpus=1), waiting("b", 1, cpus=2)]
    trials = judge(NO_TRIALS, plan(pending), is_feasible=True)
    trials = judge(trials, plan(pending, trials=trials), is_feasible=False)
    assert list(plan(pending, trials=trials).groups) == ["a"]


def test_an_accepted_job_stays_in_the_request_while_others_ahead_are_tried() -> None:
    accepted = judge(NO_TRIALS, plan([waiting("c", 1)]), is_feasible=True)
    pending = [waiting(name, 1, cpus=cpus) for name, cpus in [("a", 2.0), ("b", 4.0), ("c", 1.0)]]
    trials = judge(accepted, plan(pending, trials=accepted), is_feasible=False)
    trials = judge(trials, plan(pending, trials=trials), is_feasible=True)
    assert list(plan(pending, trials=trials).groups) == ["a", "c"]


def test_use_that_is_infeasible_by_itself_is_left_out_for_a_while() -> None:
    pending, jobs = [waiting("w", 1)], [running_job("r", "a", cpus=2)]
    nodes, trials = [started_node("a")], NO_TRIALS
    for _ in range(2):
        request = plan(pending, jobs, nodes, trials=trials)
        trials = judge(trials, request, is_feasible=False, now=100.0)
    request = plan(pending, jobs, nodes, trials=trials)
    assert (request.held, list(request.groups)) == ((), ["w"])
    assert plan(pending, jobs, nodes, trials=renew(trials, now=100.0 + RETRY_S)).held
