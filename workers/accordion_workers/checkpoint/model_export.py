"""Writes the model of a checkpoint as a safetensors file, in a process of its own, because the
caller does not load torch: `python -m accordion_workers.checkpoint.model_export FOLDER`.

Reads a request as JSON from standard input: `job_id`, `url` (`checkpoint.storage` of the spec, or
null), `directory` (the job's checkpoints without a URL), `names` (checkpoints, the preferred one
first) and `order` (which one to read if the job has removed these, or null). Writes
`model.safetensors` and `answer.json` into FOLDER. The answer has `checkpoint`, or `error`, a
sentence for users, and `kind`: `missing`, `unsupported` (a tensor that safetensors cannot
represent) or `unavailable` (the storage or the disk).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from accordion_workers.checkpoint.checkpoint_files import Manifest
from accordion_workers.checkpoint.saved_model import SavedModel, read_model
from accordion_workers.checkpoint.storage import Storage, open_storage
from accordion_workers.common.errors import CheckpointError
from accordion_workers.spec.warm_start import Order

MODEL_FILE = "model.safetensors"
ANSWER_FILE = "answer.json"


class UnsupportedTensorError(Exception):
    """A model has a tensor that safetensors cannot represent."""


def export_model(
    storage: Storage, names: Sequence[str], *, job_id: str, file: Path, order: Order | None = None
) -> Manifest:
    """Write the model of the first of these checkpoints that is complete; return its manifest.

    `order` is that of `read_model`.

    The file has all tensors of the model's `state_dict`, on the CPU; tensors that share memory are
    written several times. Its metadata has `job_id`, `checkpoint`, `epoch` and `step`, and of a
    model of Transformers the text of `config.json`. Takes up to twice the memory of the model and
    its optimizer.

    Raises:
        CheckpointError: none is complete.
        UnsupportedTensorError: a tensor is sparse or quantized.
        OSError: the storage cannot be reached, or the file cannot be written.
    """
    model = read_model(storage, names, job_id=job_id, order=order)
    _write_tensors(file, model)
    return model.manifest


def _write_tensors(file: Path, model: SavedModel) -> None:
    tensors, written, manifest = {}, set(), model.manifest
    for name, value in model.state.items():
        if isinstance(value, Tensor):
            _check_tensor(name, value, manifest)
            memory = value.untyped_storage().data_ptr()
            # safetensors refuses tensors that share memory, such as tied weights.
            tensors[name] = value.clone() if memory in written else value
            tensors[name] = tensors[name].detach().contiguous()
            written.add(memory)
    metadata = {
        "format": "pt",
        "job_id": manifest.job_id,
        "checkpoint": manifest.name,
        "epoch": str(manifest.epoch),
        "step": str(manifest.step),
        **model.configs,
    }
    try:
        save_file(tensors, file, metadata=metadata)
    except SafetensorError as error:
        raise OSError(
            f"the model cannot be written to the temporary directory of the service ({error}); free"
            " some space there, or choose another one with TMPDIR"
        ) from error


def _check_tensor(name: str, value: Tensor, manifest: Manifest) -> None:
    if value.layout != torch.strided or value.is_quantized:
        raise UnsupportedTensorError(
            f"{name} of checkpoint {manifest.name} is a sparse or quantized tensor, which"
            " safetensors cannot represent; read the checkpoint from the storage of the job"
        )


def main(folder: Path, request: Mapping[str, Any]) -> None:
    """Answer a request; see the module."""
    try:
        storage = open_storage(
            request["url"], job_id=request["job_id"], directory=Path(request["directory"])
        )
        manifest = export_model(
            storage,
            request["names"],
            job_id=request["job_id"],
            file=folder / MODEL_FILE,
            order=request["order"],
        )
        answer: dict[str, Any] = {"checkpoint": manifest.name}
    except CheckpointError as error:
        answer = {"error": str(error), "kind": "missing"}
    except UnsupportedTensorError as error:
        answer = {"error": str(error), "kind": "unsupported"}
    except OSError as error:
        answer = {"error": str(error), "kind": "unavailable"}
    (folder / ANSWER_FILE).write_text(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.load(sys.stdin))


__all__ = ["ANSWER_FILE", "MODEL_FILE", "export_model", "main"]
