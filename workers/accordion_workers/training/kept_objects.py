"""Objects of a script, such as a learning rate scheduler, that are saved with its optimizer."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch.optim import Optimizer

from accordion.session.optimizer_steps import Optimizers, as_sequence
from accordion_workers.common.errors import CodeError
from accordion_workers.training.sharded_state import load_kept
from accordion_workers.training.snapshot import map_tensors

_UNSUPPORTED = re.compile(r"GLOBAL ([\w.]+)")
"""Part of torch's message that names a type which only code could rebuild."""


class Stateful(Protocol):
    """An object that can be saved with a checkpoint."""

    def state_dict(self) -> Any:
        """Return tensors and plain values."""

    def load_state_dict(self, state: Any) -> Any:
        """Restore what `state_dict` returned."""


@dataclass(frozen=True, slots=True)
class OptimizerWithExtras:
    """An optimizer whose saved state includes other objects, such as a learning rate scheduler or
    the other optimizers of its model.
    """

    optimizer: Optimizer
    others: Mapping[str, Stateful]
    more: tuple[Optimizer, ...] = ()
    """Optimizers of the model among `others`."""

    @classmethod
    def of(cls, optimizers: Optimizers, kept: Mapping[str, Stateful]) -> Optimizer:
        """Return a stand-in for the first optimizer that saves and loads all others with it.

        Raises:
            CodeError: one of them cannot be saved and loaded back.
        """
        first, *others = as_sequence(optimizers)
        named = {f"optimizer {number}": one for number, one in enumerate(others, start=2)}
        for name, other in kept.items():
            if not (hasattr(other, "state_dict") and hasattr(other, "load_state_dict")):
                raise CodeError(
                    f"session.attach({name}=...) got a {type(other).__name__}, which has no"
                    " state_dict() and load_state_dict(); give an object that has both"
                )
        whole = cls(first, {**named, **kept}, tuple(others))
        whole.state_dict()
        return cast("Optimizer", whole)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of all optimizers of the model, those of the first one first."""
        return [group for one in (self.optimizer, *self.more) for group in one.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the optimizer and of the other objects.

        Raises:
            CodeError: a checkpoint could not load one of them back.
        """
        others = {name: other.state_dict() for name, other in self.others.items()}
        state = self.optimizer.state_dict()
        for name, value in {"optimizer": state, **others}.items():
            _check_loadable(name, value)
        return {"optimizer": state, "others": others}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state.

        Raises:
            CodeError: the state holds other objects than the script keeps now.
        """
        if state["others"].keys() != self.others.keys():
            saved, here = (
                ", ".join(sorted(names)) or "nothing" for names in (state["others"], self.others)
            )
            raise CodeError(
                f"the checkpoint keeps {saved} and session.attach() {here}; give it the same names"
            )
        load_kept(self.optimizer, state["optimizer"])
        for name, other in self.others.items():
            load_kept(other, state["others"][name])


def _check_loadable(name: str, state: Any) -> None:
    """Write a state and read it back as checkpoints do, without the contents of its tensors.

    Raises:
        CodeError: it cannot be written, or not be read back.
    """
    file = io.BytesIO()
    try:
        torch.save(map_tensors(state, lambda _: None), file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except (pickle.PickleError, AttributeError, TypeError) as error:
        found = _UNSUPPORTED.search(str(error))
        why = f"it holds a {found[1]}" if found else f"{type(error).__name__}: {error}"
        raise CodeError(
            f"the state of {name} that session.attach() got cannot be loaded back from a"
            f" checkpoint: {why}; let its state_dict() return tensors, numbers, texts, and lists"
            " and dicts of them"
        ) from error


__all__ = ["OptimizerWithExtras", "Stateful"]
