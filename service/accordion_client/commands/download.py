"""`download`: the model of a job as a safetensors file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from accordion_client.commands.cli_support import (
    JobArgument,
    JsonOption,
    UrlOption,
    connect_client,
    print_json,
)
from accordion_client.commands.completion import complete_checkpoint
from accordion_client.commands.output_file import choose_output_file
from accordion_service.domain.byte_sizes import format_bytes
from accordion_service.domain.file_names import name_file


def download(
    job: JobArgument,
    *,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="file to write (default: JOB.safetensors)"),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="NAME",
            help="checkpoint; best: the best one by the job's objective (default: the newest)",
            autocompletion=complete_checkpoint,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing file")] = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Download the model of a job from its newest checkpoint; the job may still train.

    Load it with model.load_state_dict(safetensors.torch.load_file(FILE)).
    """
    with connect_client(url) as client:
        found = client.find(job)
        with choose_output_file(to, name_file(found.name, ".safetensors"), force=force) as file:
            name = client.download_model(found.id, file, checkpoint=checkpoint)
    size = file.stat().st_size
    if json:
        print_json({"file": str(file), "bytes": size, "checkpoint": name})
    else:
        typer.echo(f"wrote {file} ({format_bytes(size)}) from checkpoint {name}")
