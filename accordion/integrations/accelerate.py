"""Hugging Face Accelerate: one call after `accelerator.prepare`, the training loop stays as it is.

accelerator = Accelerator(gradient_accumulation_steps=2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
session = attach_accelerator(accelerator, config, model=model, optimizer=optimizer)
"""

from __future__ import annotations

import re
import weakref
from pathlib import Path
from typing import Any

import torch

from accordion.base.errors import HookError
from accordion.config import Config
from accordion.hook.attach_refusal import check_not_refused
from accordion.integrations.common import distributed_module, load_state, save_state
from accordion.session.optimizer_steps import Optimizers, as_sequence
from accordion.session.saved_states import state_file
from accordion.session.session import Session, attach

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
    optimizer: Optimizers,
    name: str = "",
    **options: Any,
) -> Session:
    """Compress the gradients of a model that `accelerator.prepare` returned.

    The session follows `optimizer.step()`; give a list if the model has several optimizers.
    `accelerator.save_state` adds its state to the checkpoint's folder as `accordion.pt`, and
    `load_state` loads it, also with another number of processes. Call this before `load_state`. A
    checkpoint without the file is loaded with a warning, and one with it also without Accordion.
    Every process has to call `accelerator.save_state`, as Accelerate requires: under
    `if accelerator.is_main_process:` it blocks forever.

    If a script trains several models, give each session a `name`: its file is `accordion-NAME.pt`
    then. A session is saved and loaded until `accelerator.free_memory()` releases its model.

    With local steps, `save_state` ends the round that is running; before an evaluation and before
    `accelerator.save_model`, call `session.finish_round()` on all processes.

    To report epochs, call `session.end_epoch`; otherwise use windows counted in steps. `options`
    are those of `accordion.attach`.

    Raises:
        HookError: the strategy is not DistributedDataParallel, the model is not prepared, another
            session has the name, there are several optimizers and a GradScaler, or `attach` refuses
            an argument.
    """
    check_not_refused()
    check_strategy(accelerator)
    if accelerator.project_configuration.save_on_each_node:
        raise HookError(
            "save_on_each_node=True is not supported, because rank 0 saves the state of all"
            " workers; remove it from ProjectConfiguration() and save to a folder that all nodes"
            " reach"
        )
    module = distributed_module(model, way_out="call accelerator.prepare(model, optimizer) first")
    checkpoints = _CHECKPOINTS.get(accelerator) or _Checkpoints(accelerator)
    checkpoints.check_name(name)
    scaler, optimizers = accelerator.scaler, as_sequence(optimizer)
    if scaler is not None and len(optimizers) > 1:
        raise HookError(
            f"attach_accelerator() got {len(optimizers)} optimizers, but in fp16 Accelerate changes"
            " the scale of the loss after the step of each one, so the gradients of the others"
            " would be unscaled wrongly; use bf16, or one optimizer with groups of parameters"
        )
    session = attach(
        module, config, optimizer=optimizer, scaler=scaler, step="optimizer", **options
    )
    session.name = name
    checkpoints.add(session, model, *optimizers)
    return session


class _Checkpoints:
    """Saves and loads the sessions of one accelerator with its checkpoints."""

    def __init__(self, accelerator: Any) -> None:
        _CHECKPOINTS[accelerator] = self
        self._accelerator = weakref.ref(accelerator)
        self._sessions: dict[str, tuple[weakref.ref[Session], tuple[weakref.ref[Any], ...]]] = {}
        """Sessions by name, each with those of its model and optimizer that were prepared."""
        accelerator.register_save_state_pre_hook(self._save)
        accelerator.register_load_state_pre_hook(self._load)

    def check_name(self, name: str) -> None:
        """Check that a file can have the name, and that no other session has it.

        Raises:
            HookError: the name has other characters, or another session has it.
        """
        if re.fullmatch(r"[A-Za-z0-9_-]*", name) is None:
            raise HookError(
                f"attach_accelerator() got name={name!r}, which becomes part of a file's name; use"
                " letters, digits, hyphens and underscores"
            )
        if any(session.name == name for session in self._current_sessions()):
            raise HookError(
                f"this accelerator has a session with name={name!r} already, and both would save to"
                f" {state_file(name)}; give each model its own name=, or call"
                " accelerator.free_memory() between two trainings"
            )

    def add(self, session: Session, *objects: Any) -> None:
        """Save and load a session until the accelerator releases one of `objects`."""
        prepared = self._list_prepared()
        known = tuple(weakref.ref(one) for one in objects if any(one is o for o in prepared))
        self._sessions[session.name] = weakref.ref(session), known

    def _save(self, models: object, weights: object, folder: str) -> None:  # noqa: ARG002
        for session in self._current_sessions():
            session.finish_round()  # in place, so that the weights have what all workers share
            save_state(session, Path(folder))

    def _load(self, models: object, folder: str) -> None:  # noqa: ARG002
        for session in self._current_sessions():
            load_state(session, Path(folder))

    def _current_sessions(self) -> list[Session]:
        """Return the sessions whose model and optimizer the accelerator still has; end the
        others.
        """
        prepared = self._list_prepared()
        for name, (session, objects) in list(self._sessions.items()):
            followed = session()
            if followed is not None and all(any(one() is o for o in prepared) for one in objects):
                continue
            del self._sessions[name]
            if followed is not None:
                followed.source.remove()
        return [alive for reference, _ in self._sessions.values() if (alive := reference())]

    def _list_prepared(self) -> list[Any]:
        accelerator = self._accelerator()  # Accelerate has no public name for these lists
        return [] if accelerator is None else [*accelerator._models, *accelerator._optimizers]


_CHECKPOINTS: weakref.WeakKeyDictionary[Any, _Checkpoints] = weakref.WeakKeyDictionary()
"""Sessions of each accelerator."""


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
