"""`webhook`: notify other programs when a job changes its status."""

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
from accordion_client.commands.completion import (
    complete_delivery,
    complete_label,
    complete_webhook,
    complete_words,
)
from accordion_client.commands.paging import (
    CursorOption,
    LimitOption,
    PagedItems,
    print_json_list,
    report_more,
)
from accordion_service.domain.jobs.statuses import Status
from accordion_service.domain.webhooks.retries import DeliveryState
from accordion_service.schemas.format import format_time

if TYPE_CHECKING:
    from accordion_service.schemas.webhooks import DeliveryView, WebhookView

_NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="name of the webhook", autocompletion=complete_webhook),
]


def add_webhook(
    receiver: Annotated[str, typer.Argument(metavar="URL", help="URL of the receiver, with https")],
    *,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="name (default: the host of the URL)"),
    ] = None,
    statuses: Annotated[
        list[str] | None,
        typer.Option(
            "--on",
            metavar="STATUS",
            help="status that is sent; may be repeated (default: SUCCEEDED, FAILED and CANCELLED)",
            autocompletion=complete_words(*Status),
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            "--label",
            metavar="KEY:VALUE",
            help="only jobs with this label",
            autocompletion=complete_label,
        ),
    ] = None,
    all_jobs: Annotated[
        bool, typer.Option("--all-jobs", help="jobs of all users; needs the scope read:all")
    ] = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Send a request to a URL whenever a job of yours reaches a status; print its secret.

    The receiver verifies each request with the secret, which cannot be shown again, and a library
    of the Standard Webhooks specification.
    """
    wanted = [status.upper() for status in statuses] if statuses else None
    with connect_client(url) as client:
        made = client.add_webhook(
            receiver, name=name, statuses=wanted, label=label, all_jobs=all_jobs
        )
    if json:
        print_json(made)
        return
    typer.echo(
        f"added webhook {made.name} for {_describe_jobs(made)};"
        f" next: accordion webhook test {made.name}",
        err=True,
    )
    typer.echo(made.secret)


def list_webhooks(*, url: UrlOption = "", json: JsonOption = False) -> None:
    """List your webhooks, without their secrets."""
    with connect_client(url) as client:
        found = client.webhooks()
    if json:
        print_json(found)
        return
    table = create_table("NAME", "URL", "SENDS", "WAITING", "DEAD", "DISABLED")
    for one in found.items:
        counts = (str(one.pending), str(one.dead))
        table.add_row(one.name, one.url, _describe_jobs(one), *counts, one.disabled_reason or "")
    create_console().print(table)


def rotate_secret(name: _NameArgument, *, url: UrlOption = "", json: JsonOption = False) -> None:
    """Give one of your webhooks a new secret, and print it.

    For 24 hours, each request is signed with the old secret, too, so that the receiver can take the
    new one, which cannot be shown again, at any time. If the key of the service has changed, the
    old secret is no longer valid.
    """
    with connect_client(url) as client:
        webhook = client.rotate_webhook_secret(name)
    if json:
        print_json(webhook)
        return
    until = webhook.previous_secret_until
    old = (
        "no longer valid, since the key of the service has changed"
        if until is None
        else f"valid until {format_time(until)}"
    )
    typer.echo(f"webhook {webhook.name} has a new secret; the old one is {old}", err=True)
    typer.echo(webhook.secret)


def remove_webhook(name: _NameArgument, *, url: UrlOption = "", json: JsonOption = False) -> None:
    """Remove one of your webhooks with its deliveries, also those that wait."""
    with connect_client(url) as client:
        webhook = client.remove_webhook(name)
    if json:
        print_json(webhook)
    else:
        typer.echo(f"removed webhook {webhook.name}")


def send_test(name: _NameArgument, *, url: UrlOption = "", json: JsonOption = False) -> None:
    """Send a test message to one of your webhooks."""
    with connect_client(url) as client:
        delivery = client.test_webhook(name)
    _print_queued(name, delivery, json=json)


def list_deliveries(
    name: _NameArgument,
    *,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="only those: pending, delivered or dead",
            autocompletion=complete_words(*DeliveryState),
        ),
    ] = None,
    limit: LimitOption = 50,
    cursor: CursorOption = None,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """List the messages to one of your webhooks, newest first, and how far each is."""
    with connect_client(url) as client:
        wanted = state.upper() if state else None
        found = PagedItems(
            lambda size, after: client.deliveries(name, state=wanted, limit=size, cursor=after),
            limit=limit,
            cursor=cursor,
        )
        if json:
            print_json_list(found)
            return
        table = create_table("ID", "TIME", "JOB", "STATUS", "STATE", "ATTEMPTS", "NEXT", "WHY")
        for one in found:
            table.add_row(*_list_cells(one))
    create_console().print(table)
    report_more("messages", found)


def _list_cells(delivery: DeliveryView) -> tuple[str, ...]:
    """Return what the table has about one message."""
    return (
        delivery.id,
        format_time(delivery.created_at),
        delivery.job_id or "",
        delivery.status or "test",
        delivery.state,
        str(delivery.attempts),
        format_time(delivery.next_attempt_at),
        delivery.message,
    )


def send_again(
    name: _NameArgument,
    delivery_id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="ID of the message, from webhook deliveries",
            autocompletion=complete_delivery,
        ),
    ],
    *,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Send a message to one of your webhooks again, also one that was given up."""
    with connect_client(url) as client:
        delivery = client.send_delivery(name, delivery_id)
    _print_queued(name, delivery, json=json)


def _print_queued(name: str, delivery: DeliveryView, *, json: bool) -> None:
    if json:
        print_json(delivery)
        return
    typer.echo(
        f"message {delivery.id} is sent within seconds; 'accordion webhook deliveries {name}' shows"
        " whether it arrived"
    )


def _describe_jobs(webhook: WebhookView) -> str:
    """Describe the changes that a webhook sends."""
    whose = "all jobs" if webhook.all_jobs else "your jobs"
    label = f" with the label {webhook.label}" if webhook.label else ""
    return f"{', '.join(webhook.statuses)} of {whose}{label}"
