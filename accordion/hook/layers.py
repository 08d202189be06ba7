"""Names of a module's layers: all, those whose level is decided, and those that DDP exchanges."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from accordion.base.messages import LayerInfo
from accordion.hook.ddp_buckets import as_real

LONG_VECTOR = 1 << 20
"""One-dimensional parameters with at least this many values are compressed (4 MB in fp32).

They are tables of one weight per feature. Shorter ones are biases and scales of norms, which take
few bytes and are sensitive to errors.
"""


def decided_layers(module: torch.nn.Module) -> tuple[LayerInfo, ...]:
    """Return the layers whose level is decided: trainable matrices, tensors, and long vectors.

    The order is the model's. A complex parameter has the shape of its real view (`as_real`).
    """
    return tuple(
        LayerInfo(name=name, shape=tuple(as_real(parameter.detach()).shape))
        for name, parameter in named_layers(module).items()
        if parameter.requires_grad and (parameter.dim() > 1 or parameter.numel() >= LONG_VECTOR)
    )


def reduced_layers(module: DistributedDataParallel) -> dict[str, torch.nn.Parameter]:
    """Return the parameters whose gradients DDP exchanges, in the order in which it counts them."""
    names = {id(parameter): name for name, parameter in named_layers(module.module).items()}
    ddp: Any = module  # DDP's own list, because DDP matches names of ignored parameters differently
    parameters, _ = ddp._build_params_for_reducer()
    return {names[id(parameter)]: parameter for parameter in parameters}


def named_layers(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return all parameters by name, with the same names whether the module is compiled or not."""
    return {
        name.replace("_orig_mod.", ""): parameter for name, parameter in module.named_parameters()
    }
