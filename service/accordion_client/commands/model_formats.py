"""A downloaded safetensors file as a folder that Transformers, or torch's distributed checkpoint,
reads.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import typer

from accordion_client.commands.missing_packages import check_packages

_CONFIGS = ("config.json", "generation_config.json")
"""Entries of the metadata that are files of a model of Transformers."""
_DISTRIBUTED = "accordion_workers.checkpoint.distributed_folder"


def choose_converter(kind: str) -> Callable[[Path], None]:
    """Return what turns a safetensors file into a folder of this format, in the file's folder.

    Raises:
        SettingsError: the format needs torch, which is not installed.
    """
    if kind == "hf":
        return _add_configs
    check_packages("a folder of the format dcp", "torch", "safetensors", extra="ray")
    return _write_distributed


def _write_distributed(file: Path) -> None:
    """Write the files of a distributed checkpoint in place of the tensors.

    Raises:
        SettingsError: the process that does it failed.
    """
    from accordion_service.errors import SettingsError

    # -P: modules in the current folder must not replace installed ones.
    command = [sys.executable, "-P", "-m", _DISTRIBUTED, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise SettingsError(
            f"the model was not written as a distributed checkpoint ({last}); without --format dcp"
            " it is downloaded as one file"
        )


def _add_configs(file: Path) -> None:
    """Write the files that `from_pretrained` reads beside the tensors.

    Raises:
        BadParameter: the checkpoint has no configuration of Transformers.
    """
    metadata = read_metadata(file)
    if "config.json" not in metadata:
        raise typer.BadParameter(
            "the model of this job is no PreTrainedModel of Transformers, has adapters, or was"
            " saved without its configuration; leave out --format hf, and load the tensors into the"
            " model that the job built"
        )
    for name in _CONFIGS:
        if name in metadata:
            (file.parent / name).write_text(metadata[name], encoding="utf-8")


def read_metadata(file: Path) -> dict[str, str]:
    """Return the metadata of a safetensors file, without the package of that name."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        metadata: dict[str, str] = json.loads(opened.read(size)).get("__metadata__", {})
    return metadata
