"""What a real Ray cluster holds of our request to its autoscaler, for both versions of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest
import ray
from ray._private.ray_constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL
from ray._raylet import (
    GCS_AUTOSCALER_STATE_NAMESPACE,
    GCS_AUTOSCALER_V2_ENABLED_KEY,
    GcsClient,
)
from ray.autoscaler.v2.sdk import get_cluster_resource_state, get_cluster_status
from ray.autoscaler.v2.utils import is_autoscaler_v2
from ray.core.generated.autoscaler_pb2 import AutoscalingState

from accordion_service.domain.capacity.resources import Resources
from accordion_service.runtime.protocol import AutoscalerReport
from accordion_service.runtime.ray_autoscaler import POLL_INTERVAL_S, RayAutoscaler
from accordion_service.runtime.ray_backend import RayBackend
from accordion_workers.common.node_selectors import read_selector
from tests.api.team import wait_for

pytestmark = pytest.mark.ray
WAIT_S = 120.0
LABELS = {"zone": "a", "disk": "!hdd", "rack": "in(r2,r1)", "host": "!in(h1, h2)"}
WORKERS = (
    Resources(cpus=2.0, gpus=1.0, custom=(("fpga", 0.5),), selector=read_selector(LABELS)),
    Resources(cpus=0.25, gpus=0.0, memory=4e9),
    Resources(cpus=0.25, gpus=0.0, memory=4e9),
)
LARGE, SMALL = {"CPU": 2.0, "GPU": 1.0, "fpga": 0.5}, {"CPU": 0.25, "memory": 4e9}


@pytest.fixture
def cluster(ray_cluster: str) -> Iterator[str]:
    ray.init(address=ray_cluster, log_to_driver=False, configure_logging=False)
    yield ray_cluster
    send(ray_cluster, ())
    ray.shutdown()


@pytest.fixture
def version_2(cluster: str) -> Iterator[str]:
    """The cluster, which says that it has version 2 of the autoscaler."""
    key, space = GCS_AUTOSCALER_V2_ENABLED_KEY.encode(), GCS_AUTOSCALER_STATE_NAMESPACE.encode()
    gcs = GcsClient(address=cluster)
    gcs.internal_kv_put(key, b"1", True, space)
    yield cluster
    send(cluster, ())
    gcs.internal_kv_put(key, b"0", True, space)
    assert not is_autoscaler_v2(fetch_from_server=True)


def send(cluster: str, bundles: Sequence[Resources]) -> AutoscalerReport:
    """Send a request, and return the report of this exchange."""
    autoscaler = RayAutoscaler(clock=lambda: 0.0)
    autoscaler.exchange(cluster, bundles, sender=1, always=True)
    assert autoscaler.wait(timeout_s=WAIT_S)
    report = autoscaler.exchange(cluster, bundles, sender=1, always=True)
    assert (report.num_requests, report.num_failed, report.problem) == (1, 0, "")
    return report


def read_version_1(cluster: str) -> list[dict[str, float]]:
    """Request that version 1 of the autoscaler reads."""
    gcs = GcsClient(address=cluster)
    return json.loads(gcs.internal_kv_get(AUTOSCALER_RESOURCE_REQUEST_CHANNEL, None))


def read_version_2(cluster: str) -> list[tuple[dict[str, float], int]]:
    """Request that version 2 of the autoscaler gets, the most frequent part first."""
    demands = get_cluster_status(cluster).resource_demands.cluster_constraint_demand
    parts = [part for demand in demands for part in demand.bundles_by_count]
    return sorted(((dict(part.bundle), part.count) for part in parts), key=lambda one: -one[1])


def test_a_request_replaces_the_one_before_and_an_empty_one_clears_it(cluster: str) -> None:
    report = send(cluster, WORKERS)
    assert (report.exists, report.is_feasible) == (False, None)
    assert read_version_1(cluster) == [LARGE, SMALL, SMALL]
    send(cluster, WORKERS[1:])
    assert read_version_1(cluster) == [SMALL, SMALL]
    send(cluster, ())
    assert read_version_1(cluster) == []


def test_version_2_gets_the_request_with_counts_and_gives_it_back(version_2: str) -> None:
    report = send(version_2, WORKERS)
    assert (report.exists, report.is_feasible) == (False, None)
    assert read_version_2(version_2) == [(SMALL, 2), (LARGE, 1)]
    send(version_2, WORKERS[1:])
    assert read_version_2(version_2) == [(SMALL, 2)]
    send(version_2, ())
    assert read_version_2(version_2) == []


def report_state(cluster: str, *, is_feasible: bool) -> None:
    """Do what version 2 of the autoscaler does every 5 s: read the cluster's state, and report."""
    gcs = GcsClient(address=cluster)
    seen = get_cluster_resource_state(gcs)
    state = AutoscalingState(
        last_seen_cluster_resource_state_version=seen.cluster_resource_state_version,
        infeasible_cluster_resource_constraints=(
            () if is_feasible else seen.cluster_resource_constraints
        ),
    )
    gcs.report_autoscaling_state(state.SerializeToString())


@pytest.mark.parametrize("is_feasible", [True, False])
def test_a_request_is_judged_by_the_next_report_of_version_2(
    version_2: str, is_feasible: bool
) -> None:
    now = [0.0]
    autoscaler = RayAutoscaler(clock=lambda: now[0])

    def exchange() -> bool | None:
        now[0] += POLL_INTERVAL_S
        autoscaler.exchange(version_2, WORKERS, sender=1, always=True)
        assert autoscaler.wait(timeout_s=WAIT_S)
        return autoscaler.exchange(version_2, WORKERS, sender=1, always=True).is_feasible

    report_state(version_2, is_feasible=not is_feasible)
    assert exchange() is None
    assert exchange() is None
    report_state(version_2, is_feasible=is_feasible)
    assert exchange() is is_feasible


def test_the_backend_makes_and_clears_the_request_of_its_cluster(cluster: str) -> None:
    backend = RayBackend(address=cluster)
    assert all(node.alive for node in backend.nodes())
    wait_for(lambda: backend.request_capacity(WORKERS, sender=1, always=True).request == WORKERS)
    assert read_version_1(cluster) == [LARGE, SMALL, SMALL]
    assert backend.clear_capacity_request(sender=1, timeout_s=WAIT_S)
    assert read_version_1(cluster) == []
