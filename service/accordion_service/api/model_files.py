"""Model files of jobs: a checkpoint's model as safetensors, exported by a process with torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from accordion_service.errors import ApiError, Conflict, NotFound, Unavailable
from accordion_service.process.temp_folders import private_folder, remove_abandoned_folders

EXPORT_LIMIT_S = 600.0
"""Seconds after which an export is ended."""
_CHUNK_BYTES = 1 << 20
_FOLDER = "accordion-model-"
"""Beginning of the names of temporary folders."""
_MODULE = "accordion_workers.checkpoint.model_export"
_ERRORS: dict[str, type[ApiError]] = {
    "missing": NotFound,
    "unsupported": Conflict,
    "unavailable": Unavailable,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """An open file that has no name any more, so that nothing is left when the process dies."""

    checkpoint: str
    """Name of the checkpoint."""
    size_bytes: int
    file: BinaryIO

    def read_chunks(self) -> Iterator[bytes]:
        """Read the file to its end, and close it."""
        with self.file:
            while chunk := self.file.read(_CHUNK_BYTES):
                yield chunk


def export_model_file(request: Mapping[str, Any], environment: Mapping[str, str]) -> ModelFile:
    """Export the model of a checkpoint; `checkpoint/model_export.py` describes the
    request.

    Raises:
        NotFound: none of the checkpoints is complete.
        Conflict: the model has a tensor that safetensors cannot represent.
        Unavailable: the storage cannot be reached, or the export takes too long or needs more than
            this machine has.
    """
    parent = Path(tempfile.gettempdir())
    remove_abandoned_folders(_FOLDER, parent, time.time())
    with private_folder(_FOLDER, parent) as folder:
        done = _run_export(folder, request, environment)
        answer_file = folder / "answer.json"
        if not answer_file.exists():
            raise Unavailable(_describe_crash(done))
        answer = json.loads(answer_file.read_text())
        if "error" in answer:
            raise _ERRORS[answer["kind"]](answer["error"])
        file = (folder / "model.safetensors").open("rb")
        size = os.fstat(file.fileno()).st_size
        return ModelFile(checkpoint=answer["checkpoint"], size_bytes=size, file=file)


def _run_export(
    folder: Path, request: Mapping[str, Any], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    try:
        # -P: modules in the current folder must not replace installed ones.
        return subprocess.run(  # noqa: S603 - a module of this project
            [sys.executable, "-P", "-m", _MODULE, str(folder)],
            input=json.dumps(request),
            env=dict(environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=EXPORT_LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(
            f"the model could not be exported within {EXPORT_LIMIT_S:g} s; read the checkpoint from"
            " the storage of the job"
        ) from error


def _describe_crash(done: subprocess.CompletedProcess[str]) -> str:
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    advice = ""
    if last.startswith("ModuleNotFoundError"):
        advice = "install torch there, or "
    elif done.returncode == -signal.SIGKILL:
        advice = "give it more memory, or "
    return (
        f"the model cannot be exported on the machine of the service ({last}); {advice}read the"
        " checkpoint from the storage of the job"
    )
