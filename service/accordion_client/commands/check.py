"""`check` and `schema`: what is wrong with a job file, without a service."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import typer

from accordion_client.commands.cli_support import (
    ChangesOption,
    JsonOption,
    SpecArgument,
    print_json,
)
from accordion_client.commands.local_specs import parse_job

if TYPE_CHECKING:
    from accordion_workers.records.contract import JobSpec

_FOLDER_OF_CODE = "folder or zip file of your own modules, or the SHA-256 of an upload"
_ID = re.compile(r"[0-9a-f-]{1,36}")
_UNKNOWN_JOB = "0"
"""Stands for the ID of a job that only the service can look up by its name."""


def check(file: SpecArgument, *, changes: ChangesOption = None, json: JsonOption = False) -> None:
    """Check a job file without a service: its keys, its values, and whether they go together.

    What only the service knows is checked by 'accordion submit FILE --dry-run'.
    """
    from accordion_client.commands.pack import pack_code
    from accordion_client.commands.spec_file import read_spec

    spec = read_spec(file, changes or [])
    archive = pack_code(spec, file)
    job = parse_job(_replace_names(spec, archive))
    if archive is not None and job.task.name == "script":
        _check_script(str(job.task.options["file"]), archive)
    if json:
        print_json(job)
    else:
        typer.echo(f"{file} is a job: {_describe(job)}")


def schema() -> None:
    """Print the JSON Schema of job files, for editors.

    Example: accordion schema > accordion.schema.json, and as the first line of a job file
    '# yaml-language-server: $schema=accordion.schema.json'
    """
    import json

    typer.echo(json.dumps(build_schema(), indent=2))


def build_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a job file: a spec whose code may be a folder."""
    from accordion_workers.records.contract import JobSpec

    built = JobSpec.model_json_schema()
    code = built["properties"]["code"]
    description = f"{code.get('description', '')} Here: {_FOLDER_OF_CODE}.".strip()
    built["properties"]["code"] = {
        "anyOf": [{"type": "string"}, {"type": "null"}],
        "default": None,
        "description": description,
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **built}


def _check_script(script: str, archive: bytes) -> None:
    """Check that the code has the script.

    Raises:
        SettingsError: it has not, or is no zip file.
    """
    from io import BytesIO
    from zipfile import BadZipFile, ZipFile

    from accordion_service.errors import SettingsError

    try:
        names = ZipFile(BytesIO(archive)).namelist()
    except BadZipFile as error:
        raise SettingsError(f"code is no zip file of Python modules ({error})") from error
    if script not in names:
        scripts = sorted(name for name in names if name.endswith(".py"))[:5]
        raise SettingsError(
            f"task.options.file is {script!r}, which the code lacks; it holds"
            f" {', '.join(scripts) or 'no .py file'}"
        )


def _replace_names(spec: dict[str, Any], archive: bytes | None) -> dict[str, Any]:
    """Return a spec with what stands for names that a submission replaces."""
    from hashlib import sha256

    spec = dict(spec)
    if archive is not None:
        spec["code"] = sha256(archive).hexdigest()
    section = spec.get("warm_start")
    if isinstance(section, dict):
        reference = section.get("job")
        if isinstance(reference, str) and reference and not _ID.fullmatch(reference):
            spec["warm_start"] = {**section, "job": _UNKNOWN_JOB}
    return spec


def _describe(job: JobSpec) -> str:
    workers, training = job.workers, job.training
    number = f"{workers.min} to {workers.max}" if workers.min < workers.max else f"{workers.max}"
    plural = "s" if workers.max > 1 else ""
    return (
        f"task {job.task.name}, {number} worker{plural}, {training.epochs} epochs,"
        f" {job.compression.method} by {job.policy.name}"
    )
