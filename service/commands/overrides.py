"""`override`, `hand-back`, `resize` and `change`: commands that change a job."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from json import loads
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.commands.batch_actions import (
    BatchOwnerOption,
    DryRunOption,
    JobBatch,
    LabelsOption,
    OptionalJob,
    act_on_batch,
    choose_batch,
)
from service.commands.cli_support import (
    FAILED,
    JobArgument,
    JsonOption,
    UrlOption,
    connect_client,
    print_json,
)
from service.commands.completion import (
    complete_job,
    complete_label,
    complete_override,
    complete_words,
)

if TYPE_CHECKING:
    from service.client import Client
    from service.schemas.jobs import JobView
    from service.schemas.overrides import OverrideRequest, OverrideView

LEVEL_HELP = (
    "compression level: low, high, a number (0 is the lightest), or options such as rank=2 or"
    " method=none"
)
BATCH_HELP = "global batch, instead of --level: low, high or samples per step"
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
    """Override the compression level of layers, or the global batch."""
    from service.errors import SettingsError
    from service.schemas.format import format_override

    if bool(level) == bool(batch):
        raise SettingsError(
            "give either --level, for the compression of layers, or --batch, for the global batch"
        )
    target = "batch" if batch else "compression"
    request = _build_request(
        target,
        level or batch,
        layers=layers or ["*"],
        until=until,
        apply_at=apply_at,
        reason=reason,
    )
    with connect_client(url) as client:
        found = client.find(job)
        made = client.override(found.id, request)
        if wait:
            _report_wait(found, made)
            made = _wait_until_applied(client, found.id, made)
    if json:
        print_json(made)
    else:
        typer.echo(f"override {format_override(made.model_dump(mode='json'))}")
    if wait and made.state != "APPLIED":
        raise typer.Exit(FAILED)


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
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Cancel overrides. Their layers return to the policy, or to another override that is still
    active.

    Older overrides that they superseded are cancelled too.
    """
    from service.schemas.format import format_override

    with connect_client(url) as client:
        found = client.find(job)
        before = client.overrides(found.id).items
        chosen = _choose_overrides(found, before, numbers or [])
        for override_id in chosen:
            _cancel_override(client, found.id, override_id)
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


def resize(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[JOB] MIN MAX",
            help="job id, id prefix or name; fewest workers, for which the job waits; and most"
            " workers",
            autocompletion=complete_job,
        ),
    ],
    *,
    labels: LabelsOption = None,
    owner: BatchOwnerOption = None,
    dry_run: DryRunOption = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Change the number of workers that a job, or all with some labels, may have. It changes at a
    step boundary; no step is lost.

    Example: accordion resize digits 1 4
    """
    from service.schemas.format import format_workers

    *jobs, least, most = _parse_limits(places)
    if len(jobs) > 1:
        raise typer.BadParameter(f"give at most one JOB, not {len(jobs)}")
    chosen = choose_batch(str(jobs[0]) if jobs else None, labels, owner, dry_run=dry_run)
    limits = int(least), int(most)
    with connect_client(url) as client:
        if not isinstance(chosen, str):
            act_on_batch(client, "resize", chosen, dry_run=dry_run, json=json, resize=limits)
            return
        found = client.resize(client.find(chosen).id, *limits)
    if json:
        print_json(found)
    else:
        typer.echo(f"{found.name} ({found.id}) is {found.status}: {format_workers(found)}")


def _parse_limits(places: list[str]) -> list[str]:
    """Check that the last two arguments are numbers of workers.

    Raises:
        BadParameter: they are not.
    """
    limits = places[-2:]
    if len(limits) < 2 or not all(text.isdecimal() and int(text) > 0 for text in limits):
        raise typer.BadParameter(
            f"MIN and MAX are {' '.join(limits)!r}; give two whole numbers, at least 1, as in"
            " 'accordion resize JOB 1 4'"
        )
    return places


def change(
    job: OptionalJob = None,
    *,
    chosen_labels: Annotated[
        list[str] | None,
        typer.Option(
            "--with-label",
            metavar="KEY:VALUE",
            help="in place of JOB, all jobs with this label; may be repeated",
            autocompletion=complete_label,
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="new name")] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority",
            metavar="NUMBER",
            min=0,
            max=100,
            help="new place in the queue; larger starts first",
        ),
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="KEY:VALUE",
            help="set a label, or remove it with KEY: and no value; may be repeated",
            autocompletion=complete_label,
        ),
    ] = None,
    owner: BatchOwnerOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="with --with-label, list the jobs and change nothing")
    ] = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Change the name, labels or priority of a job, a guest run, or an ended job; or labels and
    priority of all jobs with some labels.

    Example: accordion change --with-label sweep:lr --priority 20
    """
    changed = dict(_parse_label(text) for text in labels or [])
    if name is None and priority is None and not changed:
        raise typer.BadParameter("nothing to change; give --name, --priority or --label")
    chosen = choose_batch(job, chosen_labels, owner, dry_run=dry_run, option="--with-label")
    with connect_client(url) as client:
        if isinstance(chosen, JobBatch):
            if name is not None:
                raise typer.BadParameter("--name is for one job; give JOB")
            values = {"labels": changed, "priority": priority}
            act_on_batch(client, "change", chosen, dry_run=dry_run, json=json, change=values)
            return
        found = client.change(client.find(chosen).id, name=name, labels=changed, priority=priority)
    if json:
        print_json(found)
        return
    shown = ", ".join(f"{key}:{value}" for key, value in found.labels.items()) or "no labels"
    typer.echo(f"{found.name} ({found.id}) has priority {found.priority}, {shown}")


