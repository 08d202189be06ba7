"""Labelled 32 x 32 images: how they are held in memory, normalised and augmented.

Shape letters: N images, C = 3 channels, H = W = 32 pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from accordion_workers.data.split import stratified_mask

SIDE = 32
PADDING = 4
"""Black pixels around an image before a random crop removes them, as in the recipes for CIFAR."""
_LARGEST_PIXEL = 255.0


@dataclass(frozen=True, slots=True)
class Images:
    """Images and their classes."""

    pixels: Tensor
    """uint8, [N, 3, 32, 32]."""
    targets: Tensor
    """int64, [N], from 0."""

    def __len__(self) -> int:
        return len(self.targets)

    def where(self, mask: Tensor) -> Self:
        """Return the images of the mask."""
        return type(self)(self.pixels[mask], self.targets[mask])

    def at_most(self, samples: int) -> Self:
        """Return at most this many images, with classes in proportion; all of them for 0."""
        if samples in (0, len(self)) or samples > len(self):
            return self
        return self.where(torch.from_numpy(stratified_mask(self.targets.numpy(), samples)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalization:
    """Normalises each channel to mean 0 and deviation 1 over the training images."""

    mean: Tensor
    """float32, [3]."""
    deviation: Tensor

    @classmethod
    def of(cls, images: Images) -> Self:
        """Compute it exactly from these images, by counting the values of each channel."""
        counts_CV = torch.stack(
            [channel.flatten().bincount(minlength=256) for channel in images.pixels.unbind(1)]
        )
        part_CV = counts_CV / counts_CV.sum(dim=1, keepdim=True, dtype=torch.float64)
        values_V = torch.arange(256, dtype=torch.float64) / _LARGEST_PIXEL
        mean_C = part_CV @ values_V
        variance_C = (part_CV * (values_V - mean_C[:, None]).square()).sum(dim=1)
        # At least one step of a pixel, so that images of one colour are not scaled to infinity.
        deviation_C = variance_C.sqrt().clamp(min=1 / _LARGEST_PIXEL)
        return cls(mean=mean_C.float(), deviation=deviation_C.float())

    def __call__(self, pixels_NCHW: Tensor) -> Tensor:
        """uint8 to float32."""
        return (
            pixels_NCHW.float() / _LARGEST_PIXEL - self.mean.view(-1, 1, 1)
        ) / self.deviation.view(-1, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageData:
    """Images as a model gets them: float32 [N, 3, 32, 32], targets int64 [N]."""

    images: Images
    normalization: Normalization
    augment: bool = False
    """Random crops and flips, drawn from the default generator."""

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images, augmented if asked for, and their targets."""
        pixels = self.images.pixels[indices]
        return self.normalization(
            augmented(pixels) if self.augment else pixels
        ), self.images.targets[indices]


def augmented(pixels_NCHW: Tensor) -> Tensor:
    """Crop each image at a random offset of up to `PADDING` pixels, and flip half of them at
    random.
    """
    samples = len(pixels_NCHW)
    top_N, left_N = torch.randint(0, 2 * PADDING + 1, (2, samples))
    mirrored_N111 = torch.rand(samples, 1, 1, 1) < 0.5
    padded = functional.pad(pixels_NCHW, (PADDING,) * 4)
    # View every window of each image; dimensions 2 and 3 are its offsets.
    windows = padded.unfold(2, SIDE, 1).unfold(3, SIDE, 1)
    cropped_NCHW = windows[torch.arange(samples), :, top_N, left_N]
    return torch.where(mirrored_N111, cropped_NCHW.flip(3), cropped_NCHW)


def from_arrays(pixels: list[np.ndarray], targets: list[int]) -> Images:
    """Build images from arrays, uint8 of shape [3, 32, 32] each, in the order of the list."""
    shape = (len(pixels), 3, SIDE, SIDE)
    stacked = np.stack(pixels) if pixels else np.empty(shape, dtype=np.uint8)
    return Images(torch.from_numpy(stacked), torch.tensor(targets, dtype=torch.int64))


__all__ = ["PADDING", "SIDE", "ImageData", "Images", "Normalization", "augmented", "from_arrays"]
