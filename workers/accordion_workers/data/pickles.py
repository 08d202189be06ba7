"""Reads the pickles of CIFAR's python archive without running anything in them.

A pickle is a program: it may name any function and call it. This reader admits the few names that a
saved array needs and replaces them by its own classes, so that not even numpy acts on what the file
says.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

from accordion_workers.data.files import DataError


def read_pickle(name: str, content: bytes) -> dict[str, Any]:
    """Return the fields of the saved dictionary; a byte array becomes its memory, the first index
    slowest.

    Raises:
        DataError: it is damaged, not a dictionary, or asks for any other name; the message names
            the file `name`.
    """
    try:
        saved = _CifarUnpickler(io.BytesIO(content), encoding="bytes").load()
        fields = {_decode_key(key): _unwrap_array(value) for key, value in saved.items()}
    except DataError as error:
        raise DataError(f"{name} {error}") from error
    except Exception as error:
        # A damaged pickle can raise anything.
        raise DataError(
            f"{name} is no pickle of CIFAR's archive ({error}); fetch it again"
        ) from error
    return fields


class _CifarUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = _KNOWN.get((module, name))
        if known is None:
            raise DataError(
                f"asks for {module}.{name}, which no pickle of CIFAR needs; it was not read, fetch"
                " it again"
            )
        return known


class _Array:
    """Stands in for a numpy array."""

    memory: bytes | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, by_columns, memory = state
        size = 1
        for length in shape:
            size *= length
        if dtype.name not in (b"u1", "u1") or by_columns or len(memory) != size:
            raise DataError("holds an array of another kind than rows of bytes; fetch it again")
        self.memory = bytes(memory)


class _Dtype:
    """Stands in for the type of an array's values."""

    def __init__(self, name: bytes | str, *_: int) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and alignment, which bytes do not have."""


def _make_array(*_: object) -> _Array:
    return _Array()


def _encode_bytes(text: str, _: object) -> bytes:
    """Return the bytes that Python 3 wrote as text in an old protocol."""
    return text.encode("latin1")


_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _make_array,
    ("numpy._core.multiarray", "_reconstruct"): _make_array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode_bytes,
}


def _decode_key(key: bytes | str) -> str:
    return key.decode() if isinstance(key, bytes) else key


def _unwrap_array(value: Any) -> Any:
    return value.memory if isinstance(value, _Array) else value


__all__ = ["read_pickle"]
