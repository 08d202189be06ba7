"""Checks of a module and of the arguments of `attach`, before a hook is registered."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from accordion.config import Config
from accordion.errors import HookError, ReportError


def check_attachable(module: object) -> None:
    """Check the module that `attach` got.

    Raises:
        HookError: it is not supported; the message says what to change.
    """
    if isinstance(getattr(module, "_orig_mod", None), DistributedDataParallel):
        raise HookError(
            "attach() got a compiled module; give it the DistributedDataParallel inside, then"
            " compile"
        )
    if not isinstance(module, torch.nn.Module) or not any(
        p.requires_grad for p in module.parameters()
    ):
        raise HookError(
            f"attach() got a {type(module).__name__}, which has no trainable parameters"
        )
    if not isinstance(module, DistributedDataParallel) and has_peers():
        raise HookError(
            f"attach() got a {type(module).__name__}; call init_process_group() and wrap the model"
            " in DistributedDataParallel first"
        )
    for condition, sentence in _unsupported_features(module):
        if condition:
            raise HookError(sentence)


def has_peers() -> bool:
    """Return whether there are other workers, including those that torchrun has launched."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() > 1
    launched = dist.is_available() and dist.is_torchelastic_launched()
    return launched and os.environ.get("WORLD_SIZE") != "1"


def process_group_of(module: torch.nn.Module) -> dist.ProcessGroup | None:
    """Return the process group of a DistributedDataParallel module, and None for other modules."""
    return module.process_group if isinstance(module, DistributedDataParallel) else None


def unwrap_module(module: torch.nn.Module) -> torch.nn.Module:
    """Return the model inside DistributedDataParallel, or the module itself if not wrapped."""
    return module.module if isinstance(module, DistributedDataParallel) else module


def check_join(module: DistributedDataParallel) -> None:
    """Refuse uneven inputs under `module.join()`, where a worker without batches would take no
    steps.

    Raises:
        HookError: the module is inside `join()` without `throw_on_early_termination`.
    """
    join = getattr(module, "_join_config", None)
    if join is not None and join.enable and not join.throw_on_early_termination:
        raise HookError(
            "DistributedDataParallel.join() with uneven inputs is not supported; give every worker"
            " the same number of batches (as DistributedSampler does), or call"
            " join(throw_on_early_termination=True)"
        )


def check_rate_known(config: Config, *rates: float | None) -> None:
    """Check that the learning rate is known if windows are counted in steps.

    Raises:
        ReportError: neither the rate nor an optimizer was given.
    """
    if config.detector.window.steps and all(rate is None for rate in rates):
        raise ReportError(
            "the learning rate is not known, but windows counted in steps need it to detect a drop;"
            " set session.lr or give attach() the optimizer"
        )


def _unsupported_features(module: torch.nn.Module) -> Iterator[tuple[bool, str]]:
    sparse = [
        f"{name}.weight"
        for name, part in unwrap_module(module).named_modules()
        if isinstance(part, torch.nn.Embedding | torch.nn.EmbeddingBag) and part.sparse
    ]
    yield (
        bool(sparse),
        f"sparse gradients, here of {sparse}, are not supported; create these layers with"
        " sparse=False",
    )
    conjugated = [
        name for name, p in unwrap_module(module).named_parameters() if p.is_conj() or p.is_neg()
    ]
    yield (
        bool(conjugated),
        f"lazily conjugated parameters, here {conjugated}, are not supported; call "
        "resolve_conj() and resolve_neg() on them first",
    )
    yield (
        any(hasattr(parameter, "_in_backward_optimizers") for parameter in module.parameters()),
        "an optimizer that steps inside the backward pass is not supported, because a step with"
        " a gradient that is not finite is skipped on all workers; give attach() an ordinary"
        " optimizer",
    )
    yield (
        getattr(module, "skip_all_reduce_unused_params", False),
        "skip_all_reduce_unused_params=True is not supported; remove it from"
        " DistributedDataParallel()",
    )
    yield (
        getattr(module, "_use_python_reducer", False),
        "torch._dynamo's python_reducer is not supported; set torch._dynamo.config.optimize_ddp"
        " to another mode",
    )
