"""`override`, `hand-back`, `resize`, `pause`, `resume` and `cancel`: taking the wheel, and letting it go."""

from __future__ import annotations

from json import loads
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.commands.common import FAILED, JobArgument, JsonOption, UrlOption, connect, print_json

if TYPE_CHECKING:
    from service.api.schemas import JobView, OverrideRequest, OverrideView
    from service.client import Client

OPEN_STATES = frozenset({"PENDING", "DELIVERED"})
_HOLDING = OPEN_STATES | {"APPLIED"}
LEVEL_HELP = "of compression: low, high, a rung's number (0 is the lightest), or options such as rank=2 or method=none"
BATCH_HELP = "instead of --level: the global batch, low, high or samples a step"


def override(
    job: JobArgument,
    *,
    level: Annotated[str, typer.Option("--level", metavar="LEVEL", help=LEVEL_HELP)] = "",
    batch: Annotated[str, typer.Option("--batch", metavar="SIZE", help=BATCH_HELP)] = "",
    layers: Annotated[
        list[str] | None, typer.Option("--layers", metavar="GLOB", help="only these layers; may be repeated")
    ] = None,
    until: Annotated[int | None, typer.Option("--until", min=1, help="first epoch that is the policy's again")] = None,
    apply_at: Annotated[
        str, typer.Option("--apply-at", metavar="WHEN", help="next_step, next_epoch or an epoch")
    ] = "next_step",
    reason: Annotated[str, typer.Option("--reason", help="is kept with the override")] = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="until every rank has switched; exit code 1 if that does not happen")
    ] = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Decide by hand how hard some layers are compressed, or how large the global batch is."""
    from service.commands import words
    from service.errors import SettingsError

    if bool(level) == bool(batch):
        raise SettingsError("give one of --level, for the compression of layers, and --batch, for the global batch")
    target = "batch" if batch else "compression"
    wish = _wish(target, level or batch, layers=layers or ["*"], until=until, apply_at=apply_at, reason=reason)
    with connect(url) as client:
        found = client.find(job)
        made = client.override(found.id, wish)
        if wait:
            made = _settled(client, found.id, made)
    if json:
        print_json(made)
    else:
        typer.echo(f"override {words.asked(made.model_dump(mode='json'))}")
    if wait and made.state != "APPLIED":
        raise typer.Exit(FAILED)


def hand_back(
    job: JobArgument,
    numbers: Annotated[
        list[int] | None, typer.Argument(metavar="[NUMBER]...", help="of overrides; without any, all that hold")
    ] = None,
    *,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Hand overrides of a job back: what they held is the policy's again."""
    from service.commands import words

    with connect(url) as client:
        found = client.find(job)
        chosen = _chosen(found, client.overrides(found.id).items, numbers or [])
        handed = [client.cancel_override(found.id, override.id) for override in chosen]
    if json:
        print_json({"items": [override.model_dump(mode="json") for override in handed]})
        return
    if not handed:
        typer.echo(f"{found.name} ({found.id}) has no override that holds anything; the policy decides")
    for override in handed:
        typer.echo(f"override {words.asked(override.model_dump(mode='json'))}")


def cancel(job: JobArgument, *, url: UrlOption = "", json: JsonOption = False) -> None:
    """Cancel a job: its workers save their state and stop."""
    with connect(url) as client:
        _tell(client.cancel(client.find(job).id), json=json)


def resize(
    job: JobArgument,
    least: Annotated[int, typer.Argument(metavar="MIN", min=1, help="with fewer workers it waits")],
    most: Annotated[int, typer.Argument(metavar="MAX", min=1, help="it has no more, however much room there is")],
    *,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Allow a job another number of workers; it goes on with them at a step boundary, and loses no step."""
    from service.commands import changes

    with connect(url) as client:
        found = client.resize(client.find(job).id, least, most)
    if json:
        print_json(found)
    else:
        typer.echo(f"{found.name} ({found.id}) is {found.status}: {changes.workers(found)}")


def pause(job: JobArgument, *, url: UrlOption = "", json: JsonOption = False) -> None:
    """Pause a job: its workers save their state and go; 'accordion resume' lets it go on from there."""
    with connect(url) as client:
        _tell(client.pause(client.find(job).id), json=json)


def resume(job: JobArgument, *, url: UrlOption = "", json: JsonOption = False) -> None:
    """Let a paused job go on from where it was, as soon as there is room."""
    with connect(url) as client:
        _tell(client.resume(client.find(job).id), json=json)


def _chosen(job: JobView, overrides: list[OverrideView], numbers: list[int]) -> list[OverrideView]:
    """Those of these numbers, or all that hold something or are to."""
    from service.errors import SettingsError

    known = {override.number: override for override in overrides}
    unknown = [number for number in numbers if number not in known]
    if unknown:
        has = f"its overrides are {', '.join(f'#{number}' for number in known)}" if known else "it has none"
        raise SettingsError(f"{job.name} has no override #{unknown[0]}; {has}")
    return [known[number] for number in numbers or [row.number for row in overrides if row.state in _HOLDING]]


def _tell(job: JobView, *, json: bool) -> None:
    if json:
        print_json(job)
    else:
        typer.echo(f"{job.name} ({job.id}) is {job.status}{f': {job.message}' if job.message else ''}")


def parse_level(text: str) -> str | int | dict[str, Any]:
    """A level as typed: a number is a rung, `name=value[,name=value]` or JSON are options, all else is a rung's name.

    Raises:
        SettingsError: an option without a value.
    """
    if text.isdecimal():
        return int(text)
    if text.startswith("{"):
        return _options(text)
    if "=" not in text:
        return text
    from service.commands.spec_file import set_value

    options: dict[str, Any] = {}
    for part in text.split(","):
        set_value(options, part)
    return options


def _options(text: str) -> dict[str, Any]:
    """Options as JSON, as the REST api takes them.

    Raises:
        SettingsError: it is none.
    """
    from service.errors import SettingsError

    try:
        options: dict[str, Any] = loads(text)
    except ValueError as error:
        raise SettingsError(f"--level is {text!r}, which is no JSON: {error}; write it as rank=2") from None
    return options


def _wish(target: str, level: str, **others: Any) -> OverrideRequest:
    """The request.

    Raises:
        SettingsError: a value that no service would take.
    """
    from pydantic import ValidationError

    from service.api.schemas import OverrideRequest
    from service.errors import SettingsError

    start = others["apply_at"]
    fields = {
        "target": target,
        "level": parse_level(level),
        **others,
        "apply_at": int(start) if start.isdecimal() else start,
    }
    try:
        return OverrideRequest.model_validate(fields)
    except ValidationError as error:
        item = error.errors(include_url=False)[0]
        option = str(item["loc"][0]).replace("_", "-")
        raise SettingsError(
            f"--{option} is {fields[str(item['loc'][0])]!r}: {item['msg']}; see 'accordion override --help'"
        ) from None


def _settled(client: Client, job_id: str, made: OverrideView) -> OverrideView:
    """The override once it is applied or never will be."""
    for event in client.events(job_id):
        data = getattr(event, "data", {})
        if data.get("id") == made.id and data.get("state") not in OPEN_STATES:
            break
    return next(item for item in client.overrides(job_id).items if item.id == made.id)
