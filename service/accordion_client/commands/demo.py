"""`accordion demo`: trains a small job from start to end, shown live, with a summary."""

from __future__ import annotations

import json
import platform
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any

from accordion_client import Client
from accordion_client.commands.spec_file import parse_spec
from accordion_client.commands.watch import follow_job
from accordion_client.machine.connection import service_token
from accordion_client.machine.programs import free_port
from accordion_client.machine.up import READY_TIMEOUT_S, STOP_TIMEOUT_S, last_log_line, list_unready
from accordion_service.domain.byte_sizes import format_bytes
from accordion_service.errors import StartError
from accordion_service.process.child_processes import (
    Program,
    end_process,
    inherit_environment,
    start_process,
)
from accordion_service.schemas.format import format_metric
from accordion_service.settings.home import Home
from accordion_service.settings.settings import Settings
from accordion_workers.records.contract import Bytes

if TYPE_CHECKING:
    from rich.console import Console

    from accordion_client.commands.watch_state import StreamItem, WatchState
    from accordion_service.schemas.jobs import JobView

DISTRIBUTION = "accordion-train"
POLL_S = 0.1
PROGRESS_INTERVAL_S = 15.0
"""Seconds between two lines about what is not ready."""
RUNNING_TIMEOUT_S = 30.0
"""Seconds until a service must be ready that was running before."""
_ENGINES = {
    "ray-train": "Ray Train: the workers were those of a Ray Train run",
    "actors": "plain Ray actors",
    None: "not reported",
}
Figures = dict[str, Any]


def demo(settings: Settings, out: Console, *, figures: Path | None, keep: bool) -> int:
    """Start the service unless it runs, train the demo job, and print a summary; exit code 0 only
    if the job succeeded.

    Raises:
        StartError: the service cannot be started.
        ClientError: the service became unreachable.
    """
    watch = _StopWatch()
    with (
        _running_service(settings, out, keep=keep) as (url, stays),
        Client(url, service_token(settings, url)) as client,
    ):
        watch.ready = watch.now()
        out.print(f"the service is ready at {url} after {watch.ready:.1f} s")
        job = client.submit(packaged_spec())
        submitted = watch.now()
        limits = "" if stays else ", until the demo ends (--keep leaves the service running)"
        out.print(f"open it in a browser; this link works once{limits}:")
        # A link that is wrapped over two lines cannot be clicked.
        out.print(client.login_link(f"/jobs/{job.id}"), soft_wrap=True)

        def note_first_step(state: WatchState, _event: StreamItem) -> None:
            if watch.first_step is None and (
                state.epoch or (state.progress is not None and state.progress.step > 0)
            ):
                watch.first_step = watch.now() - submitted

        state = follow_job(client, job, out, on_event=note_first_step)
        result = _collect_figures(client, client.job(job.id), watch)
        ended = f"the service stops with the demo; run 'accordion up' and open /jobs/{job.id}"
        for line in _summarize_figures(
            result,
            state,
            f"{url}/jobs/{job.id} ({_describe_stop(settings, url)})" if stays else ended,
        ):
            out.print(line, soft_wrap=True)
    if figures is not None:
        figures.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if state.status == "SUCCEEDED" else 1


def _describe_stop(settings: Settings, url: str) -> str:
    """Say that the service keeps running, and what ends it if it runs on this home directory."""
    running = Home(settings.home).running()
    if running is None or running.url != url:
        return "it keeps running"
    return f"it keeps running until 'kill {running.pid}'"


def packaged_spec() -> dict[str, Any]:
    """The job of the demo; the same file as `deploy/jobs/digits.yaml`."""
    return parse_spec(
        resources.files("accordion_client.commands").joinpath("demo_job.yaml").read_text(),
        "demo_job.yaml",
    )


@dataclass(slots=True)
class _StopWatch:
    """Seconds; `ready` since the start, `first_step` since the job was submitted."""

    started_at: float = 0.0
    ready: float = 0.0
    first_step: float | None = None

    def __post_init__(self) -> None:
        self.started_at = time.monotonic()

    def now(self) -> float:
        return time.monotonic() - self.started_at


