"""`submit` and `clone`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from accordion_client.commands.cli_support import (
    ChangesOption,
    JobArgument,
    JsonOption,
    SpecArgument,
    UrlOption,
    connect_client,
    find_to_read,
    print_json,
    print_line,
)
from accordion_client.commands.model_source import resolve_warm_start

if TYPE_CHECKING:
    from accordion_service.schemas.jobs import JobView
    from accordion_service.schemas.specs import DryRun


SpecDryRunOption = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="store nothing; show the complete spec, and whether the job would wait",
    ),
]


def submit(
    file: SpecArgument,
    *,
    changes: ChangesOption = None,
    code: Annotated[
        str,
        typer.Option(
            "--code",
            metavar="DIRECTORY",
            help="folder or zip file of your own modules (default: `code` in the spec)",
        ),
    ] = "",
    follow_: Annotated[
        bool, typer.Option("--follow", "-f", help="watch the job until it ends")
    ] = False,
    dry_run: SpecDryRunOption = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Submit a job.

    Example: accordion submit deploy/jobs/digits.yaml --set training.epochs=5
    """
    from uuid import uuid4

    from accordion_client.commands.pack import pack_code
    from accordion_client.commands.spec_file import read_spec
    from accordion_client.commands.watch import check_may_watch, follow_to_exit_code

    spec = read_spec(file, changes or [])
    archive = pack_code(spec, file, code)
    with connect_client(url) as client:
        if follow_:
            check_may_watch(client)
        resolve_warm_start(client, spec)
        if archive is not None:
            spec["code"] = client.upload(archive).sha256
        if dry_run:
            _show_dry_run(client.dry_run(spec), json=json)
            return
        forecast = None if json else client.dry_run(spec)
        job = client.submit(spec, idempotency_key=str(uuid4()))
        _tell_wait(job, forecast)
        if json:
            print_json(job, indent=None if follow_ else 2)
        else:
            typer.echo(
                f"{job.name} is {job.status} as {job.id}; watch it with: accordion watch {job.id}"
            )
        if follow_:
            raise typer.Exit(follow_to_exit_code(client, job, json=json))


def clone(
    job: JobArgument,
    *,
    changes: ChangesOption = None,
    follow_: Annotated[
        bool, typer.Option("--follow", "-f", help="watch the new job until it ends")
    ] = False,
    dry_run: SpecDryRunOption = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Submit a new job with the spec of another one. It starts from the beginning.

    Example: accordion clone digits --set training.epochs=5 --set compression=null
    """
    from uuid import uuid4

    from accordion_client.commands.spec_file import build_patch
    from accordion_client.commands.watch import check_may_watch, follow_to_exit_code

    build_patch({}, changes or [])  # so that a malformed change is told without a service
    with connect_client(url) as client:
        if follow_:
            check_may_watch(client)
        known = find_to_read(client, job)
        patch = build_patch({**known.spec, "labels": known.labels}, changes or [])
        resolve_warm_start(client, patch)
        if dry_run:
            _show_dry_run(client.dry_run_clone(known.id, patch), json=json)
            return
        forecast = None if json else client.dry_run_clone(known.id, patch)
        made = client.clone(known.id, patch, idempotency_key=str(uuid4()))
        _tell_wait(made, forecast)
        if json:
            print_json(made, indent=None if follow_ else 2)
        else:
            typer.echo(f"{made.name} is {made.status} as {made.id}, a clone of {known.id}")
        if follow_:
            raise typer.Exit(follow_to_exit_code(client, made, json=json))


def _tell_wait(job: JobView, forecast: DryRun | None) -> None:
    if forecast is not None and forecast.would_wait:
        print_line(f"accordion: {job.name} waits: {forecast.message}", err=True)


def _show_dry_run(answer: DryRun, *, json: bool) -> None:
    import yaml

    if json:
        print_json(answer)
        return
    typer.echo(yaml.safe_dump(answer.spec.model_dump(mode="json"), sort_keys=False).rstrip())
    verdict = "would wait" if answer.would_wait else "would start at once"
    typer.echo(f"# {verdict}{f': {answer.message}' if answer.message else ''}")
