"""`quota`: what users may hold at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from accordion_client.commands.cli_support import (
    JsonOption,
    UrlOption,
    connect_client,
    create_console,
    create_table,
    print_json,
)
from accordion_client.commands.completion import complete_label, complete_user

if TYPE_CHECKING:
    from accordion_service.schemas.quotas import QuotaUsageView, QuotaView

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
    from accordion_service.domain.capacity.quotas import Quota

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
