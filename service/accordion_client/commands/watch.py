"""`watch` and `logs`: follow a running job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from accordion_client.commands.cli_support import (
    JobArgument,
    JsonOption,
    UrlOption,
    connect_client,
    create_console,
    find_to_read,
    get_exit_code,
    print_json,
    print_line,
)
from accordion_service.domain.jobs.removed_output import describe_removed
from accordion_service.domain.jobs.statuses import Kind

if TYPE_CHECKING:
    from rich.console import Console

    from accordion_client import Client, LogChunk
    from accordion_client.commands.watch_state import StreamItem, WatchState
    from accordion_service.schemas.jobs import JobView

MAX_TAIL_LINES = 100_000
"""Maximum number of lines that the service returns from the end of a log."""
RECENT_EPOCHS = 10
"""Number of the newest epochs so far that `watch` shows by default."""
REFRESH_PER_S = 4
"""Redraws per second; progress events have about the same rate."""
EventCallback = Callable[["WatchState", "StreamItem"], None]
"""Called with every event and the state after it."""


def watch(
    job: JobArgument,
    *,
    everything: Annotated[
        bool,
        typer.Option("--all", help="show all epochs so far, and not only the newest"),
    ] = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Watch a job until it ends: progress, loss, regimes, levels, bytes saved, decisions.

    Of the epochs so far, only the newest are shown; --json prints all. Exit code 0 if the job
    succeeded, otherwise 1. Ctrl-C does not stop the job.
    """
    with connect_client(url) as client:
        found = find_to_read(client, job)
        epochs = None if everything or json else RECENT_EPOCHS
        raise typer.Exit(follow_to_exit_code(client, found, json=json, epochs=epochs))


def logs(
    job: JobArgument,
    *,
    follow_: Annotated[
        bool, typer.Option("--follow", "-f", help="follow the output until the job ends")
    ] = False,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="NUMBER", min=1, help="only this attempt")
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail",
            metavar="NUMBER",
            min=1,
            max=MAX_TAIL_LINES,
            help="only this many of the newest lines; with --follow, also those that follow",
        ),
    ] = None,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Print the output of the workers and their supervisor."""
    with connect_client(url) as client:
        found = find_to_read(client, job)
        if follow_:
            _follow_logs(client.follow_logs(found.id, attempt=attempt, tail=tail), json=json)
            return
        written = False
        for line in client.logs(found.id, attempt=attempt, tail=tail):
            _print_line(line, json=json)
            written = True
        if not written:
            print_line(
                f"{found.name} ({found.id}) has written nothing: {_why_silent(found, url)}",
                err=True,
            )


def _why_silent(job: JobView, url: str) -> str:
    if job.kind != Kind.GUEST:
        return f"{job.status}, {job.message}"
    ray_job = (job.ray_run and job.ray_run.ray_job_id) or "*"
    return (
        "it is a guest run; its workers print to the terminal of its script, and to files"
        f" worker-*-{ray_job}-*.out and .err in {_find_ray_logs(url)}"
    )


def _find_ray_logs(url: str) -> str:
    """Describe where Ray keeps the output of the workers; for `accordion up`, by its path."""
    from accordion_client.machine.connection import is_same_service, service_url
    from accordion_client.machine.profiles import load_client_settings
    from accordion_client.machine.programs import ray_log_folder
    from accordion_service.settings.home import Home

    settings = load_client_settings(url)
    running = Home(settings.home).running()
    if running is not None and is_same_service(service_url(settings, url), running):
        return str(ray_log_folder(running.ray_dir))
    return "session_latest/logs of Ray's directory (/tmp/ray by default) on their nodes"


def check_may_watch(client: Client) -> None:
    """Check that the token allows watching, before `--follow` submits a job.

    Raises:
        Refused: it does not have the scope `read`.
    """
    client.jobs(limit=1)


def follow_to_exit_code(
    client: Client, job: JobView, *, json: bool, epochs: int | None = None
) -> int:
    """Show the job until it ends, as JSON lines or as text, and return the exit code. Of the epochs
    so far, the text has the `epochs` newest; None for all.
    """
    if json:
        return get_exit_code(_print_events(client, job))
    first = 0 if epochs is None else _find_first_epoch(client, job, epochs)
    return get_exit_code(follow_job(client, job, create_console(), first_epoch=first).status)


def _find_first_epoch(client: Client, job: JobView, count: int) -> int:
    """Return the first of the newest epochs; a page of a large model may not have all of them."""
    newest = client.epochs(job.id, limit=1, newest_first=True).items
    return max([0, *(epoch.epoch + 1 - count for epoch in newest)])


def follow_job(
    client: Client,
    job: JobView,
    out: Console,
    *,
    on_event: EventCallback | None = None,
    first_epoch: int = 0,
) -> WatchState:
    """Show the job until it ends, live on a terminal, else as lines; return the final state. Epochs
    before `first_epoch` are only counted.
    """
    from rich.live import Live

    from accordion_client.commands import watch_view as screen
    from accordion_client.commands.recent_epochs import RecentEpochs
    from accordion_client.commands.watch_state import apply_event, initial_state

    state, recent = initial_state(job), RecentEpochs(first_epoch)
    live = (
        Live(screen.render_panel(state), console=out, refresh_per_second=REFRESH_PER_S)
        if sys.stdout.isatty()
        else None
    )
    with live or nullcontext():
        for event in client.events(job.id):
            state = apply_event(state, event)
            for line in recent.select(event, screen.describe_event(state, event)):
                out.print(line)
            if live:
                live.update(screen.render_panel(state))
            if on_event:
                on_event(state, event)
    return state if state.ended else initial_state(client.job(job.id))


def _print_events(client: Client, job: JobView) -> str:
    """Print every event as one line of JSON, and return the final status."""
    from accordion_service.schemas.jobs import ProgressView

    for event in client.events(job.id):
        kind = {"type": "progress"} if isinstance(event, ProgressView) else {}
        print_json(kind | event.model_dump(mode="json"), indent=None)
    return client.job(job.id).status.value


def _follow_logs(chunks: Iterator[LogChunk], *, json: bool) -> None:
    for chunk in chunks:
        if chunk.removed_bytes:
            _print_line(f"[accordion] {describe_removed(chunk.removed_bytes)}", json=json)
        if chunk.dropped:
            _print_line(
                f"[accordion] {chunk.dropped} lines came too fast and were dropped", json=json
            )
        for line in chunk.lines:
            who = "supervisor" if line.rank is None else f"rank {line.rank}"
            _print_line(f"[{who}] {line.text}", json=json)


def _print_line(line: str, *, json: bool) -> None:
    """Print a line as `[source] text`, or as JSON."""
    if not json:
        print_line(line)
        return
    who, _, text = line.removeprefix("[").partition("] ")
    print_json({"who": who, "text": text}, indent=None)
