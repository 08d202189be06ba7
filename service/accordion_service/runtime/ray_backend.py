"""The runtime on Ray: beside `ray_autoscaler.py`, the only module of the service that uses Ray."""

from __future__ import annotations

import shutil
import signal
import socket
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from accordion_service.domain.capacity.resources import Resources
from accordion_service.errors import RuntimeUnavailable
from accordion_service.runtime.protocol import AutoscalerReport, Node, SupervisorState
from accordion_service.runtime.ray_autoscaler import RayAutoscaler
from accordion_service.runtime.ray_dashboard import DashboardProbe
from accordion_workers.checkpoint.storage import MANIFEST, Storage, discard_checkpoint, open_storage
from accordion_workers.common.names import (
    NAMESPACE,
    SupervisorName,
    parse_supervisor_name,
    supervisor_name,
)
from accordion_workers.controller.plan_task import PlanTasks
from accordion_workers.controller.ray_nodes import get_draining_nodes, get_free_resources
from accordion_workers.controller.supervisor import start_supervisor
from accordion_workers.hub.actor_client import ActorTimeoutError, RayActorClient, ensure_actor
from accordion_workers.hub.journal import read_end, read_records
from accordion_workers.records.contract import (
    Cursor,
    DesiredState,
    Drained,
    EndRecord,
    Guest,
    Launch,
    PlanResult,
    PlanTask,
)
from accordion_workers.spec.workers import BUILT_IN_RESOURCES

PROBE_TIMEOUT_S = 2.0
"""Timeout, in seconds, of the check that GCS listens; a network responds in a fraction of it."""
CALL_TIMEOUT_S = 2.0
"""The Accordion actor responds in milliseconds, and 1 s after its process was killed. All jobs wait
for this call.
"""
STATE_TIMEOUT_S = 2.0
"""A supervisor that Ray is restarting does not respond for some seconds, but still exists."""


