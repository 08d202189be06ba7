"""Laws of the queue: which job starts next."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion_service.domain.capacity.bin_packing import count_fitting, num_unplaced
from accordion_service.domain.capacity.cluster_snapshot import read_cluster_snapshot
from accordion_service.domain.capacity.queue import AllocatedJob, PendingJob, QueueRules, plan_queue
from accordion_service.domain.capacity.quotas import Quota, QuotaTable
from accordion_service.domain.capacity.resources import ResourceRequest, Resources
from accordion_service.domain.jobs.statuses import Reason
from accordion_workers.common.node_selectors import read_selector

SHARES = st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0])
ZONE_A, ZONE_B = frozenset({("zone", "a")}), frozenset({("zone", "b")})
LABELS = st.sampled_from([frozenset(), frozenset(), ZONE_A, ZONE_B])
IN_A, IN_B = read_selector({"zone": "a"}), read_selector({"zone": "b"})
SELECTORS = st.one_of(
    st.just(frozenset()),
    st.sampled_from(["a", "b", "!a", "in(a,b)"]).map(lambda text: read_selector({"zone": text})),
)
CUSTOM = st.sampled_from([(), (), (("fpga", 1.0),), (("fpga", 2.0), ("licence", 0.5))])
NODES = st.lists(
    st.builds(
        Resources,
        cpus=st.sampled_from([1.0, 2.0, 4.0, 8.0]),
        gpus=st.sampled_from([0.0, 1.0, 4.0]),
        custom=CUSTOM,
        labels=LABELS,
    ),
    max_size=4,
)
HELD = st.lists(st.builds(Resources, cpus=SHARES, gpus=st.sampled_from([0.0, 1.0])), max_size=6)


def asked(
    min_workers: int, max_workers: int, cpus: float = 1.0, gpus: float = 0.0
) -> ResourceRequest:
    return ResourceRequest(min=min_workers, max=max_workers, cpus=cpus, gpus=gpus)


ASKED = st.builds(
    lambda least, more, cpus, gpus, custom, selector: replace(
        asked(least, least + more, cpus, gpus), custom=custom, selector=selector
    ),
    st.integers(1, 4),
    st.integers(0, 4),
    SHARES,
    st.sampled_from([0.0, 1.0]),
    CUSTOM,
    SELECTORS,
)


def jobs_of(held: list[Resources]) -> list[AllocatedJob]:
    """Jobs with one worker each."""
    return [
        AllocatedJob(
            id=f"held-{number}",
            request=asked(1, 1, worker.cpus, worker.gpus),
            allocated_workers=1,
            placed=(worker.node,) if worker.node else (),
        )
        for number, worker in enumerate(held)
    ]


WAITING = st.lists(ASKED, max_size=5).map(
    lambda all_: [PendingJob(id=str(n), request=one) for n, one in enumerate(all_)]
)


@given(WAITING, NODES, HELD)
def test_an_admitted_group_is_within_its_limits_and_a_waiting_one_takes_nothing(
    waiting: list[PendingJob], nodes: list[Resources], held: list[Resources]
) -> None:
    admissions = plan_queue(waiting, nodes, jobs_of(held))
    for job in waiting:
        admission = admissions[job.id]
        admitted = admission.reason is Reason.ADMITTED
        assert admission.workers == 0 or job.request.min <= admission.workers <= job.request.max
        assert admitted == (admission.workers > 0)


@given(WAITING, NODES, HELD)
def test_no_job_overtakes_one_while_it_is_unknown_where_workers_are(
    waiting: list[PendingJob], nodes: list[Resources], held: list[Resources]
) -> None:
    reasons = [plan_queue(waiting, nodes, jobs_of(held))[job.id].reason for job in waiting]
    if Reason.WAITING_FOR_ROOM in reasons:
        assert Reason.ADMITTED not in reasons[reasons.index(Reason.WAITING_FOR_ROOM) :]


@given(WAITING, NODES)
def test_all_that_is_admitted_has_room_at_once(
    waiting: list[PendingJob], nodes: list[Resources]
) -> None:
    admissions = plan_queue(waiting, nodes, [])
    cpus = sum(admissions[job.id].workers * job.request.cpus for job in waiting)
    gpus = sum(admissions[job.id].workers * job.request.gpus for job in waiting)
    assert cpus <= sum(node.cpus for node in nodes) + 1e-6
    assert gpus <= sum(node.gpus for node in nodes) + 1e-6


@given(ASKED, NODES, HELD)
def test_more_held_never_makes_more_room(
    one: ResourceRequest, nodes: list[Resources], held: list[Resources]
) -> None:
    worker = Resources(cpus=one.cpus, gpus=one.gpus)
    assert count_fitting(worker, nodes, []) >= count_fitting(worker, nodes, held)


def test_job_that_never_fits_blocks_no_other_job() -> None:
    waiting = [
        PendingJob(id="huge", request=asked(9, 9)),
        PendingJob(id="small", request=asked(1, 2)),
    ]
    admissions = plan_queue(waiting, [Resources(cpus=4, gpus=0)], [])
    assert admissions["huge"].reason is Reason.NEVER_FITS
    assert admissions["small"].workers == 2


def test_a_worker_never_spans_nodes() -> None:
    admissions = plan_queue(
        [PendingJob(id="wide", request=asked(1, 1, cpus=3))], [Resources(cpus=2, gpus=0)] * 4, []
    )
    assert admissions["wide"].reason is Reason.NEVER_FITS


def test_shares_whose_sum_is_a_node_fill_it() -> None:
    """0.3 / 0.1 is a little below 3, and 0.3 - 0.1 - 0.1 below 0.1."""
    for share in (Resources(cpus=0.1, gpus=0), Resources(cpus=0.1, gpus=0.1)):
        node = Resources(cpus=0.3, gpus=0.3)
        assert count_fitting(share, [node], []) == 3
        assert num_unplaced([share] * 3, [node]) == 0
        assert count_fitting(share, [node], [share] * 3) == 0


def test_a_job_whose_minimum_is_all_there_is_starts() -> None:
    admission = plan_queue(
        [PendingJob(id="a", request=asked(4, 8))], [Resources(cpus=4, gpus=0)], []
    )["a"]
    assert (admission.reason, admission.workers) == (Reason.ADMITTED, 4)


def test_nodes_that_are_gone_or_leave_take_no_workers() -> None:
    here = {"id": "a", "cpus": 4, "gpus": 1, "memory_bytes": 8, "alive": True, "draining": False}
    old = {"id": "b", "cpus": 2, "gpus": 0, "memory_bytes": 4, "alive": True}
    nodes = [here, {**here, "alive": False}, {**here, "draining": True}, old]
    assert read_cluster_snapshot(nodes)[0] == [
        Resources(cpus=4, gpus=1, memory=8, node="a"),
        Resources(cpus=2, gpus=0, memory=4, node="b"),
    ]


def test_worker_counts_on_the_node_where_it_runs() -> None:
    nodes = [Resources(cpus=4, gpus=0, node="a"), Resources(cpus=4, gpus=0, node="b")]
    spread = [Resources(cpus=2, gpus=0, node=name) for name in "ab"]
    assert count_fitting(Resources(cpus=4, gpus=0), nodes, spread) == 0
    assert (
        count_fitting(Resources(cpus=4, gpus=0), nodes, [replace(one, node="") for one in spread])
        == 1
    )
    assert num_unplaced([Resources(cpus=4, gpus=0, node="gone")] * 2, nodes) == 0


def test_memory_that_no_node_has_is_refused_with_what_the_nodes_have() -> None:
    job = PendingJob(id="a", request=ResourceRequest(min=1, max=1, cpus=1, gpus=0, memory=64e9))
    nodes = [Resources(cpus=4, gpus=0, memory=8e9), Resources(cpus=4, gpus=0, memory=16e9)]
    admission = plan_queue([job], nodes, [])["a"]
    assert admission.reason is Reason.NEVER_FITS
    assert (
        admission.message
        == "needs 1 worker of 1 CPU and 64.0 GB, but the whole cluster (8 CPU on 2 nodes), whose"
        " largest node has 16.0 GB, holds at most 0; lower workers.memory, or add larger nodes"
    )


def test_a_label_that_no_node_has_is_refused_with_what_to_change() -> None:
    job = PendingJob(id="a", request=replace(asked(1, 1), selector=IN_B))
    nodes = [Resources(cpus=4, gpus=0, labels=ZONE_A)]
    admission = plan_queue([job], nodes, [])["a"]
    assert admission.reason is Reason.NEVER_FITS
    assert admission.message == (
        "needs 1 worker of 1 CPU, on nodes with zone=b, but the whole cluster (4 CPU on 1 node)"
        " holds at most 0; no node has zone=b: submit a job with other workers.node_labels,"
        " or add such nodes"
    )


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ({"zone": "!a"}, "zone!=a"),
        ({"zone": "in(c,b)"}, "zone in (b, c)"),
        ({"zone": "!in(a,b)"}, "zone not in (a, b)"),
        ({"zone": "a", "disk": "!hdd"}, "disk!=hdd and zone=a"),
    ],
)
def test_the_message_says_in_words_which_labels_no_node_has(
    texts: dict[str, str], named: str
) -> None:
    job = PendingJob(id="a", request=replace(asked(1, 1), selector=read_selector(texts)))
    nodes = [Resources(cpus=4, gpus=0, labels=ZONE_A | {("disk", "hdd")})]
    message = plan_queue([job], nodes, [])["a"].message
    assert f"on nodes with {named}, but" in message
    assert f"no node has {named}: submit a job with other workers.node_labels" in message


def test_the_message_names_the_nodes_that_have_the_labels_but_are_too_small() -> None:
    names = ["n1", "n2", "n3", "n4"]
    nodes = [Resources(cpus=2, gpus=0, memory=8e9, name=name, labels=ZONE_B) for name in names]
    nodes += [Resources(cpus=64, gpus=0, memory=64e9, name="n5", labels=ZONE_A)]
    request = replace(asked(2, 2, cpus=4), selector=read_selector({"zone": "!a"}))

    def explain(request: ResourceRequest, nodes: list[Resources]) -> str:
        return plan_queue([PendingJob(id="a", request=request)], nodes, [])["a"].message

    assert explain(request, nodes) == (
        "needs 2 workers of 4 CPU each, on nodes with zone!=a, but the whole cluster (72 CPU on 5"
        " nodes), of which only n1, n2 and 2 more have these labels, holds at most 0; lower what"
        " each worker takes, or add nodes with these labels"
    )
    assert explain(replace(request, memory=16e9), nodes[-2:]).endswith(
        "of which only n4 has these labels, with 8.0 GB at most, holds at most 0; lower"
        " workers.memory, or add larger nodes with these labels"
    )


def test_a_custom_resource_of_a_node_without_the_labels_is_not_denied() -> None:
    other = Resources(cpus=4, gpus=0, labels=ZONE_B, custom=(("fpga", 1.0),))
    request = replace(asked(1, 1), selector=IN_A, custom=(("fpga", 1.0),))
    nodes = [Resources(cpus=4, gpus=0, labels=ZONE_A), other]
    admission = plan_queue([PendingJob(id="a", request=request)], nodes, [])["a"]
    assert admission.message.endswith(
        "no node with these labels has fpga: submit a job with other workers.resources, or add"
        " such nodes"
    )


def test_a_custom_resource_that_no_node_has_is_named() -> None:
    job = PendingJob(id="a", request=replace(asked(2, 2), custom=(("fpga", 1.0),)))
    admission = plan_queue([job], [Resources(cpus=4, gpus=0)], [])["a"]
    assert admission.reason is Reason.NEVER_FITS
    assert "2 workers of 1 CPU and 1 fpga each" in admission.message
    assert "no node has fpga: submit a job with other workers.resources" in admission.message


def test_workers_start_on_nodes_with_their_labels_alone() -> None:
    nodes = [
        Resources(cpus=8, gpus=0, node="n1", labels=ZONE_A),
        Resources(cpus=2, gpus=0, node="n2", labels=ZONE_B),
    ]
    group = PendingJob(id="a", request=replace(asked(1, 8), selector=IN_B))
    assert plan_queue([group], nodes, [])["a"].workers == 2


def test_custom_resources_are_counted_like_cpus() -> None:
    node = Resources(cpus=8, gpus=0, custom=(("fpga", 3.0),))
    size = Resources(cpus=1, gpus=0, custom=(("fpga", 1.0),))
    assert count_fitting(size, [node], []) == 3
    assert count_fitting(size, [node], [size]) == 2
    assert count_fitting(Resources(cpus=1, gpus=0), [node], [size] * 3) == 5


def test_limits_of_memory_are_counted_like_cpus() -> None:
    node = Resources(cpus=8, gpus=0, memory=8e9)
    assert count_fitting(Resources(cpus=1, gpus=0, memory=3e9), [node], []) == 2
    assert (
        count_fitting(Resources(cpus=1, gpus=0), [node], [Resources(cpus=1, gpus=0, memory=8e9)])
        == 7
    )


def test_a_cluster_without_nodes_is_waited_for() -> None:
    admission = plan_queue([PendingJob(id="a", request=asked(1, 1))], [], [])["a"]
    assert admission.reason is Reason.CLUSTER_UNREACHABLE


def test_the_sentence_names_what_is_asked_what_there_is_and_the_way_out() -> None:
    nodes = [Resources(cpus=4, gpus=0), Resources(cpus=4, gpus=2)]
    admission = plan_queue([PendingJob(id="a", request=asked(3, 3, cpus=2, gpus=1))], nodes, [])[
        "a"
    ]
    assert (
        admission.message
        == "needs 3 workers of 2 CPU and 1 GPU each, but the whole cluster (8 CPU, 2 GPU on 2"
        " nodes) holds at most 2; lower workers.min or what each worker takes, or add nodes"
    )


def told_in_pairs(
    least: int, *, cpus: float = 8, held: int = 0, quotas: dict[str, Quota] | None = None
) -> str:
    """What a job of at most four workers is told whose pairs of workers hold a model together."""
    request = replace(asked(least, 4), step=2)
    job = PendingJob(id="a", request=request, accounts=("user:ada",))
    taken = [AllocatedJob(id="b", request=asked(held, held), allocated_workers=held)]
    rules = QueueRules(quotas=QuotaTable(quotas=quotas or {}))
    nodes = [Resources(cpus=cpus, gpus=0)]
    return plan_queue([job], nodes, taken if held else [], rules=rules)["a"].message


def test_a_job_in_pairs_is_told_of_a_quota_that_allows_no_pair_more() -> None:
    three = {"user:ada": Quota(workers=3)}
    started = told_in_pairs(2, quotas=three)
    assert started.startswith("starts with 2 of at most 4 workers; the quota of user:ada")
    assert "lower workers.min to 2, or" in told_in_pairs(4, quotas=three)


def test_a_job_in_pairs_is_told_whether_fewer_pairs_would_fit() -> None:
    assert "holds at most 3; lower workers.min or what" in told_in_pairs(4, cpus=3)
    assert "holds at most 1; lower what each worker takes" in told_in_pairs(2, cpus=1)
    assert "or at once with workers.min 2" in told_in_pairs(4, cpus=5, held=2)
    assert "and no whole replica fits beside the jobs" in told_in_pairs(2, cpus=3, held=2)