@contextmanager
def _running_service(settings: Settings, out: Console, *, keep: bool) -> Iterator[tuple[str, bool]]:
    """Yield the address of a ready service: the given one, the one of this home directory, or a new
    one.

    The second value tells whether it continues to run afterwards.
    """
    home = Home(settings.home)
    home.make()
    running = home.running()
    known = settings.url or (running.url if running else "")
    if known:
        _wait_until_ready(known, None, home, out=out)
        yield known, True
        return
    out.print(f"starting Ray, the API and the scheduler in {home.path} ...")
    port = _choose_port(settings)
    process = start_process(_up_program(settings, home, port, keep=keep))
    try:
        url = f"http://{settings.host}:{port}"
        _wait_until_ready(url, process, home, out=out)
        yield url, keep
    except BaseException:
        end_process(process, grace_s=STOP_TIMEOUT_S)
        raise
    if not keep:
        out.print("stopping the service ...")
        end_process(process, grace_s=STOP_TIMEOUT_S)


def _choose_port(settings: Settings) -> int:
    """Return the default port, or a free one if it is taken."""
    try:
        return free_port(settings.host, settings.port)
    except StartError:
        return free_port(settings.host, 0)


def _up_program(settings: Settings, home: Home, port: int, *, keep: bool) -> Program:
    command = (
        sys.executable,
        "-P",
        "-m",
        "accordion_client.commands.main",
        "up",
        "--host",
        settings.host,
        "--port",
        str(port),
    )
    return Program(
        name="up",
        command=command,
        environment={**inherit_environment(lambda _: True), "ACCORDION_HOME": str(home.path)},
        log=home.logs / "up.log",
        orphan_signal=None if keep else signal.SIGTERM,
    )


def _wait_until_ready(url: str, process: Popen[bytes] | None, home: Home, *, out: Console) -> None:
    """Wait until a starting service is ready, and print periodically what is not ready.

    Raises:
        StartError: it ended, or the time limit passed.
    """
    started_at = printed_at = time.monotonic()
    # A service that this process started ends by itself at its own limit, with its own message.
    limit_s = RUNNING_TIMEOUT_S if process is None else READY_TIMEOUT_S + RUNNING_TIMEOUT_S
    log = home.logs / "up.log"
    with Client(url) as client:
        while waiting_for := list_unready(client):
            now = time.monotonic()
            if process is not None and process.poll() is not None:
                raise StartError(
                    f"the service did not start: {last_log_line(log)}; full log: {log}"
                )
            if now - started_at > limit_s:
                raise StartError(
                    f"the service at {url} was not ready after {limit_s:g} s:"
                    f" {waiting_for}; see the logs in {home.logs}, or ask 'accordion doctor'"
                )
            if now - printed_at > PROGRESS_INTERVAL_S:
                out.print(f"  not ready after {now - started_at:.0f} s: {waiting_for}")
                printed_at = now
            time.sleep(POLL_S)


def _collect_figures(client: Client, job: JobView, watch: _StopWatch) -> Figures:
    """Summarize the run; bytes are those of one worker over all epochs."""
    epochs = client.epochs(job.id).items
    names = ("accordion-train", "ray", "torch")
    return {
        "job": job.id,
        "status": job.status.value,
        "engine": job.ray_run.engine if job.ray_run is not None else None,
        "accuracy": job.metrics.get("accuracy"),
        "seconds": {"ready": watch.ready, "first_step": watch.first_step, "total": watch.now()},
        "bytes": {
            name: sum(getattr(epoch.bytes, name) for epoch in epochs) for name in Bytes().totals()
        },
        "epochs": len(epochs),
        "decisions": len(client.decisions(job.id).items),
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in names},
        },
    }


def _summarize_figures(figures: Figures, state: WatchState, page: str) -> Iterator[str]:
    seconds, bytes_ = figures["seconds"], figures["bytes"]
    yield ""
    yield f"{state.name}: {state.status}{f' ({state.message})' if state.message else ''}"
    yield (
        f"  accuracy   {format_metric('accuracy', figures['accuracy'])} after {figures['epochs']}"
        " epochs"
    )
    first = (
        f"first step {seconds['first_step']:.1f} s after submitting, "
        if seconds["first_step"] is not None
        else ""
    )
    yield (
        f"  time       ready after {seconds['ready']:.1f} s, {first}{seconds['total']:.1f} s in all"
    )
    yield f"  engine     {_ENGINES[figures['engine']]}"
    yield f"  sent       {_describe_sent_bytes(bytes_)}"
    yield f"  decisions  {figures['decisions']}"
    yield f"  page       {page}"


def _describe_sent_bytes(bytes_: dict[str, int]) -> str:
    sent, uncompressed = bytes_["wire"], bytes_["dense_wire"]
    if not sent:
        return "nothing"
    others = (
        f"{name} {format_bytes(size)} ({size / sent:.1f}x)"
        for name, size in (("uncompressed", uncompressed), ("in fp16", uncompressed / 2))
    )
    return f"{format_bytes(sent)} by each worker; {', '.join(others)}"
