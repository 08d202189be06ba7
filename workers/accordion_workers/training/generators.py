"""Default generators of random numbers: torch's, numpy's and Python's.

A generator that user code makes itself, such as `numpy.random.default_rng()`, is not among them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch


def read_generators(device: str) -> dict[str, Any]:
    """Return the generators' states as tensors and plain values."""
    return {
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state(device) if device.startswith("cuda") else None,
        "python_rng": random.getstate(),
        "numpy_rng": _read_numpy(),
    }


def restore_generators(saved: Mapping[str, Any], device: str) -> None:
    """Restore saved states."""
    torch.set_rng_state(saved["rng"])
    if saved["cuda_rng"] is not None and device.startswith("cuda"):
        torch.cuda.set_rng_state(saved["cuda_rng"], device)
    random.setstate(saved["python_rng"])
    if saved["numpy_rng"] is not None:
        np.random.set_state(
            _with_key(saved["numpy_rng"], lambda key: key.numpy().astype(np.uint32))
        )


def _read_numpy() -> dict[str, Any] | None:
    """Return the state of numpy's default generator; None if the code uses another kind of it."""
    state = np.random.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        return None
    return _with_key(state, lambda key: torch.from_numpy(key.astype(np.int64)))


def _with_key(state: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the state with its array of words as another type."""
    words = state["state"]
    return {**state, "state": {**words, "key": change(words["key"])}}


__all__ = ["read_generators", "restore_generators"]
