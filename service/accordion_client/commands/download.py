"""`download`: the model of a job as a safetensors file, or in a folder of another format."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from accordion_client.commands.cli_support import (
    JobArgument,
    JsonOption,
    UrlOption,
    connect_client,
    print_json,
)
from accordion_client.commands.completion import complete_checkpoint
from accordion_client.commands.model_formats import choose_converter
from accordion_client.commands.output_file import choose_output_file, open_folder
from accordion_service.domain.byte_sizes import format_bytes
from accordion_service.domain.file_names import name_file

MODEL_FILE = "model.safetensors"
"""The name by which Transformers finds the tensors."""


def download(
    job: JobArgument,
    *,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="PATH",
            help="file to write (default: JOB.safetensors), or folder of hf (JOB-hf) and dcp",
        ),
    ] = None,
    kind: Annotated[
        Literal["safetensors", "hf", "dcp"],
        typer.Option(
            "--format",
            help="hf: a folder for from_pretrained of Transformers; dcp: a folder for"
            " torch.distributed.checkpoint, which needs the extra ray",
        ),
    ] = "safetensors",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="NAME",
            help="checkpoint; best: the best one by the job's objective (default: the newest)",
            autocompletion=complete_checkpoint,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace existing files")] = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Download the model of a job from its newest checkpoint; the job may still train.

    Load it with model.load_state_dict(safetensors.torch.load_file(FILE)), in the format hf with
    AutoModelForCausalLM.from_pretrained(FOLDER), and in the format dcp with
    torch.distributed.checkpoint.load({"model": model.state_dict()}, checkpoint_id=FOLDER).
    """
    convert = None if kind == "safetensors" else choose_converter(kind)
    with connect_client(url) as client:
        found = client.find(job)
        fetch = partial(client.download_model, found.id, checkpoint=checkpoint)
        if convert is None:
            default = name_file(found.name, ".safetensors")
            with choose_output_file(to, default, force=force) as path:
                name = fetch(path)
            size = path.stat().st_size
        else:
            path = to or Path(name_file(found.name, f"-{kind}"))
            with open_folder(path, force=force) as folder:
                name = fetch(folder.new / MODEL_FILE)
                convert(folder.new / MODEL_FILE)
                size = sum(file.stat().st_size for file in folder.new.iterdir())
    if json:
        key = "file" if convert is None else "folder"
        print_json({key: str(path), "format": kind, "bytes": size, "checkpoint": name})
    else:
        typer.echo(f"wrote {path} ({format_bytes(size)}) from checkpoint {name}")
