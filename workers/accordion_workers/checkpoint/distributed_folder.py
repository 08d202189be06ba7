"""Makes a folder of torch's distributed checkpoint from a safetensors file in it, in a process of
its own, because the caller does not load torch:
`python -m accordion_workers.checkpoint.distributed_folder FILE`.

The folder has the tensors of the model's `state_dict` below `model`, and the file is removed.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from safetensors.torch import load_file
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save


def write_distributed(file: Path) -> None:
    """Replace a safetensors file by the files of a distributed checkpoint, in the same folder.

    Raises:
        OSError: they cannot be written.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of one process, as is meant here
        writer = FileSystemWriter(file.parent)
        save({"model": load_file(file)}, storage_writer=writer, no_dist=True)
    file.unlink()


if __name__ == "__main__":
    write_distributed(Path(sys.argv[1]))


__all__ = ["write_distributed"]
