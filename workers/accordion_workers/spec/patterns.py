"""Patterns of texts in a job's specification, which errors of the service describe in words."""

from __future__ import annotations

_NAME = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
DATA_NAME_PATTERN = r"^[a-z]([a-z0-9_]*[a-z0-9])?$"
NODE_LABEL_NAME_PATTERN = rf"^({_NAME}(\.{_NAME})*/)?{_NAME}$"
NODE_SELECTOR_PATTERN = rf"^!?({_NAME}|in\({_NAME}(, ?{_NAME})*\))$"
"""The forms that `node_selectors.py` reads; Ray takes all of them."""
RESOURCE_NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_.:-]*$"
SHA256_PATTERN = r"^[0-9a-f]{64}$"
URL_PATTERN = r"^https?://"
WANDB_NAME_PATTERN = r"^[A-Za-z0-9_.-]+$"
