"""Errors that `attach` and `save_state` raise in a training function."""

from __future__ import annotations

from accordion.base.errors import AccordionError


class AttachError(AccordionError):
    """The run cannot be attached as it is; the message says what to change."""
