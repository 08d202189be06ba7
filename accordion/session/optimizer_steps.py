"""The optimizer's steps in a session: which side takes them, and the GradScaler's part."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, get_args

from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from accordion.base.errors import HookError
from accordion.hook.trained_layers import TrainedLayers, parameters_of
from accordion.session.step_results import StepResult

StepMode = Literal["session", "optimizer", "caller"]
"""Which side takes the optimizer's step.

- `session`: the loop calls `session.step()`, which replaces `optimizer.step()`, and with a scaler
  for `scaler.step(optimizer)` and `scaler.update()`. Without an optimizer the caller takes the
  step, if `StepResult.taken` is true.
- `optimizer`: an unchanged loop, or a framework, calls `optimizer.step()` or
  `scaler.step(optimizer)`, and the session does its part just before. If a gradient was not finite
  on some worker, gradients are removed on all workers, so that the step changes nothing.
- `caller`: as `optimizer`, for loops that call `session.step()` just before the optimizer's step.

A local step ends after `optimizer.step()`, and so does its round. In mode `caller`, its result has
neither the signals nor the switch of the round's end, which `session.on_boundary` gets.

If there are several optimizers, one decision holds for the steps of all; with local steps, each
steps after every backward pass.
"""

Optimizers = Optimizer | Sequence[Optimizer]
"""The optimizers of one module: one, or several that each hold a part of its parameters."""

_UNSCALED_BEFORE = "unscale_() "
"""Beginning of GradScaler's messages for gradients that were unscaled before."""
_HOOKS: weakref.WeakKeyDictionary[Optimizer, list[RemovableHandle]] = weakref.WeakKeyDictionary()
"""Hooks by which the newest session of each optimizer follows or guards its steps."""


