"""Words that the shell completes: fixed ones, and those that the service has.

The service is asked for a second at most (`ACCORDION_COMPLETION_TIMEOUT_S`), and in silence,
because a shell that completes a word has no place for an error. Typer leaves out words that start
otherwise than the incomplete one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from accordion_client import Client

_Candidate = tuple[str, str]
"""A word, and what it stands for."""
_NEWEST = 50
"""Number of the newest jobs, or deliveries, that the shell completes."""
_ID_CHARACTERS = frozenset("0123456789abcdef-")


def complete_job(ctx: typer.Context, incomplete: str) -> list[_Candidate]:
    """Complete names and ids of jobs that the command is for."""

    def read(client: Client) -> Iterator[_Candidate]:
        status = _list_statuses(ctx.info_name)
        chosen: dict[str, Any] = {"status": status, "archived": ctx.info_name == "unarchive"}
        named = client.jobs(name_prefix=incomplete or None, **chosen, limit=_NEWEST)
        yield from ((job.name, job.status.value) for job in named.items)
        if incomplete and set(incomplete) <= _ID_CHARACTERS:
            numbered = client.jobs(id=incomplete, **chosen, limit=_NEWEST)
            yield from ((job.id, f"{job.name}, {job.status.value}") for job in numbered.items)

    return _ask_service(ctx, read)


def complete_label(ctx: typer.Context) -> list[_Candidate]:
    """Complete labels of jobs, as `key:value`."""

    def read(client: Client) -> Iterator[_Candidate]:
        status, archived = _list_statuses(ctx.info_name), ctx.info_name == "unarchive"
        for job in client.jobs(status=status, archived=archived, limit=_NEWEST).items:
            yield from ((f"{key}:{value}", "") for key, value in job.labels.items())

    return _ask_service(ctx, read)


def complete_override(ctx: typer.Context) -> list[_Candidate]:
    """Complete the numbers of active overrides of the job before it."""

    def read(client: Client) -> Iterator[_Candidate]:
        from accordion_service.domain.overrides.states import LIVE
        from accordion_service.schemas.format import format_override

        found = client.overrides(client.find(ctx.params["job"]).id).items
        active = (override for override in found if override.state in LIVE)
        yield from (
            (str(one.number), format_override(one.model_dump(mode="json"))) for one in active
        )

    return _ask_service(ctx, read)


def complete_checkpoint(ctx: typer.Context) -> list[_Candidate]:
    """Complete the names of the checkpoints that are kept of the job before it."""

    def read(client: Client) -> Iterator[_Candidate]:
        yield "best", "the best one by the job's objective"
        # The arguments are not assigned to names while an option lacks its value.
        job = ctx.params.get("job") or ctx.args[0]
        found = client.checkpoints(client.find(job).id, kept=True).items
        yield from ((one.name, f"epoch {one.epoch}") for one in reversed(found))

    return _ask_service(ctx, read)


def complete_user(ctx: typer.Context) -> list[_Candidate]:
    """Complete names of users."""
    return _ask_service(ctx, lambda client: ((one.name, one.role) for one in client.users().items))


def complete_token(ctx: typer.Context) -> list[_Candidate]:
    """Complete IDs of your tokens that are not revoked."""

    def read(client: Client) -> Iterator[_Candidate]:
        valid = (token for token in client.tokens().items if token.revoked_at is None)
        yield from ((token.id, token.label) for token in valid)

    return _ask_service(ctx, read)


def complete_secret(ctx: typer.Context) -> list[_Candidate]:
    """Complete names of your secrets."""
    return _ask_service(ctx, lambda client: ((one.name, "") for one in client.secrets().items))


def complete_webhook(ctx: typer.Context) -> list[_Candidate]:
    """Complete names of your webhooks."""
    return _ask_service(
        ctx, lambda client: ((one.name, one.url) for one in client.webhooks().items)
    )


def complete_delivery(ctx: typer.Context) -> list[_Candidate]:
    """Complete IDs of messages to the webhook before it."""

    def read(client: Client) -> Iterator[_Candidate]:
        page = client.deliveries(ctx.params["name"], limit=_NEWEST)
        yield from ((one.id, f"{one.status or 'test'}, {one.state}") for one in page.items)

    return _ask_service(ctx, read)


def complete_node(ctx: typer.Context) -> list[_Candidate]:
    """Complete names of nodes."""
    return _ask_service(
        ctx, lambda client: ((one.name, one.state.value) for one in client.nodes().items)
    )


def complete_words(*words: str) -> Callable[[str], list[str]]:
    """Complete fixed words, in lower case too."""

    def complete(incomplete: str) -> list[str]:
        return [word.lower() if incomplete.islower() else str(word) for word in words]

    return complete


def _list_statuses(command: str | None) -> list[str]:
    """Return the statuses of the jobs that a command is for; empty for all."""
    from accordion_service.domain.jobs.status_table import ENDED, UNFINISHED
    from accordion_service.domain.jobs.statuses import Status

    match command:
        case "cancel" | "hand-back" | "override" | "pause" | "resize":
            return list(UNFINISHED)
        case "resume":
            return [Status.PAUSING, Status.PAUSED]
        case "retry":
            return [Status.FAILED, Status.CANCELLED]
        case "archive" | "delete":
            return list(ENDED)
    return []


def _ask_service(
    ctx: typer.Context, read: Callable[[Client], Iterator[_Candidate]]
) -> list[_Candidate]:
    """Return words of the service, as far as they arrive in time; none if it is away or refuses."""
    found: dict[str, str] = {}
    with suppress(Exception):
        from accordion_client import RetryBudget
        from accordion_client.commands.profile_option import ask_chosen
        from accordion_client.machine import connection
        from accordion_service.settings.settings import load_settings

        with ask_chosen(ctx):
            url = ctx.params.get("url") or ""
            client = connection.connect(url, retries=RetryBudget(attempts=1))
        # A timeout of the client would limit each piece of a response, and not the whole.
        thread = Thread(target=_collect_words, args=(client, read, found), daemon=True)
        thread.start()
        thread.join(load_settings().completion_timeout_s)
    return list(found.items())


def _collect_words(
    client: Client, read: Callable[[Client], Iterator[_Candidate]], found: dict[str, str]
) -> None:
    with suppress(Exception), client:
        for word, meaning in read(client):
            found.setdefault(word, meaning)
