"""Small data sets in every layout that the tasks read."""

from __future__ import annotations

import io
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 32
CLASSES = ("cat", "dog", "frog")
TEXT = "".join(
    f"the {word} ate line {number} and slept\n" for number in range(60) for word in CLASSES
)


def picture(label: int, number: int) -> np.ndarray:
    """[32, 32, 3], uint8; no two are alike."""
    return np.random.default_rng([label, number]).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def pictures(per_class: int, *, held_out: int = 0, top: str = "") -> dict[str, bytes]:
    """Names and contents of <class>/n.png, or of train/<class>/n.png and test/<class>/n.png."""
    files = {}
    for label, name in enumerate(CLASSES):
        for number in range(per_class + held_out):
            folder = f"{'test' if number >= per_class else 'train'}/{name}" if held_out else name
            files[f"{top}{folder}/{number:03}.png"] = png(picture(label, number))
    return files


def binary_batch(rows: list[tuple[int, np.ndarray]]) -> bytes:
    return b"".join(bytes([label]) + pixels.transpose(2, 0, 1).tobytes() for label, pixels in rows)


def python2_batch(rows: list[tuple[int, np.ndarray]]) -> bytes:
    """The opcodes that Python 2 and numpy 1 wrote: protocol 2, strings of bytes."""
    data = b"".join(pixels.transpose(2, 0, 1).tobytes() for _, pixels in rows)

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def whole(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    labels = b"](" + b"".join(whole(label) for label, _ in rows) + b"e"
    made = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
        + whole(0)
        + b"\x85"
        + text(b"b")
        + b"tR"
    )
    dtype = b"cnumpy\ndtype\n(" + text(b"u1") + whole(0) + whole(1) + b"tR"
    dtype += b"(" + whole(3) + text(b"|") + b"NNN" + whole(-1) + whole(-1) + whole(0) + b"tb"
    shape = whole(len(rows)) + whole(3 * SIDE * SIDE) + b"\x86"
    memory = b"T" + struct.pack("<i", len(data)) + data
    array = made + b"(" + whole(1) + shape + dtype + b"\x89" + memory + b"tb"
    fields = text(b"batch_label") + text(b"one") + text(b"labels") + labels + text(b"data") + array
    return b"\x80\x02}(" + fields + b"u."


def python3_batch(rows: list[tuple[int, np.ndarray]]) -> bytes:
    """A batch as Python 3 pickles it."""
    data = np.stack([pixels.transpose(2, 0, 1).reshape(-1) for _, pixels in rows])
    return pickle.dumps({"labels": [label for label, _ in rows], "data": data}, protocol=2)


def folder(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def zipped(path: Path, files: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def tarred(path: Path, files: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path
