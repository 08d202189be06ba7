"""Quotas: laws of what jobs may hold."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from accordion_service.domain.capacity.allocation import plan_allocations
from accordion_service.domain.capacity.queue import AllocatedJob, PendingJob, QueueRules, plan_queue
from accordion_service.domain.capacity.quota_reservations import measure_usage
from accordion_service.domain.capacity.quotas import (
    Quota,
    QuotaTable,
    QuotaUsage,
    label_account,
    split_account,
    user_account,
)
from accordion_service.domain.capacity.resources import ResourceRequest, Resources
from accordion_service.domain.capacity.wait_causes import explain_queue
from accordion_service.domain.jobs.statuses import Reason
from tests.unit.service.test_queue import asked

ADA, BOB = user_account("ada"), user_account("bob")
MANY = [Resources(cpus=640, gpus=160)]


def rules(
    *, may_pause: bool = False, jobs: int | None = None, workers: int | None = None
) -> QueueRules:
    """Rules with a quota for ada."""
    quota = Quota(jobs=jobs, workers=workers)
    return QueueRules(quotas=QuotaTable(quotas={ADA: quota}), may_pause=may_pause)


def job(name: str, workers: int, accounts: tuple[str, ...] = (ADA,)) -> AllocatedJob:
    return AllocatedJob(id=name, request=asked(1, 8), allocated_workers=workers, accounts=accounts)


def waiting(
    name: str,
    least: int = 1,
    most: int = 8,
    *,
    priority: int = 0,
    accounts: tuple[str, ...] = (ADA,),
) -> PendingJob:
    return PendingJob(id=name, request=asked(least, most), priority=priority, accounts=accounts)


LIMITS = st.builds(
    Quota,
    jobs=st.none() | st.integers(0, 3),
    workers=st.none() | st.integers(0, 8),
    gpus=st.none() | st.sampled_from([0.0, 1.0, 4.0]),
)
TABLES = st.builds(
    lambda ada, any_user, team: QuotaTable(
        quotas={ADA: ada, user_account("*"): any_user, label_account("team", "x"): team}
    ),
    LIMITS,
    LIMITS,
    LIMITS,
)
WHOSE = st.tuples(
    st.sampled_from(["ada", "bob", "eve"]), st.sampled_from([{}, {"team": "x"}, {"team": "y"}])
)
REQUESTS = st.builds(
    lambda least, more, gpus: asked(least, least + more, gpus=gpus),
    st.integers(1, 4),
    st.integers(0, 4),
    st.sampled_from([0.0, 0.5, 1.0]),
)
Row = tuple[ResourceRequest, tuple[str, dict[str, str]], int]
PENDING = st.lists(st.tuples(REQUESTS, WHOSE, st.integers(0, 2)), max_size=6)


def turn(
    table: QuotaTable, jobs: list[AllocatedJob], pending: list[PendingJob], may_pause: bool
) -> list[AllocatedJob]:
    """Admit and resize jobs, as the scheduler does."""
    rules = QueueRules(quotas=table, may_pause=may_pause)
    admissions = plan_queue(pending, MANY, jobs, rules=rules)
    started = [
        AllocatedJob(
            id=one.id,
            request=one.request,
            allocated_workers=admissions[one.id].workers,
            priority=one.priority,
            accounts=one.accounts,
        )
        for one in pending
        if admissions[one.id].workers
    ]
    held = sorted([*jobs, *started], key=lambda one: -one.priority)
    left = [one for one in pending if not admissions[one.id].workers]
    changes = plan_allocations(held, left, MANY, rules=rules)
    new = [
        replace(one, allocated_workers=changes[one.id].workers) if one.id in changes else one
        for one in held
    ]
    return [one for one in new if one.allocated_workers]


def exceeds(table: QuotaTable, jobs: list[AllocatedJob], account: str) -> bool:
    limits, used = table.find_quota(account), measure_usage(jobs, table).find_usage(account)
    pairs = [(limits.jobs, used.jobs), (limits.workers, used.workers), (limits.gpus, used.gpus)]
    return any(limit is not None and held > limit + 1e-6 for limit, held in pairs)


def build_pending(table: QuotaTable, rows: list[Row]) -> list[PendingJob]:
    return [
        PendingJob(
            id=f"p{number}",
            request=request,
            priority=priority,
            accounts=table.list_accounts(owner, labels),
        )
        for number, (request, (owner, labels), priority) in enumerate(
            sorted(rows, key=lambda row: -row[2])
        )
    ]


@given(TABLES, PENDING, PENDING, st.booleans())
def test_no_start_and_no_growth_exceeds_a_quota(
    table: QuotaTable,
    early: list[Row],
    late: list[Row],
    may_pause: bool,
) -> None:
    jobs = turn(table, [], build_pending(table, early), may_pause)
    more = [replace(one, id=f"late-{one.id}") for one in build_pending(table, late)]
    jobs = turn(table, jobs, more, may_pause)
    for account in {account for one in jobs for account in one.accounts}:
        assert not exceeds(table, jobs, account), account


@given(TABLES, PENDING)
def test_only_quotas_keep_jobs_waiting_in_a_cluster_with_capacity_for_all(
    table: QuotaTable, rows: list[Row]
) -> None:
    pending = build_pending(table, rows)
    admissions = plan_queue(pending, MANY, [], rules=QueueRules(quotas=table))
    for one in pending:
        reason = admissions[one.id].reason
        assert reason in {Reason.ADMITTED, Reason.WAITING_FOR_QUOTA}
        assert one.accounts or reason is Reason.ADMITTED


SMALL = [Resources(cpus=8, gpus=2, node="n")]


def start_all(
    pending: list[PendingJob], held: list[AllocatedJob], rules: QueueRules
) -> list[AllocatedJob]:
    """Start jobs turn by turn until the plan starts no other one; return all that have workers."""
    plan = plan_queue(pending, SMALL, held, rules=rules)
    started = [
        AllocatedJob(
            id=one.id,
            request=one.request,
            allocated_workers=plan[one.id].workers,
            placed=("n",) * plan[one.id].workers,
            accounts=one.accounts,
        )
        for one in pending
        if plan[one.id].workers
    ]
    left = [one for one in pending if not plan[one.id].workers]
    return start_all(left, [*held, *started], rules) if started else held


@given(TABLES, PENDING, PENDING, st.booleans(), st.sets(st.sampled_from(["p0", "p1", "p2"])))
def test_a_job_is_told_to_wait_for_a_quota_exactly_if_the_plan_lets_it(
    table: QuotaTable, early: list[Row], late: list[Row], leaves: bool, awaiting: set[str]
) -> None:
    rules = QueueRules(quotas=table, awaiting_nodes=frozenset(awaiting))
    held = start_all(
        [replace(one, id=f"e{one.id}") for one in build_pending(table, early)], [], rules
    )
    held = [replace(one, leaving=leaves and one.id == "ep0") for one in held]
    pending = build_pending(table, late)
    held = start_all(pending, held, rules)
    waiting = [one for one in pending if one.id not in {job.id for job in held}]
    plan = plan_queue(waiting, SMALL, held, rules=rules)
    causes = explain_queue(waiting, SMALL, held, rules=rules, max_priority=9)
    for one in waiting:
        cause = causes[one.id]
        assert cause.for_quota == (plan[one.id].reason is Reason.WAITING_FOR_QUOTA)
        assert cause.remedies or not cause.for_quota
        never_starts = QuotaUsage(table).list_exhausted(one.accounts, one.request)
        assert cause.waits_for or never_starts or not cause.for_quota


def test_a_job_counts_towards_its_owner_and_its_labels() -> None:
    table = QuotaTable(quotas={user_account("*"): Quota(jobs=1), "label team:x": Quota(gpus=2)})
    assert table.list_accounts("ada", {"team": "x", "run": "1"}) == (ADA, "label team:x")
    assert table.list_accounts(None, {}) == ()
    assert (split_account(ADA).user, split_account("label team:x").label) == ("ada", "team:x")


def test_a_user_with_a_quota_has_no_other_one() -> None:
    any_user, own = Quota(jobs=1), Quota(workers=9)
    table = QuotaTable(quotas={user_account("*"): any_user, ADA: own})
    assert (table.find_quota(ADA), table.find_quota(BOB)) == (own, any_user)


def test_a_job_starts_with_as_many_workers_as_its_quota_allows() -> None:
    admission = plan_queue([waiting("a")], MANY, [job("r", 5)], rules=rules(workers=7))["a"]
    assert (admission.reason, admission.workers) == (Reason.ADMITTED, 2)


def test_a_job_that_waits_for_a_quota_blocks_no_other_user() -> None:
    pending = [waiting("a"), waiting("b", accounts=())]
    admissions = plan_queue(pending, [Resources(cpus=8, gpus=0)], [], rules=rules(jobs=0))
    assert admissions["a"].reason is Reason.WAITING_FOR_QUOTA
    assert admissions["b"].workers == 8


def test_the_message_names_the_quota_and_what_would_help() -> None:
    full = plan_queue([waiting("a", 2)], MANY, [job("r", 7)], rules=rules(workers=8, jobs=5))["a"]
    assert full.message == (
        "waits for the quota of user ada (5 jobs and 8 workers); it starts when jobs that count"
        " towards it end, or with a higher quota"
    )
    never = plan_queue([waiting("a", 9, 9)], MANY, [], rules=rules(workers=8))["a"]
    assert never.message == (
        "needs 9 workers of 1 CPU each at the same time, more than the quota of user ada"
        " (8 workers) allows; lower workers.min to 8, or ask an admin for a higher quota"
    )


def test_a_job_grows_no_further_than_its_quota() -> None:
    changes = plan_allocations([job("r", 2)], [], MANY, rules=rules(workers=5))
    assert changes["r"].workers == 5


def test_no_job_grows_into_a_quota_that_another_one_waits_for() -> None:
    jobs, limits = [job("r", 2)], rules(workers=5)
    assert plan_allocations(jobs, [waiting("a", 4)], MANY, rules=limits) == {}
    other = job("other", 2, accounts=())
    changes = plan_allocations([*jobs, other], [waiting("a", 4)], MANY, rules=limits)
    assert {name: change.workers for name, change in changes.items()} == {"other": 8}


def test_a_more_important_job_takes_workers_back_within_its_quota() -> None:
    jobs = [job("stranger", 4, accounts=()), job("own", 5)]
    changes = plan_allocations(jobs, [waiting("a", 2, priority=1)], MANY, rules=rules(workers=5))
    assert {name: change.workers for name, change in changes.items()} == {"own": 3}


def test_a_more_important_job_pauses_another_one_of_its_quota() -> None:
    jobs, head = [job("stranger", 4, accounts=()), job("own", 1)], waiting("a", priority=1)
    assert plan_allocations(jobs, [head], MANY, rules=rules(jobs=1)).keys() == {"stranger"}
    changes = plan_allocations(jobs, [head], MANY, rules=rules(may_pause=True, jobs=1))
    assert {name: change.workers for name, change in changes.items()} == {"own": 0}


def test_a_lowered_quota_takes_no_workers() -> None:
    assert plan_allocations([job("r", 5)], [], MANY, rules=rules(workers=1)) == {}


def test_later_jobs_of_a_quota_wait_behind_one_that_waits_for_it() -> None:
    pending = [waiting("wide", 4, 4), waiting("small", 1, 1), waiting("other", accounts=())]
    admissions = plan_queue(pending, MANY, [job("r", 3)], rules=rules(workers=4))
    assert [admissions[one.id].workers for one in pending] == [0, 0, 8]
    assert admissions["small"].reason is Reason.WAITING_FOR_QUOTA


def test_no_job_waits_behind_one_that_its_quota_never_lets_start() -> None:
    pending = [waiting("never", 9, 9), waiting("small", 1, 1)]
    admissions = plan_queue(pending, MANY, [], rules=rules(workers=4))
    assert admissions["small"].workers == 1


def test_a_job_whose_quota_is_about_to_be_released_keeps_its_capacity() -> None:
    """A preempted job must not start again while another one of the quota is still leaving."""
    nodes = [Resources(cpus=8, gpus=0, node="n")]
    leaving = replace(job("leaving", 4), leaving=True, placed=("n",) * 4)
    head, paused = waiting("head", 8, 8, priority=90), waiting("paused", 4, 4, accounts=())
    limits = rules(may_pause=True, workers=8)
    admissions = plan_queue([head, paused], nodes, [leaving], rules=limits)
    assert admissions["head"].reason is Reason.WAITING_FOR_QUOTA
    assert admissions["paused"].workers == 0
    assert plan_queue([head, paused], nodes, [], rules=limits)["head"].workers == 8


def test_no_job_uses_up_the_quota_of_one_that_waits_for_capacity() -> None:
    nodes = [Resources(cpus=16, gpus=4, node="gpus")]
    busy = AllocatedJob(
        id="busy", request=asked(4, 4, 1, 1), allocated_workers=4, placed=("gpus",) * 4
    )
    head = PendingJob(id="head", request=asked(4, 4, 1, 1), accounts=(ADA,))
    admissions = plan_queue([head, waiting("later", 1, 1)], nodes, [busy], rules=rules(workers=4))
    assert admissions["head"].reason is Reason.WAITING_FOR_ROOM
    assert admissions["later"].workers == 0