def _parse_label(text: str) -> tuple[str, str | None]:
    """Parse `key:value`, or `key:` for a label to remove.

    Raises:
        SettingsError: it has another form.
    """
    from service.errors import SettingsError

    key, colon, value = text.partition(":")
    if not key or not colon:
        raise SettingsError(
            f"--label {text!r} is not of the form key:value, or key: to remove the label"
        )
    return key, value or None


def _choose_overrides(job: JobView, overrides: list[OverrideView], numbers: list[str]) -> list[str]:
    """Find the ids of the overrides with these numbers; without numbers, of all active ones.

    Raises:
        SettingsError: there is no such override, or it has ended without a cancel.
    """
    from service.domain.override_status import LIVE
    from service.errors import SettingsError

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


def _cancel_override(client: Client, job_id: str, override_id: str) -> None:
    """Cancel one override; one that ended by itself meanwhile is ignored."""
    from service.client import Refused

    try:
        client.cancel_override(job_id, override_id)
    except Refused as error:
        if error.status != HTTPStatus.CONFLICT:
            raise


def parse_level(text: str) -> str | int | dict[str, Any]:
    """Parse a level: a number, options as `name=value[,name=value]` or JSON, or a name.

    Raises:
        SettingsError: an option has no value, or is given twice.
    """
    if text.isdecimal():
        return int(text)
    if text.startswith("{"):
        return _parse_options(text)
    if "=" not in text:
        return text
    from service.commands.spec_file import check_unique, set_value

    check_unique([part.partition("=")[0].strip() for part in text.split(",")], f"--level {text}")
    options: dict[str, Any] = {}
    for part in text.split(","):
        set_value(options, part)
    return options


def _parse_options(text: str) -> dict[str, Any]:
    """Parse options in JSON, as in the REST API.

    Raises:
        SettingsError: the text is not JSON, or gives an option twice.
    """
    from service.commands.spec_file import build_unique_mapping
    from service.errors import SettingsError

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

    from service.errors import SettingsError
    from service.schemas.overrides import OverrideRequest

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
        field, message = str(item["loc"][0]), str(item["msg"])
        if item["type"] == "value_error":  # begins with the field and its value
            text = message.removeprefix(f"Value error, {field}")
        else:
            text = f" is {fields[field]!r}: {message}"
        raise SettingsError(
            f"--{field.replace('_', '-')}{text}; see 'accordion override --help'"
        ) from None


def _report_wait(job: JobView, made: OverrideView) -> None:
    """Tell what the command waits for; a job without workers applies no override."""
    from service.domain.job_status import STATUS_TABLE, Phase
    from service.domain.jobs import Status

    message = f"waiting until every rank has applied override #{made.number}"
    if job.status == "PAUSED":
        message += f"; '{job.name}' is paused; continue it with 'accordion resume {job.name}'"
    elif STATUS_TABLE[Status(job.status)].phase in {Phase.HELD, Phase.STARTING}:
        message += f"; '{job.name}' is {job.status} and does not train yet"
    typer.echo(f"accordion: {message}", err=True)


def _wait_until_applied(client: Client, job_id: str, made: OverrideView) -> OverrideView:
    """Wait until the override is applied or has ended, and return it."""
    from service.domain.override_status import UNAPPLIED
    from service.schemas.history import GapView

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
