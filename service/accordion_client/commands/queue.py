"""`queue`: what waits and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from accordion_client.commands.cli_support import (
    JsonOption,
    UrlOption,
    connect_client,
    create_console,
    create_table,
    print_json,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from accordion_client import Client

_SHOWN_JOBS = 3
"""Maximum number of jobs to name that one job waits for; more are counted."""
_REMEDY_COMMANDS = (
    "'accordion resize' changes the minimum of workers, 'accordion change' the priority, 'accordion"
    " quota set' a quota, and 'accordion secret set' a secret; 'accordion clone' submits a changed"
    " job, and 'accordion node restore' lets a node take workers"
)


def queue(*, url: UrlOption = "", json: JsonOption = False) -> None:
    """List the waiting jobs in the order of the queue, why each one waits, what would help, and
    which nodes were requested.
    """
    with connect_client(url) as client:
        found = client.queue()
        if json:
            print_json(found)
            return
        names = read_names(client) if found.items else {}
    if not found.items:
        typer.echo("no job waits")
        return
    columns = ("POSITION", "JOB", "OWNER", "PRIORITY", "WHY IT WAITS", "WAITS FOR")
    table = create_table(*columns, "WHAT WOULD HELP")
    for entry in found.items:
        table.add_row(
            str(entry.position),
            entry.name or entry.id,
            entry.owner or "",
            str(entry.priority),
            replace_job_ids("; ".join(filter(None, (entry.message, entry.autoscaler))), names),
            name_jobs(entry.waits_for, names),
            replace_job_ids("; or ".join(entry.remedies), names),
        )
    create_console().print(table)
    if any(entry.remedies for entry in found.items):
        typer.echo(_REMEDY_COMMANDS)


def read_names(client: Client) -> dict[str, str]:
    """Read the names of unfinished jobs, by id: of the newest, as many as one page has."""
    from accordion_service.domain.jobs.status_table import UNFINISHED

    page = client.jobs(status=[status.value for status in UNFINISHED], limit=200)
    return {job.id: job.name for job in page.items}


def name_jobs(ids: Sequence[str], names: Mapping[str, str]) -> str:
    """Name the jobs that another one waits for; one without a known name by its id."""
    shown = ", ".join(names.get(job_id, job_id) for job_id in ids[:_SHOWN_JOBS])
    more = len(ids) - _SHOWN_JOBS
    return f"{shown} and {more} more" if more > 0 else shown


def replace_job_ids(text: str, names: Mapping[str, str]) -> str:
    """Replace the IDs of jobs in a text by their names, as far as these are known."""
    for job_id, name in names.items():
        text = text.replace(job_id, name)
    return text


def describe_wait(client: Client, job_id: str) -> list[str]:
    """Return lines that say which jobs a queued job waits for, what would help, and which
    nodes were requested.
    """
    entries = [entry for entry in client.queue().items if entry.id == job_id]
    lines = []
    for entry in entries:
        if entry.waits_for:
            lines.append(f"waits for  {name_jobs(entry.waits_for, read_names(client))}")
        if entry.remedies:
            lines.append(f"would help {'; or '.join(entry.remedies)}")
        if entry.autoscaler:
            lines.append(f"new nodes  {entry.autoscaler}")
    return lines
