"""`override` and `hand-back`: levels that users set, and their return to the policy."""

from __future__ import annotations

import math
from functools import partial
from http import HTTPStatus
from json import loads
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accordion_client.commands.cli_support import (
    FAILED,
    JobArgument,
    JsonOption,
    UrlOption,
    connect_client,
    parse_whole,
    print_json,
)
from accordion_client.commands.completion import (
    complete_override,
    complete_words,
)

if TYPE_CHECKING:
    from accordion_client import Client
    from accordion_service.schemas.jobs import JobView
    from accordion_service.schemas.overrides import OverrideRequest, OverrideView

LEVEL_HELP = (
    "compression level: low, high, a number (0 is the lightest), or options such as rank=2 or"
    " method=none"
)
BATCH_HELP = "global batch, instead of --level: low, high or samples per step"
LOCAL_STEPS_HELP = "local steps between two exchanges, instead of --level: low, high or a number"
LR_HELP = "learning rate, instead of --level: a number, or factor=0.5 for half of the scheduled one"
WEIGHT_DECAY_HELP = "weight decay, instead of --level: a number"
CLIP_NORM_HELP = "norm from which gradients are clipped, instead of --level: a number"
_complete_regime = complete_words("low", "high")


def override(
    job: JobArgument,
    *,
    level: Annotated[
        str,
        typer.Option("--level", metavar="LEVEL", help=LEVEL_HELP, autocompletion=_complete_regime),
    ] = "",
    batch: Annotated[
        str,
        typer.Option("--batch", metavar="SIZE", help=BATCH_HELP, autocompletion=_complete_regime),
    ] = "",
    local_steps: Annotated[
        str,
        typer.Option(
            "--local-steps",
            metavar="STEPS",
            help=LOCAL_STEPS_HELP,
            autocompletion=_complete_regime,
        ),
    ] = "",
    lr: Annotated[str, typer.Option("--lr", metavar="RATE", help=LR_HELP)] = "",
    weight_decay: Annotated[
        str, typer.Option("--weight-decay", metavar="NUMBER", help=WEIGHT_DECAY_HELP)
    ] = "",
    clip_norm: Annotated[
        str, typer.Option("--clip-norm", metavar="NORM", help=CLIP_NORM_HELP)
    ] = "",
    layers: Annotated[
        list[str] | None,
        typer.Option("--layers", metavar="GLOB", help="only layers that match; may be repeated"),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(
            "--until",
            metavar="EPOCH",
            min=1,
            help="first epoch after the override (default: no end)",
        ),
    ] = None,
    apply_at: Annotated[
        str,
        typer.Option(
            "--apply-at",
            metavar="WHEN",
            help="when it starts: next_step, next_epoch or an epoch number",
            autocompletion=complete_words("next_step", "next_epoch"),
        ),
    ] = "next_step",
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="stored with the override")
    ] = "",
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", help="wait until every rank has switched; exit code 1 if they do not"
        ),
    ] = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Override the compression level of layers, the global batch, the local steps, or a setting of
    the optimizer.
    """
    from accordion_service.schemas.format import format_override

    target, chosen = _choose_target(
        compression=level,
        batch=batch,
        local_steps=local_steps,
        lr=lr,
        weight_decay=weight_decay,
        clip_norm=clip_norm,
    )
    request = _build_request(
        target,
        chosen,
        layers=layers or ["*"],
        until=until,
        apply_at=apply_at,
        reason=reason,
    )
    with connect_client(url) as client:
        found = client.find(job)
        made = _send(client, found.id, request)
        if wait:
            _report_wait(found, made)
            made = _wait_until_applied(client, found.id, made)
    if json:
        print_json(made)
    else:
        typer.echo(f"override {format_override(made.model_dump(mode='json'))}")
    if wait and made.state != "APPLIED":
        raise typer.Exit(FAILED)


def _send(client: Client, job_id: str, request: OverrideRequest) -> OverrideView:
    """Request an override; what the service refuses begins with a name of the command line's.

    Raises:
        SettingsError: the service refuses a value.
    """
    from accordion_client import Refused
    from accordion_service.errors import SettingsError

    try:
        return client.override(job_id, request)
    except Refused as error:
        if error.status != HTTPStatus.UNPROCESSABLE_ENTITY:
            raise
        text = str(error).removeprefix("target: ")
        if request.target != "compression":  # --level has the name of the request's field
            text = text.removeprefix("level: ")
        raise SettingsError(text) from None


def hand_back(
    job: JobArgument,
    numbers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NUMBER]...",
            help="override numbers (default: all active)",
            autocompletion=complete_override,
        ),
    ] = None,
    *,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="stored with the overrides")
    ] = "",
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Cancel overrides. Their layers return to the policy, or to another override that is still
    active.

    Older overrides that they superseded are cancelled too.
    """
    from accordion_service.schemas.format import format_override

    with connect_client(url) as client:
        found = client.find(job)
        before = client.overrides(found.id).items
        chosen = _choose_overrides(found, before, numbers or [])
        for override_id in chosen:
            _cancel_override(client, found.id, override_id, reason=reason)
        after = client.overrides(found.id).items
    held = {row.id for row in before if row.state != "CANCELLED"}
    went = [
        row for row in after if row.id in chosen or (row.id in held and row.state == "CANCELLED")
    ]
    rows = [row.model_dump(mode="json") for row in went]
    if json:
        print_json({"items": rows})
        return
    for row in rows:
        typer.echo(f"override {format_override(row)}")
    if not rows:
        typer.echo(f"{found.name} ({found.id}) has no active override")


