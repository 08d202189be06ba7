"""Parts of layers, as the workers that hold a model together have them."""

from __future__ import annotations

from torch import Tensor


def cut_layer(name: str, values: Tensor, *, shards: int) -> dict[str, Tensor]:
    """Return the parts of a layer that FSDP2 gives to so many workers, each with a name of its own;
    without shards, the layer itself. A part is compressed as a layer is.
    """
    if shards == 1:
        return {name: values}
    return {f"{name}/{number}": part for number, part in enumerate(values.chunk(shards))}


__all__ = ["cut_layer"]
