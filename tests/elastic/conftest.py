"""Jobs on a real Ray cluster, their processes, and what a scheduler would have stored of them."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.elastic.faults import Watched
    from tests.elastic.nodes import Cluster

from accordion_service.errors import RuntimeUnavailable
from accordion_service.runtime.ray_backend import RayBackend
from accordion_workers.records.contract import (
    Cursor,
    DataCache,
    DesiredState,
    Drained,
    EndRecord,
    EpochRecord,
    FailureRecord,
    JobSpec,
    Launch,
    LogLine,
    PipIndex,
    Record,
)

ENGINE = os.environ.get("ACCORDION_TEST_ENGINE", "")
"""Engine of all jobs of this folder; empty for the product's default. `make test-elastic
ENGINE=...` sets it.
"""
WAIT_S = 480.0
"""Only ends a test that fails: a loaded two-core machine needs many times what a free one does, two
minutes for a job's first steps where ten others run.
"""


@dataclass
class Life:
    """One attempt of a job. `look` does what the scheduler does four times a second."""

    backend: RayBackend
    launch: Launch
    records: list[Record] = field(default_factory=list)
    logs: list[LogLine] = field(default_factory=list)
    orders: DesiredState = field(default_factory=DesiredState)

    @property
    def cursor(self) -> Cursor:
        last = self.records[-1] if self.records else None
        return (
            Cursor(attempt=last.attempt, generation=last.generation, seq=last.seq)
            if last
            else Cursor()
        )

    def look(self) -> EndRecord | None:
        """Store what is new; how the job ended, if it did."""
        drained = self.drain()
        if drained.orders_version < self.orders.version:
            self.backend.send_orders(self.launch.job_id, self.orders)
        end = self.backend.read_outcome(self.launch.job_id, self.launch.storage)
        if end is not None:
            history = self.backend.history(self.launch.job_id, self.launch.storage).records
            self.records = [
                *self.records,
                *(record for record in history if place(record) > place(self.cursor)),
            ]
        return end

    def drain(self) -> Drained:
        try:
            drained = self.backend.drain(self.launch.job_id, self.cursor)
        except (
            RuntimeUnavailable
        ):  # what holds the cluster together is away, and a scheduler would try again
            return Drained()
        self.records += drained.records
        self.logs += drained.logs
        return drained

    def order(self, orders: DesiredState) -> None:
        self.orders = orders
        self.backend.send_orders(self.launch.job_id, orders)

    def end(self) -> EndRecord:
        wait_for(lambda: self.look() is not None, self.story)
        end = self.look()
        assert end is not None
        return end

    def reach(self, epoch: int) -> None:
        """Go on until the epoch's record is stored."""
        wait_for(
            lambda: (
                self.look() is not None
                or any(record.epoch >= epoch for record in self.all(EpochRecord))
            ),
            self.story,
        )
        assert epoch in self.epochs

    def all(self, kind: type[Any]) -> list[Any]:
        return [record.payload for record in self.records if isinstance(record.payload, kind)]

    def story(self) -> str:
        """What is known of it, for a test that fails."""
        states = [str(state) for state in self.backend.supervisors()]
        groups = [
            str(record)
            for record in self.records
            if record.payload.kind in ("started", "resize", "failure")
        ]
        lines = [f"rank {line.rank}: {line.text}" for line in self.logs]
        return "\n".join([*states, *groups, *lines[-60:]])

    @property
    def epochs(self) -> dict[int, EpochRecord]:
        """Epochs by number; the newest if one was trained again."""
        return {record.epoch: record for record in self.all(EpochRecord)}

    @property
    def training(self) -> list[tuple[Any, ...]]:
        """What does not depend on time: losses, levels and regimes, epoch by epoch."""
        rows = sorted(self.epochs.items())
        return [
            (epoch, row.loss, row.metrics, row.level_by_layer, row.regime_by_layer)
            for epoch, row in rows
        ]


def job_spec(spec: dict[str, Any]) -> JobSpec:
    """Check a spec; without an engine of its own it gets the one that the tests run on."""
    engine = {"engine": ENGINE} if ENGINE else {}
    return JobSpec.model_validate({**spec, "workers": {**engine, **spec.get("workers", {})}})


def place(item: Record | Cursor) -> tuple[int, int, int]:
    return (item.attempt, item.generation, item.seq)


def wait_for(
    condition: Callable[[], object], story: Callable[[], str] = str, *, pause_s: float = 0.05
) -> None:
    """Look until it holds; `story` is told where it does not."""
    limit = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < limit, f"not within {WAIT_S:g} s\n{story()}"
        time.sleep(pause_s)


def processes(title: str) -> list[int]:
    """Process ids under this test session whose title contains the word."""
    parents, found = {}, []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
            if title in (folder / "cmdline").read_bytes().decode(errors="replace"):
                found.append(int(folder.name))
        except OSError:
            continue
    return [pid for pid in found if os.getpid() in ancestors(pid, parents)]


def ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid in parents:
        pid = parents[pid]
        yield pid


def kill(title: str) -> None:
    """Kill one process of that title, and wait until it is gone."""
    pid = processes(title)[0]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: pid not in processes(title))


def find_failures(watched: Watched) -> list[tuple[str, int | None]]:
    """Cause and rank of each failure that was recorded."""
    return [(failure.cause, failure.rank) for failure in watched.life.all(FailureRecord)]


def everything_is_free() -> bool:
    """Whether nothing is reserved in the cluster: Ray leaves out a resource that nobody has."""
    import ray

    return ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"]


@pytest.fixture(scope="module")
def backend(ray_cluster: str) -> Iterator[RayBackend]:
    """Connects this process while a module lasts. No later test is bound to the cluster: its end
    would end them all.
    """
    import ray

    yield RayBackend(address=ray_cluster, installation="e1a571c")
    ray.shutdown()


Start = Callable[..., Life]
Watch = Callable[..., "Watched"]


@pytest.fixture
def start(backend: RayBackend, tmp_path: Path) -> Iterator[Start]:
    """Starts jobs from specs; none of them is left at the end."""
    with started_jobs(backend, tmp_path) as begin:
        yield begin


@pytest.fixture
def watch(start: Start, tmp_path: Path) -> Watch:
    """Starts a job whose steps are written down."""
    from tests.elastic.faults import Watched, job

    def begin(**parts: Any) -> Watched:
        folder = tmp_path / f"steps-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        spec = job(folder, **parts)
        return Watched(start(spec, workers=spec["workers"]["max"]), folder)

    return begin


@pytest.fixture
def begin(tmp_path: Path) -> Watch:
    """Starts a watched job on a cluster whose nodes have room for one worker each."""
    from tests.elastic.faults import Watched, job
    from tests.elastic.node_jobs import start_job

    def on(cluster: Cluster, **parts: Any) -> Watched:
        folder = tmp_path / "steps"
        folder.mkdir()
        return Watched(start_job(cluster, tmp_path, job(folder, **parts)), folder)

    return on


@contextmanager
def started_jobs(backend: RayBackend, folder: Path) -> Iterator[Start]:
    """Give what starts jobs below the folder; remove them at the end."""
    lives: list[Life] = []

    def begin(
        spec: dict[str, Any],
        *,
        workers: int = 2,
        code: Path | None = None,
        pip_index: PipIndex | None = None,
    ) -> Life:
        job_id = uuid.uuid4().hex
        launch = Launch(
            job_id=job_id,
            attempt=1,
            workers=workers,
            storage=str(folder / job_id),
            spec=job_spec(spec),
            code=str(code) if code is not None else None,
            pip_index=pip_index,
            data_cache=DataCache(folder=str(folder / "data-cache")),
        )
        lives.append(Life(backend, launch))
        backend.start(launch)
        return lives[-1]

    yield begin
    for life in lives:
        backend.remove(life.launch.job_id)
    wait_for(lambda: not backend.supervisors() and everything_is_free())
    wait_for(
        lambda: (
            not any(map(processes, ("ray::Supervisor", "ray::RayTrainController", "ray::Worker")))
        )
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Send what the faults of a test cost with its report: another process may print the table."""
    from tests.elastic.faults import COSTS

    report = yield
    report.user_properties += [("cost", asdict(cost)) for cost in COSTS]
    COSTS.clear()
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table of what faults cost, if there were any."""
    from tests.elastic.faults import Cost, table

    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    properties = [pair for report in reports for pair in getattr(report, "user_properties", ())]
    if costs := [Cost(**cost) for name, cost in properties if name == "cost"]:
        terminalreporter.section("faults")
        terminalreporter.write_line(table(costs))
