"""Stratified choice of samples, such as those held out if a data set does not say which; equal for
every job and worker.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_SEED = 0


def stratified_mask(targets: npt.NDArray[np.int64], chosen: int) -> npt.NDArray[np.bool_]:
    """Return a mask of `chosen` samples in which every class keeps its proportion, to within one
    sample.
    """
    generator = np.random.default_rng(_SEED)
    shuffled = generator.permutation(len(targets))
    by_class = shuffled[np.argsort(targets[shuffled], kind="stable")]
    # Every n-th sample, sorted by class, takes the same proportion of each class.
    picked = by_class[(np.arange(chosen) * len(targets)) // chosen]
    mask = np.zeros(len(targets), dtype=bool)
    mask[picked] = True
    return mask
