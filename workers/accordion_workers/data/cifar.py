"""CIFAR-10 as published, or any 32 x 32 images with a folder for each class.

    cifar-10-binary.tar.gz     data_batch_1.bin, test_batch.bin: 3,073 bytes an image
    cifar-10-python.tar.gz     data_batch_1, test_batch: pickles of Python 2
    any folder or archive      train/<class>/*.png, test/<class>/*.png; or <class>/*.png,
                               of which a sixth is held out

Each may lie in a folder, a zip or a tar archive, below any other folders.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from PIL import Image

from accordion_workers.data.files import DataError, file_names, read_files
from accordion_workers.data.images import SIDE, Images, from_arrays
from accordion_workers.data.pickles import read_pickle
from accordion_workers.data.split import stratified_mask

_CLASSES = 10
_BATCH = re.compile(r"(data|test)_batch(_\d+)?(\.bin)?")
_HELD_OUT_FOLDERS = frozenset({"test", "val", "valid", "validation"})
_HELD_OUT_PART = 6
"""One in this many images is held out if the data do not say which; the same fraction as in
CIFAR-10.
"""
_PIXELS = 3 * SIDE * SIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledImages:
    """A data set of labelled images."""

    train: Images
    held_out: Images
    classes: int


def load_images(path: Path, *, samples: int = 0, eval_samples: int = 0) -> LabelledImages:
    """Load images to train on and to evaluate on; at most as many as given, with classes in
    proportion, 0 for all.

    Raises:
        DataError: there is nothing to read, or an image of another size.
    """
    # Names that begin with a dot are metadata of the system that packed the data.
    names = [name for name in file_names(path) if not PurePosixPath(name).name.startswith(".")]
    batches = [name for name in names if _BATCH.fullmatch(PurePosixPath(name).name)]
    if batches:
        found = _from_batches(path, batches)
        return LabelledImages(
            train=found.train.at_most(samples),
            held_out=found.held_out.at_most(eval_samples),
            classes=found.classes,
        )
    pictures = [name for name in names if name.lower().endswith(".png")]
    if not pictures:
        raise DataError(
            f"{str(path)!r} holds {len(names)} files, and no pictures among them: neither *.png nor"
            " CIFAR-10's data_batch_*; name a folder or an archive that does in data"
        )
    return _from_image_files(path, pictures, (samples, eval_samples))


def _from_batches(path: Path, names: Sequence[str]) -> LabelledImages:
    parts: dict[str, Images] = {}
    for name, content in read_files(path, names):
        parts[name] = _read_batch(PurePosixPath(name).name, content)
    by_kind = {
        kind: [parts[name] for name in names if PurePosixPath(name).name.startswith(kind)]
        for kind in ("data", "test")
    }
    missing = [f"{kind}_batch" for kind, found in by_kind.items() if not found]
    if missing:
        raise DataError(
            f"{str(path)!r} has no {missing[0]} file; unpack or fetch the archive again"
        )
    train, held_out = (_concatenate_images(by_kind[kind]) for kind in ("data", "test"))
    return LabelledImages(train=train, held_out=held_out, classes=_CLASSES)


def _read_batch(name: str, content: bytes) -> Images:
    read: Callable[[str, bytes], Images] = (
        _binary_batch if name.endswith(".bin") else _pickled_batch
    )
    images = read(name, content)
    if len(images) and int(images.targets.max()) >= _CLASSES:
        raise DataError(
            f"{name} has label {int(images.targets.max())}; those of CIFAR-10 are 0 to"
            f" {_CLASSES - 1}"
        )
    return images


def _binary_batch(name: str, content: bytes) -> Images:
    if not content or len(content) % (1 + _PIXELS):
        raise DataError(
            f"{name} has {len(content)} bytes, no multiple of {1 + _PIXELS}; it is truncated, fetch"
            " it again"
        )
    rows = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, 1 + _PIXELS)
    return Images(rows[:, 1:].reshape(-1, 3, SIDE, SIDE), rows[:, 0].long())


def _pickled_batch(name: str, content: bytes) -> Images:
    fields = read_pickle(name, content)
    pixels, labels = fields.get("data"), fields.get("labels")
    if (
        not isinstance(pixels, bytes)
        or not isinstance(labels, list)
        or len(pixels) != _PIXELS * len(labels)
    ):
        raise DataError(
            f"{name} does not hold pixels and labels of CIFAR-10; fetch the python archive again"
        )
    stored = torch.frombuffer(bytearray(pixels), dtype=torch.uint8)
    return Images(stored.view(-1, 3, SIDE, SIDE), torch.tensor(labels, dtype=torch.int64))


def _concatenate_images(parts: Sequence[Images]) -> Images:
    return Images(
        torch.cat([part.pixels for part in parts]), torch.cat([part.targets for part in parts])
    )


@dataclass(frozen=True, slots=True)
class _Picture:
    name: str
    class_name: str
    held_out: bool


def _from_image_files(path: Path, names: Sequence[str], limits: tuple[int, int]) -> LabelledImages:
    pictures = [_describe_picture(path, name) for name in names]
    classes = sorted({picture.class_name for picture in pictures})
    if len(classes) == 1:
        raise DataError(
            f"all pictures of {str(path)!r} lie in one folder, {classes[0]!r}; make a folder for"
            " each class"
        )
    targets = np.array([classes.index(picture.class_name) for picture in pictures])
    held_out = np.array([picture.held_out for picture in pictures])
    if held_out.all() or not held_out.any():
        held_out = stratified_mask(targets, -(-len(targets) // _HELD_OUT_PART))
    parts = []
    for mask, limit in zip((~held_out, held_out), limits, strict=True):
        places = np.flatnonzero(mask)
        chosen = (
            places[stratified_mask(targets[places], limit)] if 0 < limit < len(places) else places
        )
        parts.append(
            _decode_pictures(
                path, [names[place] for place in chosen], [int(targets[place]) for place in chosen]
            )
        )
    return LabelledImages(train=parts[0], held_out=parts[1], classes=len(classes))


def _describe_picture(path: Path, name: str) -> _Picture:
    folders = PurePosixPath(name).parts[:-1]
    if not folders:
        raise DataError(
            f"picture {name!r} of {str(path)!r} lies in no folder; make a folder for each class"
        )
    return _Picture(
        name,
        folders[-1],
        held_out=not _HELD_OUT_FOLDERS.isdisjoint(folder.lower() for folder in folders[:-1]),
    )


def _decode_pictures(path: Path, names: Sequence[str], targets: list[int]) -> Images:
    pixels = {name: _decode_pixels(name, content) for name, content in read_files(path, names)}
    return from_arrays([pixels[name] for name in names], targets)


def _decode_pixels(name: str, content: bytes) -> np.ndarray:
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            if image.size != (SIDE, SIDE):
                width, height = image.size
                raise DataError(
                    f"picture {name!r} has {width} x {height} pixels; this task takes {SIDE} x"
                    f" {SIDE}: resize it"
                )
            return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(
            f"picture {name!r} cannot be read ({error}); put a good PNG in its place"
        ) from error


__all__ = ["LabelledImages", "load_images"]
