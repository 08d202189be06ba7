"""Accordion in a Ray Train script: call `attach` after `prepare_model`; the loop stays the same.

model = ray.train.torch.prepare_model(model)
accordion_ray.attach(model, optimizer)
"""

from __future__ import annotations

try:
    from accordion_ray.attachment import attach
    from accordion_ray.checkpoints import save_is_due, save_state
    from accordion_ray.errors import AttachError
except ModuleNotFoundError as error:
    if (error.name or "").startswith("accordion"):
        raise
    raise ModuleNotFoundError(
        f"accordion_ray needs {error.name}; pip install 'accordion-train[ray]'", name=error.name
    ) from error

__all__ = ["AttachError", "attach", "save_is_due", "save_state"]
