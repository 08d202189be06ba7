"""`examples`: job files, scripts, dashboards and alert rules, to start from."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Annotated

import typer

from accordion_client.commands.cli_support import JsonOption, print_json

FOLDERS = (
    "jobs",
    "recipes",
    "examples",
    "grafana/dashboards",
    "grafana/provisioning",
    "prometheus",
    "k8s",
    "agents",
)
"""What is written, as in the project's folder `deploy`."""
_PLACE = re.compile(rf"\bdeploy/({'|'.join(FOLDERS)})/")
_WITH_COMMENTS = {".md", ".py", ".sh", ".yaml", ".yml"}


def examples(
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="new or empty directory to write to")
    ],
    *,
    json: JsonOption = False,
) -> None:
    """Write job files, training scripts, Grafana dashboards, Prometheus rules, manifests for
    Kubernetes and a skill for agents to a directory.

    Example: accordion examples accordion-examples
    """
    from accordion_service.errors import SettingsError

    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise SettingsError(f"{directory} exists and is not empty; give a new directory")
        _copy_examples(directory)
    except OSError as error:
        raise SettingsError(
            f"{directory} cannot be written ({error}); give another directory"
        ) from error
    files = sum(path.is_file() for path in directory.rglob("*"))
    if json:
        print_json({"directory": str(directory), "files": files})
    else:
        typer.echo(
            f"wrote {files} files to {directory}; begin with: accordion check"
            f" {directory / 'jobs' / 'digits.yaml'}"
        )


def _copy_examples(directory: Path) -> None:
    source = find_examples()
    for folder in FOLDERS:
        shutil.copytree(
            source / folder,
            directory / folder,
            ignore=shutil.ignore_patterns("__pycache__", "*.py[co]"),
            dirs_exist_ok=True,
        )
    _name_places(directory)


def _name_places(directory: Path) -> None:
    """Let comments name the files where they are now, in place of the project's folder."""
    for file in directory.rglob("*"):
        if file.suffix in _WITH_COMMENTS and file.is_file():
            text = file.read_text()
            file.write_text(_PLACE.sub(lambda found: f"{directory}/{found[1]}/", text))


def find_examples() -> Path:
    """Return where the examples are: in the package, or in a checkout beside it."""
    package = Path(__file__).parents[1]
    installed = package / "examples"
    return installed if installed.is_dir() else package.parents[1] / "deploy"
