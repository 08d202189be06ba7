"""Checks of a module and of the arguments of `attach`, before a hook is registered."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from accordion.base.errors import ConfigError, HookError, ReportError
from accordion.config import Config
from accordion.hook.attach_refusal import check_not_refused
from accordion.hook.sharded_module import has_class_of, is_sharded
from accordion.hook.simulated_module import ParallelModule


def check_attachable(module: object, config: object, decider: object) -> None:
    """Check the module and the settings that `attach` got.

    Raises:
        ConfigError: the second argument is not a `Config`.
        HookError: the module is not supported, or the process refuses sessions that decide by
            themselves; the message says what to change.
    """
    if decider is None:
        check_not_refused()
    if not isinstance(config, Config):
        raise ConfigError(
            f"attach() got {config!r} as its second argument; give it an accordion.Config, such as"
            " Config(method='powersgd')"
        )
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
    for condition, sentence in (*_other_wrappers(module), *_unsupported_features(module)):
        if condition:
            raise HookError(sentence)


def inner_module(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside a wrapper that adds precision or device handling, as Fabric's does;
    other modules as they are.
    """
    inner = getattr(module, "_forward_module", None)
    return inner if isinstance(inner, torch.nn.Module) else module


def has_peers() -> bool:
    """Return whether there are other workers, including those that torchrun has launched."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() > 1
    launched = dist.is_available() and dist.is_torchelastic_launched()
    return launched and os.environ.get("WORLD_SIZE") != "1"


def unwrap_module(module: torch.nn.Module) -> torch.nn.Module:
    """Return the model inside DistributedDataParallel, or the module itself if not wrapped."""
    return module.module if isinstance(module, ParallelModule) else module


def device_of(module: torch.nn.Module) -> torch.device:
    """Return the device of the parameters; those without memory, which DDP can ignore, count for
    nothing.
    """
    devices = [parameter.device for parameter in module.parameters()]
    return next((device for device in devices if device.type != "meta"), devices[0])


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


def check_synchronized(module: DistributedDataParallel) -> None:
    """Refuse a step inside `module.no_sync()`.

    Raises:
        HookError: the module is inside `no_sync()`.
    """
    if not module.require_backward_grad_sync:
        raise HookError(
            "the optimizer steps inside no_sync(), where gradients are not exchanged; to accumulate"
            " them, leave no_sync() before the last backward pass of a step. For steps on local"
            " gradients, whose parameters are averaged later (LocalSGD), train without no_sync()"
            " and set local_steps in Config"
        )


def check_rate_known(config: Config, *rates: float | None) -> None:
    """Check that the learning rate is known if windows are counted in steps.

    Raises:
        ReportError: neither the rate nor an optimizer was given.
    """
    if config.detector.window_in_force.steps and all(rate is None for rate in rates):
        raise ReportError(
            "the learning rate is not known, but windows counted in steps need it to detect a drop;"
            " set session.lr or give attach() the optimizer"
        )


def _other_wrappers(module: torch.nn.Module) -> Iterator[tuple[bool, str]]:
    name = type(module).__name__
    yield (
        has_class_of(module, "torch.distributed._composable.replicate"),
        f"attach() got a {name} of replicate(), and replicate() is not supported; wrap the model"
        " in DistributedDataParallel instead",
    )
    sharded = is_sharded(module)
    yield (
        not sharded
        and any(has_class_of(part, "torch.distributed.fsdp") for part in module.modules()),
        "attach() got a model in FullyShardedDataParallel, which is not supported, because its"
        " gradients are scattered over the workers; call fully_shard() on it instead, or wrap it in"
        " DistributedDataParallel",
    )
    yield (
        not sharded and not isinstance(module, ParallelModule) and has_peers(),
        f"attach() got a {name}; call init_process_group() and wrap the model in"
        " DistributedDataParallel first, or shard it by fully_shard()",
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
