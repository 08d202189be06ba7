"""Translates responses and lost connections to the client's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from pydantic import ValidationError

from accordion_client.sdk.errors import NotFound, Refused, ServiceFailed, Unreachable
from accordion_service.schemas.jobs import Problem, ProblemItem


@contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """Translate network errors.

    Raises:
        Unreachable: nothing listens at the address, or the connection was lost.
        Refused: the request contains invalid Unicode or a non-ASCII header; nothing was sent.
    """
    try:
        yield
    except UnicodeEncodeError as error:
        raise Refused(
            f"{error.object!r} cannot be sent: character {error.start} does not exist in"
            f" {error.encoding}; give the text as UTF-8, and header values in ASCII",
            422,
            "invalid",
        ) from error
    except httpx2.TimeoutException as error:
        raise Unreachable(
            f"the service at {url} did not respond in time; is the machine overloaded?"
        ) from error
    except httpx2.TransportError as error:
        raise Unreachable(
            f"no service responds at {url} ({error}); "
            "start one with 'accordion up', or name another with --url or ACCORDION_URL"
        ) from error


async def raise_for_status(response: httpx2.Response) -> None:
    """Raise an error for a response other than success.

    Raises:
        ServiceFailed: 5xx.
        NotFound: 404.
        Refused: another 4xx.
        Unreachable: another program responds.
    """
    if response.is_success:
        return
    await response.aread()
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError as error:
        raise Unreachable(
            f"the program at {response.request.url} is not an Accordion service (HTTP"
            f" {response.status_code}); is the address right?"
        ) from error
    kind = (
        ServiceFailed
        if response.is_server_error
        else NotFound
        if response.status_code == 404
        else Refused
    )
    raise kind(_describe_problem(problem), problem.status, problem.code)


def _describe_problem(problem: Problem) -> str:
    """List each invalid value with its field; if none is named, the general message."""
    if problem.status == 401:
        return (
            f"{problem.detail}; set ACCORDION_TOKEN_FILE or ACCORDION_TOKEN to a token of yours, or"
            " ACCORDION_ADMIN_TOKEN_FILE or ACCORDION_ADMIN_TOKEN, or run 'accordion login'"
        )
    return "\n".join(map(describe_item, problem.errors)) or problem.detail


def describe_item(item: ProblemItem) -> str:
    """Describe an invalid value with its field, unless the description begins with that."""
    path = _dotted_path(item.pointer)
    if not path or item.detail.startswith((f"{path} ", f"{path}.")):
        return item.detail
    return f"{path}: {item.detail}"


def _dotted_path(pointer: str) -> str:
    """Convert a JSON pointer to a dotted path: `/training/epochs` is `training.epochs`."""
    return pointer.strip("/").replace("/", ".").replace("~1", "/").replace("~0", "~")


def parse_base_url(url: str) -> httpx2.URL:
    """Normalize the address.

    Raises:
        Unreachable: it is not a valid address.
    """
    try:
        address = httpx2.URL(url)
    except httpx2.InvalidURL:
        address = httpx2.URL("")
    # A percent sign encodes a character that no host name may contain.
    if address.scheme not in {"http", "https"} or not address.host or "%" in address.host:
        raise Unreachable(
            f"{url!r} is not an address of a service; give one like http://127.0.0.1:8080"
        )
    return address