class RayBackend:
    """Implements `Runtime`. Connects at the first call, and reconnects after the cluster was
    unreachable.

    Args:
        address: `host:port` of the cluster's GCS. The cluster's token must be in the environment
            (`RAY_AUTH_MODE` and `RAY_AUTH_TOKEN`) before this module is imported: Ray reads it
            then.
        installation: id in the names of this installation's actors; others are never touched.
    """

    def __init__(self, *, address: str | None, installation: str = "") -> None:
        self._address = address
        self._installation = installation
        self._gcs = address
        """Address of GCS when this process connected; Ray resolves `auto`."""
        self._dashboard: str | None = None
        """`host:port` of Ray's dashboard, whether or not it runs."""
        self._dashboard_probe = DashboardProbe()
        self._ask = RayActorClient(installation)
        self._autoscaler = RayAutoscaler()
        self._plans = PlanTasks()

    def nodes(self) -> list[Node]:
        """All known nodes, including dead ones."""
        with self._connected():
            leaving, free = get_draining_nodes(), get_free_resources()
            return [
                _build_node(
                    found, draining=found["NodeID"] in leaving, free=free.get(found["NodeID"])
                )
                for found in ray.nodes()
            ]

    def dashboard_url(self) -> str | None:
        """Address that Ray or RAY_OVERRIDE_DASHBOARD_URL names, if a dashboard answers there."""
        with self._connected():
            return self._dashboard_probe.url(self._dashboard)

    def supervisors(self) -> list[SupervisorState]:
        """Live supervisors of this installation; one that Ray is restarting counts as starting.

        A name without an id comes from a version that had none; the scheduler looks such jobs up in
        the database.
        """
        with self._connected():
            names = [
                name
                for name in _supervisor_names()
                if name.installation in ("", self._installation)
            ]
            calls = {
                name: actor.state.remote()
                for name in names
                if (actor := _find_supervisor(name)) is not None
            }
            if calls:
                ray.wait(list(calls.values()), num_returns=len(calls), timeout=STATE_TIMEOUT_S)
            return [
                state
                for name, call in calls.items()
                if (state := _read_state(name, call)) is not None
            ]

    def request_capacity(
        self, bundles: Sequence[Resources] | None, *, sender: int, always: bool
    ) -> AutoscalerReport:
        """Exchange requests and reports with Ray's autoscaler, in a thread of its own."""
        address = self._gcs or ""
        return self._autoscaler.exchange(address, bundles, sender=sender, always=always)

    def clear_capacity_request(self, *, sender: int, timeout_s: float) -> bool:
        """Clear our own request to Ray's autoscaler, and wait for it."""
        return self._autoscaler.clear(self._gcs or "", sender=sender, timeout_s=timeout_s)

    def count_foreign_supervisors(self) -> dict[str, int]:
        """Number of living supervisors of other installations, by the installation's id."""
        with self._connected():
            ids = [name.installation for name in _supervisor_names()]
        return dict(Counter(id_ for id_ in ids if id_ not in ("", self._installation)))

    def claim(self, scheduler: str, *, last_s: float) -> str:
        """Claim the cluster; an unresponsive Accordion actor counts as holding no claim."""
        with self._connected():
            return str(self._try_call("claim", scheduler, last_s) or scheduler)

    def start(self, launch: Launch) -> None:
        """Start the job's supervisor, unless one already runs this attempt."""
        Path(launch.storage).mkdir(parents=True, exist_ok=True)
        with self._connected():
            start_supervisor(launch.model_copy(update={"installation": self._installation}))

    def remove(self, job_id: str) -> None:
        """Kill all supervisors of the job; their workers end with them."""
        with self._connected():
            for name in _supervisor_names():
                if name.job_id == job_id and name.installation in ("", self._installation):
                    _kill_supervisor(name)
            self._try_call("forget", job_id)

    def send_orders(self, job_id: str, orders: DesiredState) -> bool:
        """Send the orders to the Accordion actor."""
        with self._connected():
            held = self._try_call("order", job_id, orders)
            return held is not None and held >= orders.version

    def drain(self, job_id: str, confirmed: Cursor) -> Drained:
        """Drain the job from the Accordion actor; nothing if it is unresponsive."""
        with self._connected():
            return self._try_call("drain", job_id, confirmed) or Drained()

    def drain_many(self, cursors: Mapping[str, Cursor]) -> dict[str, Drained]:
        """Drain these jobs from the Accordion actor; nothing if it is unresponsive."""
        with self._connected():
            try:
                return dict(self._ask("drain_many", dict(cursors), timeout_s=CALL_TIMEOUT_S))
            except ActorTimeoutError:
                return {}

    def guests(self) -> list[Guest]:
        """Guest runs that registered with the Accordion actor; none if it is unresponsive."""
        with self._connected():
            try:
                return list(self._ask("guests", timeout_s=CALL_TIMEOUT_S))
            except ActorTimeoutError:
                return []

    def forget_guest(self, job_id: str) -> None:
        """Drop what the Accordion actor holds of the run."""
        with self._connected():
            self._try_call("forget", job_id)

    def is_measuring(self, plan_id: str) -> bool:
        """Whether this plan has a task."""
        return self._plans.has(plan_id)

    def advance_plan(self, plan: PlanTask, code: bytes | None) -> PlanResult | None:
        """Measure a plan in a task of its own, which ends with this process."""
        with self._connected():
            return self._plans.advance(plan, code)

    def end_plan(self, plan_id: str) -> None:
        """Cancel the task."""
        with self._connected():
            self._plans.end(plan_id)

    def read_outcome(
        self, job_id: str, storage: str, *, retried_attempt: int = 0
    ) -> EndRecord | None:
        """Read how the job ended; None while it has not."""
        del job_id
        found = read_end(Path(storage), retried_attempt=retried_attempt)
        return found[0] if found else None

    def remove_files(self, job_id: str, storage: str, url: str | None) -> None:
        """Remove the job's directory, and its part of the storage at a URL."""
        if url is not None:
            checkpoints = open_storage(url, job_id=job_id, directory=Path(storage))
            for name in checkpoints.names():
                checkpoints.remove(name)
        if Path(storage).is_dir():
            shutil.rmtree(storage)

    def list_checkpoints(self, job_id: str, storage: str, url: str | None) -> dict[str, bool]:
        """Names of the job's checkpoints, and whether each has a manifest."""
        checkpoints = _open_checkpoints(job_id, storage, url)
        return {name: checkpoints.holds(f"{name}/{MANIFEST}") for name in checkpoints.names()}

    def remove_checkpoints(
        self, job_id: str, storage: str, url: str | None, *, names: Collection[str]
    ) -> None:
        """Remove these checkpoints."""
        checkpoints = _open_checkpoints(job_id, storage, url)
        for name in names:
            discard_checkpoint(checkpoints, name)

    def history(self, job_id: str, storage: str, *, retried_attempt: int = 0) -> Drained:
        """All records of the job: from its end file, or its journal while there is none."""
        del job_id
        found = read_end(Path(storage), retried_attempt=retried_attempt)
        return found[1] if found else Drained(records=tuple(read_records(Path(storage))))

    def _try_call(self, method: str, subject: str, *arguments: Any) -> Any:
        """Call the Accordion actor about a job, or a scheduler that claims the cluster; None if it
        is unresponsive.
        """
        try:
            return self._ask(method, subject, *arguments, timeout_s=CALL_TIMEOUT_S)
        except ActorTimeoutError:
            return None

    def _disconnect_if_unreachable(self) -> None:
        """Disconnect at once from an unreachable cluster, to reconnect when it is back.

        Ray aborts a process that stays connected: after GCS was unreachable for a minute, or as
        soon as another cluster responds at its address. Connecting without a listener would take
        minutes and end the same way. Ray repeats a call in flight when GCS dies; if that aborts
        this process, its parent restarts it.

        Raises:
            OSError: nothing listens at the cluster's address.
        """
        try:
            _check_listener(self._gcs)
        except OSError:
            self._gcs, self._ask = self._address, RayActorClient(self._installation)
            self._plans, self._autoscaler = PlanTasks(), RayAutoscaler()
            ray.shutdown()
            raise

    def _connect(self) -> None:
        logs = {"log_to_driver": False, "configure_logging": False}
        config = ray.job_config.JobConfig()
        # Without a working directory, Ray would put the present one on the path of all workers,
        # where a module of whoever started the service would hide one of a job's code.
        config._runtime_env_has_working_dir = lambda: True
        with _keep_sigterm():
            context = ray.init(
                address=self._address, namespace=NAMESPACE, job_config=config, **logs
            )
        self._dashboard = context.dashboard_url
        self._gcs = ray.get_runtime_context().gcs_address
        # Started before the first job needs it.
        ensure_actor(self._installation)

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Connect for the duration of the block.

        Raises:
            RuntimeUnavailable: the cluster does not answer.
        """
        try:
            self._disconnect_if_unreachable()
            if not ray.is_initialized():
                self._connect()
            yield
        except (ray.exceptions.RayError, OSError, RuntimeError) as error:
            raise RuntimeUnavailable(
                f"the Ray cluster at {self._address} does not respond ({type(error).__name__}:"
                f" {error}); is it up, and is the token right?"
            ) from error


@contextmanager
def _keep_sigterm() -> Iterator[None]:
    """Keep what this process does at SIGTERM; Ray would let it die at once."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _check_listener(address: str | None) -> None:
    """Check whether a process listens at the address.

    Raises:
        OSError: none does.
    """
    host, colon, port = (address or "").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=PROBE_TIMEOUT_S).close()


