"""scikit-learn's handwritten digits: 1,797 images of 8 x 8 pixels that come with the package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import torch

from accordion_workers.data import TensorData
from accordion_workers.data.split import stratified_mask

EVAL_SAMPLES = 360
"""Held-out images, a fifth of all; 1,437 are left to train on."""
_LARGEST_PIXEL = 16.0


def load_digits() -> tuple[TensorData, TensorData]:
    """Return data to train on and to evaluate on: stratified by digit, shuffled, the same split for
    every job.

    Inputs have shape [N, 64] and lie in [0, 1]; targets have shape [N] and are 0-9.

    Raises:
        FileNotFoundError: scikit-learn is not installed, or no longer contains the file.
    """
    table = np.loadtxt(_find_file(), delimiter=",", dtype=np.float32)
    inputs = torch.from_numpy(table[:, :-1] / np.float32(_LARGEST_PIXEL))
    targets = torch.from_numpy(table[:, -1].astype(np.int64))
    held_out = torch.from_numpy(stratified_mask(targets.numpy(), EVAL_SAMPLES))
    return (
        TensorData(inputs[~held_out], targets[~held_out]),
        TensorData(inputs[held_out], targets[held_out]),
    )


def _find_file() -> Path:
    # Importing sklearn takes 3 s in every worker, reading its file 50 ms; a test compares the two.
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise FileNotFoundError(
            "digits-mlp reads scikit-learn's digits, and it is not installed; pip install"
            " scikit-learn"
        )
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
