"""What a session does with a GradScaler, which may be None."""

from __future__ import annotations

from contextlib import suppress

from torch.amp import GradScaler
from torch.optim import Optimizer


def read_scale(scaler: GradScaler | None) -> float:
    """Return the scale of the loss; waits for the device."""
    return float(scaler.get_scale()) if scaler is not None else 1.0


def unscale_gradients(scaler: GradScaler | None, optimizer: Optimizer | None) -> None:
    """Divide the optimizer's gradients by the scale, unless the script did so to clip them."""
    if scaler is not None and optimizer is not None:
        with suppress(RuntimeError):  # raised for gradients that were unscaled before
            scaler.unscale_(optimizer)


def take_optimizer_step(scaler: GradScaler | None, optimizer: Optimizer | None, *, taken: bool) -> None:
    """Step optimizer and scaler; without `taken`, only lower the scale."""
    if scaler is None:
        if taken and optimizer is not None:
            optimizer.step()
    elif taken and optimizer is not None:
        scaler.step(optimizer)
        scaler.update()
    else:
        # The scaler looks at gradients here, and those may be finite where another worker's were not.
        scaler.update(scaler.get_scale() * scaler.get_backoff_factor())
        scaler.load_state_dict({**scaler.state_dict(), "_growth_tracker": 0})