def _build_node(found: dict[str, Any], *, draining: bool, free: Mapping[str, float] | None) -> Node:
    resources = found.get("Resources", {})
    custom = {
        name: float(amount)
        for name, amount in resources.items()
        if name not in BUILT_IN_RESOURCES and not name.startswith("node:")
    }
    return Node(
        id=found["NodeID"],
        address=found["NodeManagerAddress"],
        alive=found["Alive"],
        cpus=float(resources.get("CPU", 0.0)),
        gpus=float(resources.get("GPU", 0.0)),
        memory_bytes=int(resources.get("memory", 0)),
        custom=custom,
        labels=dict(found.get("Labels") or {}),
        draining=draining,
        name=found.get("NodeName") or found["NodeManagerAddress"],
        cpus_free=None if free is None else float(free.get("CPU", 0.0)),
        gpus_free=None if free is None else float(free.get("GPU", 0.0)),
        memory_bytes_free=None if free is None else float(free.get("memory", 0.0)),
        custom_free={} if free is None else {name: free.get(name, 0.0) for name in custom},
    )


def _read_state(name: SupervisorName, call: Any) -> SupervisorState | None:
    """Return the supervisor's reported state; None if it ended for good."""
    try:
        phase, message, placed, avoided = ray.get(call, timeout=0)
    except (ray.exceptions.GetTimeoutError, ray.exceptions.ActorUnavailableError):
        phase, message = "starting", "Ray starts its supervisor"
        placed, avoided = None, ()
    except ray.exceptions.ActorDiedError:
        return None
    return SupervisorState(
        job_id=name.job_id,
        attempt=name.attempt,
        phase=phase,
        message=message,
        placed=placed,
        avoided=avoided,
    )


def _supervisor_names() -> list[SupervisorName]:
    """Names of all live supervisors, of every installation."""
    return [
        found
        for name in ray.util.list_named_actors()
        if (found := parse_supervisor_name(name)) is not None
    ]


def _kill_supervisor(name: SupervisorName) -> None:
    actor = _find_supervisor(name)
    if actor is not None:
        ray.kill(actor, no_restart=True)


def _find_supervisor(name: SupervisorName) -> Any:
    """Return the actor; None if it has ended since it was listed."""
    try:
        return ray.get_actor(supervisor_name(name), NAMESPACE)
    except ValueError:
        return None


def _open_checkpoints(job_id: str, storage: str, url: str | None) -> Storage:
    return open_storage(url, job_id=job_id, directory=Path(storage) / "checkpoints")