def _choose_overrides(job: JobView, overrides: list[OverrideView], numbers: list[str]) -> list[str]:
    """Find the ids of the overrides with these numbers; without numbers, of all active ones.

    Raises:
        SettingsError: there is no such override, or it has ended without a cancel.
    """
    from accordion_service.domain.overrides.states import LIVE
    from accordion_service.errors import SettingsError

    known = {f"#{override.number}": override for override in overrides}
    has = f"its overrides are {', '.join(known)}" if known else "it has none"
    names = [f"#{number.removeprefix('#')}" for number in numbers]
    for name in names:
        if name not in known:
            raise SettingsError(f"{job.name} has no override {name}; {has}")
        if known[name].state not in {*LIVE, "CANCELLED"}:
            raise SettingsError(
                f"override {name} is {known[name].state} already: {known[name].message}"
            )
    chosen = [known[name] for name in names] or [row for row in overrides if row.state in LIVE]
    return list(dict.fromkeys(row.id for row in chosen))


def _cancel_override(client: Client, job_id: str, override_id: str, *, reason: str) -> None:
    """Cancel one override; one that ended by itself meanwhile is ignored."""
    from accordion_client import Refused

    try:
        client.cancel_override(job_id, override_id, reason=reason)
    except Refused as error:
        if error.status != HTTPStatus.CONFLICT:
            raise


def _choose_target(**level_by_target: str) -> tuple[str, str]:
    """Return the only target that has a level, and the level.

    Raises:
        SettingsError: none has one, or several.
    """
    from accordion_service.errors import SettingsError

    given = [(target, level) for target, level in level_by_target.items() if level]
    if len(given) != 1:
        raise SettingsError(
            "give one of --level, for the compression of layers, --batch, for the global batch,"
            " --local-steps, --lr, --weight-decay and --clip-norm"
        )
    return given[0]


def parse_level(text: str) -> str | float | dict[str, Any]:
    """Parse a level: a number, options as `name=value[,name=value]` or JSON, or a name.

    Raises:
        SettingsError: an option has no value, or is given twice.
    """
    if (number := parse_whole(text)) is not None:
        return number
    if (value := _parse_number(text)) is not None:
        return value
    if text.startswith("{"):
        return _parse_options(text)
    if "=" not in text:
        return text
    from accordion_client.commands.spec_file import check_unique, set_value
    from accordion_service.errors import SettingsError

    parts = [part.partition("=") for part in text.split(",")]
    if not all(name.strip() and value.strip() for name, _, value in parts):
        raise SettingsError(f"the level is {text!r}; give options a value, as in rank=2")
    check_unique([name.strip() for name, _, _ in parts], f"--level {text}")
    options: dict[str, Any] = {}
    for part in text.split(","):
        set_value(options, part)
    return options


def _parse_number(text: str) -> float | None:
    """Return the number that a text is, from 0 on; None for another text."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value < math.inf and "_" not in text else None


def _parse_options(text: str) -> dict[str, Any]:
    """Parse options in JSON, as in the REST API.

    Raises:
        SettingsError: the text is not JSON, or gives an option twice.
    """
    from accordion_client.commands.spec_file import build_unique_mapping
    from accordion_service.errors import SettingsError

    try:
        options: dict[str, Any] = loads(
            text, object_pairs_hook=partial(build_unique_mapping, name=f"--level {text}")
        )
    except ValueError as error:
        raise SettingsError(
            f"--level is {text!r}, which is not JSON: {error}; write it as rank=2"
        ) from None
    return options


def _build_request(target: str, level: str, **others: Any) -> OverrideRequest:
    """Build the request of an override.

    Raises:
        SettingsError: a value is invalid.
    """
    from pydantic import ValidationError

    from accordion_service.errors import SettingsError
    from accordion_service.schemas.overrides import OverrideRequest

    start = others["apply_at"]
    number = parse_whole(start)
    fields = {
        "target": target,
        "level": parse_level(level),
        **others,
        "apply_at": start if number is None else number,
    }
    try:
        return OverrideRequest.model_validate(fields)
    except ValidationError as error:
        item = error.errors(include_url=False)[0]
        field, message = str(item["loc"][0]), str(item["msg"])
        option = field if field != "level" or target == "compression" else target
        if item["type"] == "value_error":  # begins with the field and its value
            text = message.removeprefix(f"Value error, {field}")
        else:
            text = f" is {fields[field]!r}: {message}"
        raise SettingsError(
            f"--{option.replace('_', '-')}{text}; see 'accordion override --help'"
        ) from None


def _report_wait(job: JobView, made: OverrideView) -> None:
    """Tell what the command waits for; a job without workers applies no override."""
    from accordion_service.domain.jobs.status_table import STATUS_TABLE, Phase
    from accordion_service.domain.jobs.statuses import Status

    message = f"waiting until every rank has applied override #{made.number}"
    if job.status == "PAUSED":
        message += f"; '{job.name}' is paused; continue it with 'accordion resume {job.name}'"
    elif STATUS_TABLE[Status(job.status)].phase in {Phase.HELD, Phase.STARTING}:
        message += f"; '{job.name}' is {job.status} and does not train yet"
    typer.echo(f"accordion: {message}", err=True)


def _wait_until_applied(client: Client, job_id: str, made: OverrideView) -> OverrideView:
    """Wait until the override is applied or has ended, and return it."""
    from accordion_service.domain.overrides.states import UNAPPLIED
    from accordion_service.schemas.history import GapView

    def read_override() -> OverrideView:
        return next(item for item in client.overrides(job_id).items if item.id == made.id)

    for event in client.events(job_id):
        # The events of a long job begin with a gap, in which the one that is waited for may be.
        data = getattr(event, "data", {})
        if isinstance(event, GapView):
            data = read_override().model_dump(mode="json")
        if data.get("id") == made.id and data.get("state") not in UNAPPLIED:
            break
    return read_override()
