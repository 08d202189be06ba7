"""The optimizer's steps in a session: which side takes them, and the GradScaler's part."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, get_args

from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from accordion.errors import HookError
from accordion.step_results import StepResult

StepMode = Literal["session", "optimizer", "caller"]
"""Which side takes the optimizer's step.

- `session`: the loop calls `session.step()`, which replaces `optimizer.step()`, and with a scaler
  for `scaler.step(optimizer)` and `scaler.update()`. Without an optimizer the caller takes the
  step, if `StepResult.taken` is true.
- `optimizer`: an unchanged loop, or a framework, calls `optimizer.step()` or
  `scaler.step(optimizer)`, and the session does its part just before. If a gradient was not finite
  on some worker, gradients are removed on all workers, so that the step changes nothing.
- `caller`: as `optimizer`, for loops that call `session.step()` just before the optimizer's step.
"""

_UNSCALED_BEFORE = "unscale_() has already been called"
"""Part of GradScaler's message for gradients that were unscaled before."""
_HOOKS: weakref.WeakKeyDictionary[Optimizer, RemovableHandle] = weakref.WeakKeyDictionary()
"""Hook by which the newest session of each optimizer follows or guards its steps."""


class OptimizerSteps:
    """Takes the steps of an optimizer, or follows those that the training loop takes."""

    def __init__(
        self,
        mode: StepMode,
        *,
        optimizer: Optimizer | None,
        scaler: GradScaler | None,
        parameters: Iterable[Tensor],
    ) -> None:
        check_step_mode(mode, optimizer, scaler)
        self.mode: StepMode = mode
        self.optimizer = None if optimizer is None else _unwrap_optimizer(optimizer)
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._followed = None if self.optimizer is None else _innermost(self.optimizer)
        """The optimizer whose hooks run in every step."""
        self._parameters = tuple(parameters)
        self._is_stepping = False
        """Whether the session is taking the optimizer's step at the moment."""

    def follow_optimizer(self, pass_boundary: Callable[[], StepResult]) -> None:
        """In mode `optimizer`, call `pass_boundary` before each step of the training loop; in mode
        `session`, refuse these steps. The hook of an earlier session of the optimizer is removed.
        """
        if self._followed is None:
            return
        if (earlier := _HOOKS.pop(self._followed, None)) is not None:
            earlier.remove()
        if self.mode == "caller":
            return
        if self.mode == "session":
            # Other optimizers may have no hooks, and the session only needs their step().
            if isinstance(self._followed, Optimizer):
                guard = partial(_check_loop_step, weakref.ref(self))
                _HOOKS[self._followed] = self._followed.register_step_pre_hook(guard)
            return

        def before_step(_: Optimizer, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            if any(callable(one) for one in (*args[1:], named.get("closure"))):
                raise HookError(
                    "optimizer.step(closure) runs the backward pass inside the step, where a"
                    ' session cannot follow it; use accordion.attach(..., step="caller") and call'
                    " session.step() at the end of the closure"
                )
            self.prepare_loop_step(taken=pass_boundary().taken)

        _HOOKS[self._followed] = self._followed.register_step_pre_hook(before_step)

    @property
    def step_call(self) -> str:
        """Call of the training loop that ends a step, for messages."""
        return "optimizer.step()" if self.mode == "optimizer" else "session.step()"

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
                _step_scaler(self.scaler, self.optimizer if taken else None)
            elif taken and self.optimizer is not None:
                self.optimizer.step()
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
        if taken or self.mode == "session":
            return
        self._record_overflow()
        # Optimizers do not change parameters without a gradient.
        for parameter in self._parameters:
            parameter.grad = None

    def learning_rate(self) -> float | None:
        """Return the learning rate of the optimizer's first group; None without an optimizer, or if
        it has no rate, such as an Adafactor that chooses its steps.
        """
        rate = None if self.optimizer is None else self.optimizer.param_groups[0].get("lr")
        return None if rate is None else float(rate)

    def read_scale(self) -> float:
        """Return the scale of the loss, 1 without a scaler; waits for the device."""
        return float(self.scaler.get_scale()) if self.scaler is not None else 1.0

    def unscale_gradients(self) -> None:
        """Divide the optimizer's gradients by the scale, unless the script did so to clip them."""
        if self.scaler is not None and self.optimizer is not None:
            try:
                self.scaler.unscale_(self.optimizer)
            except RuntimeError as error:
                if _UNSCALED_BEFORE not in str(error):
                    raise

    def _record_overflow(self) -> None:
        """Make the loop's scaler lower its scale, even if this worker's gradients are finite.

        The NaN that marks a skipped step is lost if no worker used the layer that it is written to,
        because DDP does not change the gradients of such layers.
        """
        if self.scaler is None or self.optimizer is None:
            return
        self.unscale_gradients()
        # torch has no public name for this state.
        checks = self.scaler._per_optimizer_states[id(self.optimizer)]
        for found_inf in checks["found_inf_per_device"].values():
            found_inf.fill_(1.0)


def _check_loop_step(steps: weakref.ref[OptimizerSteps], *_: object) -> None:
    """Check a step of the training loop; a hook of the optimizer, which may outlive the session."""
    guarded = steps()
    if guarded is not None:
        guarded.check_loop_step()


def check_step_mode(mode: str, optimizer: Optimizer | None, scaler: GradScaler | None) -> None:
    """Check that the mode is known and has what it needs.

    Raises:
        HookError: the mode is unknown, or it or the scaler needs an optimizer.
    """
    if mode not in get_args(StepMode):
        raise HookError(f"attach() got step={mode!r}; it is one of {', '.join(get_args(StepMode))}")
    if optimizer is None and mode == "optimizer":
        raise HookError(
            'attach() got step="optimizer" but no optimizer to follow; give optimizer= too'
        )
    if optimizer is None and scaler is not None:
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


def _step_scaler(scaler: GradScaler, optimizer: Optimizer | None) -> None:
    """Step optimizer and scaler; without an optimizer, only lower the scale."""
    if optimizer is not None:
        scaler.step(optimizer)
        scaler.update()
        return
    # scaler.step() would check this worker's gradients, which may be finite.
    scaler.update(scaler.get_scale() * scaler.get_backoff_factor())
    scaler.load_state_dict({**scaler.state_dict(), "_growth_tracker": 0})


__all__ = ["OptimizerSteps", "StepMode", "check_step_mode"]
