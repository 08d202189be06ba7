"""Accordion in a Ray Train script: call `attach` after `prepare_model`; the loop stays the same.

model = ray.train.torch.prepare_model(model)
accordion_ray.attach(model, optimizer)
"""

from __future__ import annotations

from accordion_ray.attachment import attach
from accordion_ray.checkpoints import save_state
from accordion_ray.errors import AttachError

__all__ = ["AttachError", "attach", "save_state"]
