"""What `attach` refuses, each with the value and the way out, before anything is registered."""

from __future__ import annotations

import torch
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from accordion.errors import HookError


def check_attachable(module: object, optimizer: Optimizer | None, scaler: GradScaler | None) -> None:
    """Check the arguments of `attach`.

    Raises:
        HookError: they cannot be served; the sentence names the way out.
    """
    if scaler is not None and optimizer is None:
        raise HookError("attach() got a scaler but no optimizer; give optimizer= too")
    if optimizer is not None and not _holds_any(optimizer, module):
        raise HookError(
            "attach() got an optimizer with none of the module's parameters; make it of module.parameters()"
        )
    if isinstance(getattr(module, "_orig_mod", None), DistributedDataParallel):
        raise HookError("attach() got a compiled module; give it the DistributedDataParallel inside, then compile that")
    if not isinstance(module, DistributedDataParallel):
        raise HookError(f"attach() got a {type(module).__name__}; wrap the model in DistributedDataParallel first")


def _holds_any(optimizer: Optimizer, module: object) -> bool:
    if not isinstance(module, torch.nn.Module):
        return True
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return any(id(parameter) in held for parameter in module.parameters())
