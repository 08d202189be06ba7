"""`queue` and `quota`: what waits and why, and what users may hold at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from service.commands.cli_support import (
    JsonOption,
    UrlOption,
    connect_client,
    create_console,
    create_table,
    print_json,
)
from service.commands.completion import complete_label, complete_user

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from service.client import Client
    from service.schemas.quotas import QuotaUsageView, QuotaView

_SHOWN_JOBS = 3
"""Maximum number of jobs to name that one job waits for; more are counted."""
_REMEDY_COMMANDS = (
    "'accordion resize' changes the minimum of workers, 'accordion change' the priority, 'accordion"
    " quota set' a quota, and 'accordion secret set' a secret; 'accordion clone' submits a changed"
    " job, and 'accordion node restore' lets a node take workers"
)

_UserOption = Annotated[
    str | None,
    typer.Option(
        "--user",
        metavar="NAME",
        help="user; '*' for every user without a quota of their own",
        autocompletion=complete_user,
    ),
]
_LabelOption = Annotated[
    str | None,
    typer.Option(
        "--label", metavar="KEY:VALUE", help="label of the jobs", autocompletion=complete_label
    ),
]


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
    from service.domain.job_status import UNFINISHED

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


def set_quota(
    *,
    user: _UserOption = None,
    label: _LabelOption = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", metavar="N", min=0, help="maximum number of jobs that hold workers"),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", metavar="N", min=0, help="maximum number of workers across these jobs"
        ),
    ] = None,
    gpus: Annotated[
        float | None,
        typer.Option("--gpus", metavar="N", min=0, help="maximum number of GPUs across these jobs"),
    ] = None,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Limit what the jobs of a user, or with a label, may hold at the same time. It replaces the
    previous quota; jobs that run keep their workers.
    """
    _check_subject(user, label)
    if jobs is None and workers is None and gpus is None:
        raise typer.BadParameter(
            "give at least one of --jobs, --workers and --gpus; 'accordion quota remove' removes a"
            " quota"
        )
    with connect_client(url) as client:
        quota = client.set_quota(user=user, label=label, jobs=jobs, workers=workers, gpus=gpus)
    if json:
        print_json(quota)
    else:
        typer.echo(f"{_describe_subject(quota)}: {_describe_limits(quota)}")


def list_quotas(*, url: UrlOption = "", json: JsonOption = False) -> None:
    """List all quotas, and what the jobs hold of them."""
    with connect_client(url) as client:
        found = client.quotas()
    if json:
        print_json(found)
        return
    table = create_table("JOBS OF", "JOBS", "WORKERS", "GPUS")
    for quota in found.items:
        table.add_row(_describe_subject(quota), *_list_shares(quota, quota.used))
        for user, used in quota.used_by_user.items():
            table.add_row(f"  user {user}", *_list_shares(quota, used))
    create_console().print(table)


def remove_quota(
    *,
    user: _UserOption = None,
    label: _LabelOption = None,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Remove the quota of a user or a label."""
    _check_subject(user, label)
    with connect_client(url) as client:
        quota = client.remove_quota(user=user, label=label)
    if json:
        print_json(quota)
    else:
        typer.echo(f"removed the quota of {_describe_subject(quota)}: {_describe_limits(quota)}")


def _check_subject(user: str | None, label: str | None) -> None:
    if (user is None) == (label is None):
        raise typer.BadParameter("give either --user NAME or --label KEY:VALUE")


def _describe_subject(quota: QuotaView) -> str:
    if quota.user == "*":
        return "any other user"
    return f"label {quota.label}" if quota.user is None else f"user {quota.user}"


def _describe_limits(quota: QuotaView) -> str:
    from service.domain.quotas import Quota

    limits = Quota(jobs=quota.jobs, workers=quota.workers, gpus=quota.gpus)
    return f"at most {limits.describe()}"


def _list_shares(quota: QuotaView, used: QuotaUsageView | None) -> list[str]:
    """Return what is used of each limit; without `used`, the limits of each user."""
    pairs = [
        (used and used.jobs, quota.jobs),
        (used and used.workers, quota.workers),
        (used and used.gpus, quota.gpus),
    ]
    return [
        "" if limit is None else f"{limit:g} each" if held is None else f"{held:g} of {limit:g}"
        for held, limit in pairs
    ]