class OptimizerSteps:
    """Takes the steps of a module's optimizers, or follows those that the training loop takes.

    Raises:
        HookError: the arguments do not fit each other, or as `TrainedLayers`.
    """

    def __init__(
        self,
        mode: StepMode,
        *,
        module: nn.Module,
        optimizer: Optimizers | None,
        scaler: GradScaler | None,
    ) -> None:
        self.optimizers = list_optimizers(optimizer)
        check_step_mode(mode, self.optimizers, scaler)
        self.mode: StepMode = mode
        self.layers = TrainedLayers(module, self.optimizers)
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._followed = tuple(map(_innermost, self.optimizers))
        """The optimizers whose hooks run in every step."""
        self._parameters = tuple(module.parameters())
        self._is_stepping = False
        """Whether the session is taking the optimizers' steps at the moment."""
        self._covered: set[Optimizer] = set()
        """Optimizers that have not taken the step since the last boundary."""

    def follow_optimizers(
        self,
        pass_boundary: Callable[[], StepResult],
        finish_boundary: Callable[[], None],
        *,
        has_gradients: Callable[[], bool],
    ) -> None:
        """In mode `optimizer`, call `pass_boundary` before the training loop's steps, once for all
        optimizers; in mode `session`, refuse these steps. In the modes in which the loop takes the
        steps, call `finish_boundary` after that of the last optimizer. Hooks of earlier sessions
        are removed.
        """

        def before_step(optimizer: Optimizer, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            _check_closure(*args[1:], named.get("closure"))
            if optimizer not in self._covered or has_gradients():
                self.prepare_loop_step(taken=pass_boundary().taken)

        def after_step(optimizer: Optimizer, *_: object) -> None:
            self._covered.discard(optimizer)
            if not self._covered:
                finish_boundary()

        check = partial(_check_loop_step, weakref.ref(self))
        hooks: dict[StepMode, tuple[Any, Any]] = {
            "session": (check, None),
            "optimizer": (before_step, after_step),
            "caller": (None, after_step),
        }
        for optimizer in self._followed:
            for earlier in _HOOKS.pop(optimizer, []):
                earlier.remove()
            # Other optimizers may have no hooks, and the session only needs their step().
            if self.mode == "optimizer" or isinstance(optimizer, Optimizer):
                _HOOKS[optimizer] = _register_hooks(optimizer, *hooks[self.mode])

    @property
    def sees_step_ends(self) -> bool:
        """Whether the session knows when the optimizers have stepped: it takes their steps, or they
        are torch's own, and none takes the steps of another one around it.
        """
        if self.mode == "session":
            return bool(self.optimizers)
        own = all(isinstance(one, Optimizer) for one in self.optimizers)
        return own and bool(self.optimizers) and self._followed == self.optimizers

    @property
    def step_call(self) -> str:
        """Call of the training loop that ends a step, for messages."""
        return "optimizer.step()" if self.mode == "optimizer" else "session.step()"

    def check_step_ended(self, begun: StepResult | None) -> None:
        """Check that the training loop is not taking a local step, given what has begun of it.

        Raises:
            HookError: it is.
        """
        if begun is not None:
            raise HookError(
                f"{len(self._covered)} of {len(self._followed)} optimizers did not step after the"
                " last backward pass; with local_steps, all optimizers of a module step after each"
                " one, so that a round can end"
            )

    def check_step_call(self) -> None:
        """Check that the training loop may call `session.step()`.

        Raises:
            HookError: the session follows the optimizer's steps by itself.
        """
        if self.mode == "optimizer":
            raise HookError(
                'attach() got step="optimizer", so the session follows optimizer.step() by itself;'
                " remove the call of session.step()"
            )

    def finish_step(self, *, taken: bool) -> None:
        """Take or skip the step in mode `session`; in other modes the training loop does it."""
        if self.mode != "session":
            return
        self._is_stepping = True
        try:
            if self.scaler is not None:
                _step_scaler(self.scaler, self.optimizers if taken else ())
            elif taken:
                for optimizer in self.optimizers:
                    optimizer.step()
        finally:
            self._is_stepping = False

    def check_loop_step(self) -> None:
        """Check, before a step of the optimizer in mode `session`, that the session takes it.

        Steps without a gradient change nothing of the model: `torch.distributed.checkpoint` creates
        the optimizer's state by one.

        Raises:
            HookError: the training loop takes the step.
        """
        if self._is_stepping:
            return
        gradients = [one.grad for one in self._parameters if one.grad is not None]
        if any(bool(one.any()) for one in gradients):
            raise HookError(
                "optimizer.step() was called, but session.step() takes the optimizer's step; call"
                " only session.step(), also in place of scaler.step(optimizer) and scaler.update()"
            )

    def prepare_loop_step(self, *, taken: bool) -> None:
        """Remove the gradients of a skipped step, so that the training loop's step changes nothing.

        Call this just before that step: a later call would remove gradients of the next step.
        """
        if self.mode == "session":
            return
        self._covered = set(self._followed)
        if taken:
            return
        self._record_overflow()
        # Optimizers do not change parameters without a gradient.
        for parameter in self._parameters:
            parameter.grad = None

    def learning_rate(self) -> float | None:
        """Return the learning rate of the first optimizer's first group; None without an optimizer,
        or if it has no rate, such as an Adafactor that chooses its steps.
        """
        rate = self.optimizers[0].param_groups[0].get("lr") if self.optimizers else None
        return None if rate is None else float(rate)

    def read_scale(self) -> float:
        """Return the scale of the loss, 1 without a scaler; waits for the device."""
        return float(self.scaler.get_scale()) if self.scaler is not None else 1.0

    def unscale_gradients(self) -> None:
        """Divide the gradients by the scale, unless the script did so to clip them."""
        if self.scaler is None:
            return
        for optimizer in self.optimizers:
            try:
                self.scaler.unscale_(optimizer)
            except RuntimeError as error:
                if _UNSCALED_BEFORE not in str(error):
                    raise

    def _record_overflow(self) -> None:
        """Make the loop's scaler lower its scale, even if this worker's gradients are finite.

        The NaN that marks a skipped step is lost if no worker used the layer that it is written to,
        because DDP does not change the gradients of such layers.
        """
        if self.scaler is None:
            return
        self.unscale_gradients()
        for optimizer in self.optimizers:
            # torch has no public name for this state.
            checks = self.scaler._per_optimizer_states[id(optimizer)]
            for found_inf in checks["found_inf_per_device"].values():
                found_inf.fill_(1.0)


def _register_hooks(optimizer: Optimizer, before: Any, after: Any) -> list[RemovableHandle]:
    handles = []
    if before is not None:
        handles.append(optimizer.register_step_pre_hook(before))
    if after is not None:
        handles.append(optimizer.register_step_post_hook(after))
    return handles


def _check_closure(*arguments: object) -> None:
    if any(callable(one) for one in arguments):
        raise HookError(
            "optimizer.step(closure) runs the backward pass inside the step, where a session cannot"
            ' follow it; use accordion.attach(..., step="caller") and call session.step() at the'
            " end of the closure"
        )


def _check_loop_step(steps: weakref.ref[OptimizerSteps], *_: object) -> None:
    """Check a step of the training loop; a hook of the optimizer, which may outlive the session."""
    guarded = steps()
    if guarded is not None:
        guarded.check_loop_step()


def list_optimizers(optimizer: Optimizers | None) -> tuple[Optimizer, ...]:
    """Return the optimizers inside wrappers such as Accelerate's, each once.

    Raises:
        HookError: as `as_sequence`.
    """
    return tuple(dict.fromkeys(map(_unwrap_optimizer, as_sequence(optimizer))))


def as_sequence(optimizer: Optimizers | None) -> Sequence[Optimizer]:
    """Return one optimizer or several as a sequence, with their wrappers.

    Raises:
        HookError: it is neither an optimizer nor a sequence of some.
    """
    if optimizer is None:
        return ()
    given = optimizer if isinstance(optimizer, Sequence) else (optimizer,)
    others = [one for one in given if not isinstance(getattr(one, "param_groups", None), list)]
    if others or not given:
        found = f"a {type(others[0]).__name__}" if others else "an empty list"
        raise HookError(
            f"attach() got {found} as its optimizer; give it an optimizer, or a list of all if"
            " there are several, as optimizer=[first, second]"
        )
    return given


def check_step_mode(mode: str, optimizers: Sequence[Optimizer], scaler: GradScaler | None) -> None:
    """Check that the mode is known and has what it needs.

    Raises:
        HookError: the mode is unknown, or it or the scaler needs an optimizer.
    """
    if mode not in get_args(StepMode):
        raise HookError(f"attach() got step={mode!r}; it is one of {', '.join(get_args(StepMode))}")
    if not optimizers and mode == "optimizer":
        raise HookError(
            'attach() got step="optimizer" but no optimizer to follow; give optimizer= too'
        )
    if scaler is not None and not isinstance(scaler, GradScaler):
        raise HookError(f"attach() got scaler={scaler!r}; give the loop's torch.amp.GradScaler")
    if not optimizers and scaler is not None:
        raise HookError("attach() got a scaler but no optimizer; give optimizer= too")


def _unwrap_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer inside wrappers such as Accelerate's, whose step hooks never run."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


def _innermost(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer that takes the steps of one around it, such as SAM or Lookahead."""
    while isinstance(inner := getattr(optimizer, "base_optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


def _step_scaler(scaler: GradScaler, optimizers: Sequence[Optimizer]) -> None:
    """Step optimizers and scaler; without optimizers, only lower the scale."""
    for optimizer in optimizers:
        # scaler.step() refuses an optimizer of which no layer was used.
        if any(parameter.grad is not None for parameter in parameters_of([optimizer])):
            scaler.step(optimizer)
    if optimizers:
        scaler.update()
        return
    # scaler.step() would check this worker's gradients, which may be finite.
    scaler.update(scaler.get_scale() * scaler.get_backoff_factor())
    scaler.load_state_dict({**scaler.state_dict(), "_growth_tracker": 0})


__all__ = [
    "OptimizerSteps",
    "Optimizers",
    "StepMode",
    "as_sequence",
    "check_step_mode",
    "list_optimizers",
]
