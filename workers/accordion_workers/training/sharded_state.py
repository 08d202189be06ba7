"""Parts of a sharded model and its optimizer, as a checkpoint holds them, and back.

In a job whose workers shard the model, `shard-N.pt` has what the workers with part N hold. A plain
model goes through the same functions unchanged.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from accordion.hook.sharded_module import local_part


def sharded_dimensions(model: nn.Module) -> dict[str, int]:
    """Return along which dimension each sharded entry of the model's `state_dict` is cut."""
    return {
        name: value.placements[0].dim
        for name, value in model.state_dict().items()
        if _is_sharded(value)
    }


def load_model(model: nn.Module, saved: Mapping[str, Any]) -> None:
    """Load this worker's part of a saved model.

    Raises:
        RuntimeError: it is of another model.
    """
    model.load_state_dict(_like(model.state_dict(), saved))


def load_whole_model(model: nn.Module, saved: Mapping[str, Any]) -> None:
    """Load this worker's part of a model that is given as a whole.

    Raises:
        RuntimeError: it is of another model.
    """
    present = model.state_dict()
    parts: Any = copy.copy(saved)
    parts.update((name, _cut_like(present.get(name), value)) for name, value in saved.items())
    model.load_state_dict(parts)


def load_kept(kept: Any, saved: Any) -> None:
    """Load the saved state of an optimizer, a module or another object, with this worker's parts of
    what is sharded.
    """
    if not isinstance(kept, Optimizer):
        kept.load_state_dict(_like(kept.state_dict(), saved))
        return
    # Its state is empty before the first step, so its parameters tell what is sharded.
    parameters = [one for group in kept.param_groups for one in group["params"]]
    states = {
        number: {key: _like(parameters[number], value) for key, value in state.items()}
        for number, state in saved["state"].items()
        if number < len(parameters)
    }
    kept.load_state_dict({**saved, "state": {**saved["state"], **states}})


def _is_sharded(value: Any) -> bool:
    return hasattr(value, "device_mesh")


def _like(present: Any, saved: Any) -> Any:
    """Return a state with parts as those of what is present, where that is sharded."""
    if isinstance(present, dict) and isinstance(saved, dict):
        # a copy keeps what is attached to it, such as the versions of a model's modules.
        copied = copy.copy(saved)
        copied.update((key, _like(present.get(key), value)) for key, value in saved.items())
        return copied
    if isinstance(present, list | tuple) and isinstance(saved, list | tuple):
        return type(saved)(_like(*pair) for pair in zip_longest(present[: len(saved)], saved))
    if not _is_sharded(present) or not isinstance(saved, Tensor):
        return saved
    if saved.shape != local_part(present).shape:
        return saved
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        saved.to(present.device),
        present.device_mesh,
        present.placements,
        run_check=False,
        shape=present.shape,
        stride=present.stride(),
    )


def _cut_like(present: Any, whole: Any) -> Any:
    """Return a worker's part of a whole tensor, if it is sharded here."""
    if not _is_sharded(present) or whole.shape != present.shape:
        return whole
    from torch.distributed.tensor import distribute_tensor

    # Every worker has the whole tensor, so none sends it.
    return distribute_tensor(
        whole.to(present.device), present.device_mesh, present.placements, src_data_rank=None
    )


__all__ = [
    "load_kept",
    "load_model",
    "load_whole_model",
    "sharded_dimensions",
]
