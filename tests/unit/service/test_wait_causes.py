"""What the queue says a job waits for, and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from accordion_service.domain.capacity import wait_causes
from accordion_service.domain.capacity.allocation import Allocation, plan_allocations
from accordion_service.domain.capacity.queue import AllocatedJob, PendingJob, QueueRules, plan_queue
from accordion_service.domain.capacity.quotas import Quota, QuotaTable
from accordion_service.domain.capacity.resources import ResourceRequest, Resources
from accordion_service.domain.capacity.wait_causes import WaitCause, explain_queue
from accordion_service.domain.jobs.statuses import Reason
from accordion_workers.common.node_selectors import read_selector

GPU_NODE = Resources(cpus=8, gpus=1, node="g", memory=16e9)
CPU_NODE = Resources(cpus=8, gpus=0, node="c", memory=8e9)
NODES = [GPU_NODE, CPU_NODE]


def asked(workers: int = 1, *, cpus: float = 1.0, gpus: float = 0.0) -> ResourceRequest:
    return ResourceRequest(min=workers, max=workers, cpus=cpus, gpus=gpus)


def holds(name: str, request: ResourceRequest, *placed: str) -> AllocatedJob:
    return AllocatedJob(id=name, request=request, allocated_workers=len(placed), placed=placed)


def explain(
    request: ResourceRequest,
    allocated: Sequence[AllocatedJob] = (),
    *,
    nodes: Sequence[Resources] = NODES,
    foreign: Sequence[Resources] = (),
) -> WaitCause:
    """Explain the only job of a queue."""
    job = PendingJob(id="new", request=request)
    causes = explain_queue([job], nodes, allocated, foreign=foreign, max_priority=0)
    return causes["new"]


def test_the_head_of_the_queue_waits_only_for_jobs_that_hold_what_it_lacks() -> None:
    jobs = [
        holds("gpu", asked(gpus=1), "g"),
        holds("cpus", asked(2, cpus=3), "g", "c"),
        holds("elsewhere", asked(cpus=4), "c"),
    ]
    assert explain(asked(gpus=1), jobs).waits_for == ("gpu",)


def test_jobs_whose_room_helps_only_together_are_all_named() -> None:
    jobs = [holds("a", asked(cpus=4), "c"), holds("b", asked(cpus=3), "c")]
    assert explain(asked(cpus=8), jobs, nodes=[CPU_NODE]).waits_for == ("a", "b")


def test_a_job_whose_room_is_too_small_to_matter_is_not_named() -> None:
    jobs = [holds("tiny", asked(cpus=0.5), "c"), holds("large", asked(cpus=6), "c")]
    foreign = [Resources(cpus=1.5, gpus=0, node="c")]
    found = explain(asked(cpus=4), jobs, nodes=[CPU_NODE], foreign=foreign)
    assert found.waits_for == ("large",)


def test_a_job_whose_workers_have_no_known_node_may_hold_what_is_lacking() -> None:
    unknown = replace(holds("a", asked(cpus=8), "c"), placed=None)
    gpu = replace(holds("b", asked(gpus=1), "g"), placed=None)
    assert explain(asked(cpus=8), [unknown, gpu], nodes=[CPU_NODE]).waits_for == ("a",)


def test_a_job_that_waits_for_other_programs_alone_waits_for_no_job() -> None:
    foreign = [Resources(cpus=8, gpus=0, node="c")]
    jobs, small = [holds("a", asked(cpus=1), "g")], replace(GPU_NODE, cpus=2)
    assert explain(asked(cpus=8), jobs, nodes=[CPU_NODE, small], foreign=foreign).waits_for == ()


def test_a_job_that_starts_with_the_next_turn_waits_for_none() -> None:
    assert explain(asked(), [holds("a", asked(), "c")]) == WaitCause()


@pytest.mark.parametrize(
    ("request_", "remedies"),
    [
        (
            asked(20),
            (
                "a minimum of 16 workers: it then fits the cluster",
                "a clone whose workers take less",
                "more nodes",
            ),
        ),
        (asked(cpus=9), ("a clone whose workers take less", "more nodes")),
        (
            replace(asked(), memory=17e9),
            ("a clone with workers.memory of 16.0 GB or less", "larger nodes"),
        ),
        (
            replace(asked(), selector=read_selector({"zone": "b"})),
            ("a clone with other workers.node_labels", "nodes with zone=b"),
        ),
        (
            replace(asked(), custom=(("fpga", 1.0),)),
            ("a clone with other workers.resources", "nodes with fpga"),
        ),
    ],
    ids=["too many", "too large", "memory", "labels", "custom resources"],
)
def test_a_job_that_never_fits_is_told_what_would_help(
    request_: ResourceRequest, remedies: tuple[str, ...]
) -> None:
    assert explain(request_).remedies == remedies


@pytest.mark.parametrize(
    ("changes", "remedies"),
    [
        ({"cpus": 9.0}, ("a clone whose workers take less", "more nodes with zone!=b")),
        (
            {"memory": 17e9},
            ("a clone with workers.memory of 16.0 GB or less", "larger nodes with zone!=b"),
        ),
        (
            {"custom": (("fpga", 1.0),)},
            ("a clone with other workers.resources", "nodes with fpga and zone!=b"),
        ),
    ],
    ids=["too large", "memory", "custom resources"],
)
def test_nodes_that_would_help_a_job_have_its_labels(
    changes: dict[str, Any], remedies: tuple[str, ...]
) -> None:
    request = replace(asked(), selector=read_selector({"zone": "!b"}), **changes)
    assert explain(request).remedies == remedies


def test_the_minimum_that_is_suggested_fits() -> None:
    smaller = PendingJob(id="new", request=asked(16))
    assert plan_queue([smaller], NODES, [])["new"].workers == 16


def closed(*names: str) -> list[Resources]:
    return [
        Resources(cpus=4, gpus=0, node=f"id-{name}", name=name, unschedulable=f"{name} is cordoned")
        for name in names
    ]


def test_each_node_that_would_be_enough_is_a_remedy() -> None:
    found = explain(asked(4), nodes=closed("a", "b", "c"))
    assert found.remedies == (
        "node a taking workers again",
        "node b taking workers again; 1 more would do",
    )


def test_nodes_that_are_enough_together_are_one_remedy() -> None:
    open_node = Resources(cpus=2, gpus=0, node="open")
    found = explain(asked(12), nodes=[open_node, *closed("a", "b", "c")])
    assert found.remedies == (
        "a minimum of 2 workers: it then fits the cluster",
        "nodes a, b and 1 more taking workers again",
    )


def test_a_node_on_which_its_workers_could_not_start_is_a_remedy() -> None:
    node = Resources(cpus=4, gpus=0, node="id-a", name="a")
    request = replace(asked(), avoid=frozenset({"id-a"}))
    assert explain(request, nodes=[node]).remedies == (
        "node a being tried again, 5 minutes after the job could not start there",
    )


def test_a_cordoned_node_with_room_is_a_remedy_of_the_head() -> None:
    busy = holds("a", asked(8), *["c"] * 8)
    found = explain(asked(2), [busy], nodes=[CPU_NODE, *closed("x")])
    assert found.waits_for == ("a",)
    assert found.remedies == ("node x taking workers again",)


USER, LABEL = "user ada", "label team:x"
QUOTAS = QueueRules(quotas=QuotaTable(quotas={USER: Quota(workers=2), LABEL: Quota(jobs=1)}))


def explain_all(*jobs: PendingJob) -> dict[str, WaitCause]:
    """Explain a queue behind a job that uses up the quota of the label."""
    held = [replace(holds("held", asked(), "c"), accounts=(LABEL,))]
    reasons = plan_queue(jobs, NODES, held, rules=QUOTAS)
    assert {one.reason for one in reasons.values()} == {Reason.WAITING_FOR_QUOTA}
    return explain_queue(jobs, NODES, held, rules=QUOTAS, max_priority=0)


def test_a_job_waits_for_the_one_ahead_that_keeps_some_of_its_quota() -> None:
    first = PendingJob(id="first", request=asked(2), accounts=(USER, LABEL))
    others = [PendingJob(id=name, request=asked(), accounts=(USER,)) for name in ("b", "c")]
    causes = explain_all(first, *others)
    assert causes["first"].waits_for == ("held",)
    remedies = ("a higher quota of user ada",)
    expected = WaitCause(waits_for=("first",), for_quota=True, remedies=remedies)
    assert [causes[name] for name in ("b", "c")] == [expected] * 2


def test_a_job_waits_for_the_first_one_that_waits_for_the_same_quota() -> None:
    alike = [PendingJob(id=name, request=asked(), accounts=(LABEL,)) for name in ("a", "b", "c")]
    causes = explain_all(*alike)
    assert causes["a"].waits_for == ("held",)
    assert causes["b"].waits_for == causes["c"].waits_for == ("a", "held")


def test_a_job_that_no_quota_ever_lets_start_keeps_nothing_of_it() -> None:
    never = PendingJob(id="never", request=asked(3), accounts=(USER, LABEL))
    behind = PendingJob(id="behind", request=asked(), accounts=(LABEL,))
    assert explain_all(never, behind)["behind"].waits_for == ("held",)


def explain_behind_a_job_that_awaits_gpus(request: ResourceRequest) -> tuple[str, ...]:
    """List the remedies of a job whose quota has workers left, but a job ahead waits for it."""
    limits = QueueRules(quotas=QuotaTable(quotas={LABEL: Quota(gpus=2, workers=4)}))
    held = [replace(holds("held", asked(gpus=1), "g"), accounts=(LABEL,))]
    first = PendingJob(id="first", request=asked(2, gpus=1), accounts=(LABEL,))
    behind = PendingJob(id="behind", request=request, accounts=(LABEL,))
    nodes = [replace(GPU_NODE, gpus=4)]
    causes = explain_queue([first, behind], nodes, held, rules=limits, max_priority=0)
    assert causes["first"].remedies == ("a higher quota of label team:x", "a minimum of 1 worker")
    return causes["behind"].remedies


@pytest.mark.parametrize("workers", [1, 3])
def test_no_other_minimum_is_a_remedy_for_a_quota_that_a_job_ahead_awaits(workers: int) -> None:
    found = explain_behind_a_job_that_awaits_gpus(replace(asked(workers), max=4))
    assert found == ("a higher quota of label team:x",)


OTHER = "label team:y"
SIXTEEN = [Resources(cpus=16, gpus=0, node="n")]


def explain_with(
    quotas: dict[str, Quota], held: Sequence[AllocatedJob], *pending: PendingJob
) -> dict[str, WaitCause]:
    """Explain a queue of a node with 16 CPUs, and check why the plan lets the jobs wait."""
    rules = QueueRules(quotas=QuotaTable(quotas=quotas))
    causes = explain_queue(pending, SIXTEEN, held, rules=rules, max_priority=9)
    plan = plan_queue(pending, SIXTEEN, held, rules=rules)
    for_quota = {one for one in plan if plan[one].reason is Reason.WAITING_FOR_QUOTA}
    assert {one for one in causes if causes[one].for_quota} == for_quota
    return causes


def busy(name: str, workers: int, *accounts: str, leaving: bool = False) -> AllocatedJob:
    job = holds(name, asked(workers), *["n"] * workers)
    return replace(job, accounts=accounts, leaving=leaving)


def waiting(name: str, workers: int, *accounts: str) -> PendingJob:
    return PendingJob(id=name, request=asked(workers), accounts=accounts)


def test_a_job_that_waits_for_one_awaited_quota_is_named_for_its_other_ones() -> None:
    causes = explain_with(
        {LABEL: Quota(jobs=1), OTHER: Quota(workers=4)},
        [busy("x", 1, LABEL), busy("y", 2, OTHER)],
        waiting("a", 1, LABEL),
        waiting("b", 3, LABEL, OTHER),
        waiting("c", 1, OTHER),
    )
    assert causes["b"].waits_for == ("a", "x", "y")
    assert causes["c"].waits_for == ("b", "y")


def test_a_job_behind_a_newly_awaited_quota_is_explained_anew() -> None:
    causes = explain_with(
        {LABEL: Quota(jobs=1), OTHER: Quota(workers=4)},
        [busy("x", 1, LABEL), busy("y", 2, OTHER), busy("large", 13)],
        waiting("a", 1, LABEL),
        waiting("head", 8),
        waiting("before", 1),
        waiting("b", 3, LABEL, OTHER),
        waiting("behind", 1, OTHER),
    )
    assert causes["before"].waits_for == ("head",)
    assert causes["behind"].waits_for == ("b", "y")


def test_a_job_waits_for_the_quota_that_one_keeps_which_waits_for_capacity() -> None:
    causes = explain_with(
        {USER: Quota(jobs=1)},
        [busy("large", 13)],
        waiting("head", 8),
        waiting("second", 7, USER),
        waiting("behind", 1, USER),
    )
    assert causes["second"].waits_for == ("head",)
    assert causes["behind"].waits_for == ("second",)
    assert causes["behind"].remedies == ("a higher quota of user ada",)


def test_a_job_waits_for_the_one_ahead_whose_quota_a_leaving_job_holds() -> None:
    causes = explain_with(
        {USER: Quota(jobs=1)},
        [busy("leaves", 1, USER, leaving=True), busy("large", 12)],
        waiting("head", 3, USER),
        waiting("behind", 2),
    )
    assert causes["head"].waits_for == ("leaves",)
    assert causes["behind"].waits_for == ("head",)


def test_a_job_that_awaits_nodes_waits_for_its_quota_first() -> None:
    rules = QueueRules(
        quotas=QuotaTable(quotas={USER: Quota(jobs=1)}), awaiting_nodes=frozenset({"wide"})
    )
    pending = [waiting("wide", 20, USER), waiting("behind", 1, USER)]
    held = [busy("x", 1, USER)]
    causes = explain_queue(pending, SIXTEEN, held, rules=rules, max_priority=9)
    assert [causes[one.id].waits_for for one in pending] == [("x",), ("wide", "x")]


def test_a_later_job_is_told_the_priority_that_its_own_age_needs() -> None:
    jobs = [
        replace(waiting(name, workers), rank=rank)
        for name, workers, rank in [("head", 8, 0.0), ("a", 1, -1.5), ("b", 1, -4.5)]
    ]
    causes = explain_with({}, [busy("large", 13)], *jobs)
    assert causes["a"].remedies == ("priority 2: it then starts first",)
    assert causes["b"].remedies == ("priority 5: it then starts first",)


def elastic(name: str, minimum: int, workers: int) -> AllocatedJob:
    """A job of priority 0 that trains with so many workers of one CPU each."""
    request = ResourceRequest(min=minimum, max=workers, cpus=1.0, gpus=0.0)
    return holds(name, request, *["n"] * workers)


def explain_important(minimum: int, *held: AllocatedJob) -> WaitCause:
    """Explain a job of priority 5 on a node with 16 CPUs."""
    job = replace(waiting("new", minimum), priority=5, rank=5.0)
    return explain_queue([job], SIXTEEN, held, max_priority=9)["new"]


def test_a_more_important_job_is_told_that_it_takes_workers_already() -> None:
    found = explain_important(4, elastic("large", 2, 16))
    assert found.waits_for == ("large",)
    assert found.remedies == ("no change: it is taking workers from job large",)


def test_a_more_important_job_is_told_whose_minimum_is_in_its_way() -> None:
    found = explain_important(4, elastic("large", 14, 16))
    sentence = "a minimum of 1 worker of job {}: it then takes workers from that job"
    assert found.remedies == (sentence.format("large"),)
    small = [elastic("a", 8, 8), elastic("b", 1, 1), elastic("c", 7, 7)]
    assert explain_important(4, *small).remedies == (sentence.format("a"), sentence.format("c"))


@pytest.mark.parametrize("minimum", [4, 40], ids=["each is in the way", "none alone is"])
def test_the_queue_is_explained_with_few_plans_beside_many_jobs(
    monkeypatch: pytest.MonkeyPatch, minimum: int
) -> None:
    # A plan takes 0.4 s with 100 jobs of 16 workers.
    plans: list[object] = []

    def plan(*given: Any, **more: Any) -> dict[str, Allocation]:
        plans.append(given)
        return plan_allocations(*given, **more)

    monkeypatch.setattr(wait_causes, "plan_allocations", plan)
    nodes = [replace(SIXTEEN[0], node=f"n{number}") for number in range(10)]
    held = [holds(f"job-{node.node}", asked(16), *[node.node] * 16) for node in nodes]
    job = replace(waiting("new", minimum), priority=5, rank=5.0)
    found = explain_queue([job], nodes, held, max_priority=9)["new"]
    assert len(found.remedies) == (2 if minimum == 4 else 0)
    assert len(plans) <= 3


def test_a_job_takes_no_workers_that_an_equal_one_gives_up_for_lack_of_room() -> None:
    # The other job shrinks by itself: a node was lost, and its workers do not fit any more.
    node, other = Resources(cpus=4, gpus=0, node="c"), elastic("large", 2, 6)
    held = replace(other, placed=("c",) * 4)
    found = explain_queue([waiting("new", 2)], [node], [held], max_priority=9)["new"]
    assert found.remedies == ("priority 1: it then takes workers from job large",)


def in_pairs(workers: int) -> ResourceRequest:
    return replace(asked(workers), step=2)


def test_remedies_of_a_job_in_pairs_are_numbers_of_workers_that_it_may_have() -> None:
    nodes = [Resources(cpus=7, gpus=0, node="c", memory=8e9)]
    held = [holds("other", asked(2), "c", "c")]
    assert explain(in_pairs(6), held, nodes=nodes).remedies == ("a minimum of 4 workers",)
    fewer = "a minimum of 6 workers: it then fits the cluster"
    assert explain(in_pairs(8), nodes=nodes).remedies[0] == fewer
    small = [replace(nodes[0], cpus=1)]
    assert not any("a minimum of" in one for one in explain(in_pairs(2), nodes=small).remedies)


def test_a_quota_is_no_reason_for_a_minimum_with_a_part_of_a_replica() -> None:
    limits = QueueRules(quotas=QuotaTable(quotas={LABEL: Quota(workers=4)}))
    held = [replace(holds("held", asked(), "c"), accounts=(LABEL,))]
    job = PendingJob(id="new", request=in_pairs(4), accounts=(LABEL,))
    causes = explain_queue([job], SIXTEEN, held, rules=limits, max_priority=0)
    assert causes["new"].remedies == ("a higher quota of label team:x", "a minimum of 2 workers")


ABOVE = {USER: Quota(workers=2)}
HIGHER = "a higher quota of user ada"
LATER = "a minimum of 2 workers: it then starts when other jobs of this quota end"


@pytest.mark.parametrize(
    ("held", "fewer"),
    [
        ([], ("a minimum of 2 workers",)),
        ([busy("x", 1, USER)], ("a minimum of 1 worker", LATER)),
        ([busy("x", 2, USER)], (LATER,)),
    ],
    ids=["quota unused", "quota in part", "quota used up"],
)
def test_a_job_above_its_quota_is_told_the_minimum_that_it_allows_and_waits_for_none(
    held: list[AllocatedJob], fewer: tuple[str, ...]
) -> None:
    cause = explain_with(ABOVE, held, waiting("new", 3, USER))["new"]
    assert cause == WaitCause(for_quota=True, remedies=(HIGHER, *fewer))


def test_a_job_above_a_quota_of_no_workers_is_told_no_minimum() -> None:
    cause = explain_with({USER: Quota(workers=0)}, [], waiting("new", 3, USER))["new"]
    assert cause.remedies == (HIGHER,)


def test_a_job_above_its_quota_that_does_not_fit_is_told_only_what_the_quota_allows() -> None:
    cause = explain_with(ABOVE, [], waiting("new", 30, USER))["new"]
    assert cause.remedies == (
        "a minimum of 2 workers: it then fits the cluster",
        f"{HIGHER} and a clone whose workers take less",
        f"{HIGHER} and more nodes",
    )


def test_a_job_that_does_not_fit_but_its_quota_allows_is_told_nothing_of_it() -> None:
    cause = explain_with({USER: Quota(workers=30)}, [], waiting("new", 30, USER))["new"]
    assert cause.remedies[0] == "a minimum of 16 workers: it then fits the cluster"
    assert not any("quota" in one for one in cause.remedies)


def test_a_job_in_pairs_that_is_in_the_way_is_asked_for_a_whole_replica() -> None:
    pairs = elastic("large", 14, 16)
    pairs = replace(pairs, request=replace(pairs.request, step=2))
    sentence = "a minimum of 2 workers of job large: it then takes workers from that job"
    assert explain_important(4, pairs).remedies == (sentence,)
    smallest = elastic("large", 2, 16)
    smallest = replace(smallest, request=replace(smallest.request, max=2, step=2))
    assert not any("minimum" in one for one in explain_important(16, smallest).remedies)
