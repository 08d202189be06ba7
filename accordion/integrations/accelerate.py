"""Hugging Face Accelerate: one call after `accelerator.prepare`, the training loop stays as it is.

accelerator = Accelerator(gradient_accumulation_steps=2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
session = attach_accelerator(accelerator, config, model=model, optimizer=optimizer)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from accordion.config import Config
from accordion.errors import HookError
from accordion.integrations.common import distributed_module, load_state, save_state
from accordion.session import Session, attach

_SUPPORTED = (
    "NO",
    "MULTI_CPU",
    "MULTI_GPU",
    "MULTI_NPU",
    "MULTI_XPU",
    "MULTI_HPU",
    "MULTI_MLU",
    "MULTI_MUSA",
)
"""Accelerate's distributed types that wrap a model in DistributedDataParallel, or not at all."""


def attach_accelerator(
    accelerator: Any,
    config: Config,
    *,
    model: torch.nn.Module,
    optimizer: Optimizer,
    **options: Any,
) -> Session:
    """Compress the gradients of a model that `accelerator.prepare` returned.

    The session follows `optimizer.step()`. `accelerator.save_state` adds its state to the
    checkpoint's folder as `accordion.pt`, and `load_state` loads it, also with another number of
    processes. Call this before `load_state`. A checkpoint without the file is loaded with a
    warning, and one with it also without Accordion. Every process has to call
    `accelerator.save_state`, as Accelerate requires: under `if accelerator.is_main_process:` it
    blocks forever.

    To report epochs, call `session.end_epoch`; otherwise use windows counted in steps. `options`
    are those of `accordion.attach`.

    Raises:
        HookError: the strategy is not DistributedDataParallel, the model is not prepared, or
            `attach` refuses an argument.
    """
    check_strategy(accelerator)
    if accelerator.project_configuration.save_on_each_node:
        raise HookError(
            "save_on_each_node=True is not supported, because rank 0 saves the state of all"
            " workers; remove it from ProjectConfiguration() and save to a folder that all nodes"
            " reach"
        )
    module = distributed_module(model, way_out="call accelerator.prepare(model, optimizer) first")
    scaler = accelerator.scaler
    session = attach(
        module, config, optimizer=optimizer, scaler=scaler, step="optimizer", **options
    )
    _follow_checkpoints(accelerator, session)
    return session


def _follow_checkpoints(accelerator: Any, session: Session) -> None:
    def save(models: object, weights: object, folder: str) -> None:  # noqa: ARG001
        save_state(session, Path(folder))

    def load(models: object, folder: str) -> None:  # noqa: ARG001
        load_state(session, Path(folder))

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)


def check_strategy(accelerator: Any) -> None:
    """Check that Accelerate replicates the model and averages gradients.

    Raises:
        HookError: it shards the model, as FSDP and DeepSpeed do.
    """
    name = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    if name not in _SUPPORTED:
        raise HookError(
            f"Accelerate trains with {name}, but Accordion compresses the gradients of"
            " DistributedDataParallel only; choose multi-CPU or multi-GPU training without a"
            " plug-in for FSDP, DeepSpeed, Megatron-LM or tensor parallelism"
        )


__all__ = ["attach_accelerator", "check_strategy"]
