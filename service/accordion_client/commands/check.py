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
    import ast
    from collections.abc import Sequence
    from zipfile import ZipFile

    from accordion_workers.records.contract import JobSpec

_FOLDER_OF_CODE = "folder or zip file of your own modules, or the SHA-256 of an upload"
_ADAPTIVE, _LARGE_ADAPTIVE_LR = ("adam", "adamw", "nadam", "radam"), 0.05
"""Optimizers whose step does not shrink with the gradient, and a rate that is large for them."""
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
    for doubt in [*_check_task(job, archive), *find_doubts(job)]:
        typer.echo(f"accordion: {doubt}", err=True)
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


def find_doubts(job: JobSpec) -> list[str]:
    """Return what a job file allows and hardly anybody wants, each with the way out."""
    training = job.training
    last, doubts = training.epochs - 1, []
    late = [epoch for epoch in training.lr_decay.at if epoch > last]
    if late:
        doubts.append(
            f"training.lr_decay.at has {late[0]}, and the last epoch is {last}: the learning rate"
            " does not drop there; lower it, or raise training.epochs"
        )
    points = training.lr_decay.points
    if points and points[-1][0] > training.epochs:
        doubts.append(
            f"training.lr_decay.points ends at epoch {points[-1][0]:g}, and the job at"
            f" {training.epochs}; lower it, or raise training.epochs"
        )
    if training.warmup.epochs > last:
        doubts.append(
            f"training.warmup.epochs is {training.warmup.epochs}, and the job has"
            f" {training.epochs}: the learning rate only rises; lower it"
        )
    optimizer = training.optimizer
    if optimizer.name in _ADAPTIVE and optimizer.lr >= _LARGE_ADAPTIVE_LR:
        doubts.append(
            f"training.optimizer.lr is {optimizer.lr:g} with {optimizer.name}, which is rarely"
            " trained with more than 0.01; lower it, or take sgd"
        )
    if 1 < job.num_shards == job.workers.max:
        doubts.append(
            f"parallelism.shard is {job.num_shards}, as workers.max: all workers hold one model"
            " together, and nothing is exchanged that could be compressed; raise workers.max to"
            f" {2 * job.num_shards} for a second replica"
        )
    return doubts


def _check_task(job: JobSpec, archive: bytes | None) -> list[str]:
    """Check that there is such a task, as far as a laptop can know; return what it cannot know.

    Raises:
        SettingsError: there is none, or the code is no zip file.
    """
    from accordion_service.errors import SettingsError

    if job.task.is_guest:
        raise SettingsError(
            f"task.name is {job.task.name!r}, which is for runs that register themselves: call"
            " accordion_ray.attach in a Ray Train script, and start the script"
        )
    if archive is None:
        return []
    files = _open_code(archive)
    if job.task.is_script:
        _check_script(str(job.task.options["file"]), files.namelist())
    elif job.task.is_user_class:
        return _check_class(job.task.name, files)
    return []


def _open_code(archive: bytes) -> ZipFile:
    """Open the code.

    Raises:
        SettingsError: it is no zip file.
    """
    from io import BytesIO
    from zipfile import BadZipFile, ZipFile

    from accordion_service.errors import SettingsError

    try:
        return ZipFile(BytesIO(archive))
    except BadZipFile as error:
        raise SettingsError(f"code is no zip file of Python modules ({error})") from error


def _check_script(script: str, names: Sequence[str]) -> None:
    """Check that the code has the script.

    Raises:
        SettingsError: it has not.
    """
    from accordion_service.errors import SettingsError

    if script not in names:
        scripts = sorted(name for name in names if name.endswith(".py"))[:5]
        raise SettingsError(
            f"task.options.file is {script!r}, which the code lacks; it holds"
            f" {', '.join(scripts) or 'no .py file'}"
        )


def _check_class(name: str, files: ZipFile) -> list[str]:
    """Check that a module of the code has the class; return a doubt about one that the code lacks,
    which may be a package of the workers.

    Raises:
        SettingsError: it has not, or the module is no Python.
    """
    import ast

    from accordion_service.errors import SettingsError

    module, _, wanted = name.partition(":")
    path = module.replace(".", "/")
    held = [one for one in (f"{path}.py", f"{path}/__init__.py") if one in files.namelist()]
    if not held:
        return [f"task.name is {name!r}, and {path}.py is not in the code; install it on workers"]
    try:
        tree = ast.parse(files.read(held[0]), held[0])
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SettingsError(f"{held[0]} of the code is no Python: {error or 'too deep'}") from None
    classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    if wanted not in classes and not _binds(tree, wanted):
        raise SettingsError(
            f"task.name is {name!r}, and {held[0]} has no class {wanted!r}; it has"
            f" {', '.join(classes[:5]) or 'none'}"
        )
    return []


def _binds(tree: ast.Module, name: str) -> bool:
    """Return whether a module imports or assigns a name, or may: with `import *`."""
    import ast

    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom | ast.Import)
        for alias in node.names
    }
    assigned = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return name in assigned or not imported.isdisjoint({name, "*"})


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
