"""Parts of a sharded model and its optimizer, as a checkpoint holds them, and back.

In a job whose workers shard the model, `shard-N.pt` has what the workers with part N hold. A plain
model goes through the same functions unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    present = model.state_dict()
    model.load_state_dict({name: _like(present.get(name), value) for name, value in saved.items()})


def load_whole_model(model: nn.Module, saved: Mapping[str, Any]) -> None:
    """Load this worker's part of a model that is given as a whole.

    Raises:
        RuntimeError: it is of another model.
    """
    present = model.state_dict()
    model.load_state_dict(
        {name: _cut_like(present.get(name), value) for name, value in saved.items()}
    )


def load_optimizer(optimizer: Any, saved: Mapping[str, Any]) -> None:
    """Load a saved state, of this worker's part of the parameters if they are sharded."""
    if not isinstance(optimizer, Optimizer):
        optimizer.load_state_dict(saved)
        return
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    states = {
        number: {key: _like(parameters[number], value) for key, value in state.items()}
        for number, state in saved["state"].items()
        if number < len(parameters)
    }
    optimizer.load_state_dict({**saved, "state": {**saved["state"], **states}})


def _is_sharded(value: Any) -> bool:
    return hasattr(value, "device_mesh")


def _like(present: Any, saved: Any) -> Any:
    """Return a part as a part of what is present, if it is one."""
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
    "load_model",
    "load_optimizer",
    "load_whole_model",
    "sharded_dimensions",
]
