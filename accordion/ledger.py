"""Bytes: what each layer sent, and what plain and fp16 all-reduce would have sent instead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from torch import Tensor

from accordion.wire import Gather, Mean, Request, bytes_of

DENSE_BYTES = 4
"""Bytes of one value in the dense equivalent, fp32."""
HALF_BYTES = 2
"""Bytes of one value in the fp16 equivalent."""
OVERHEAD = "(control)"
"""Stands in for a layer's name where bytes belong to no layer: control words, sketches, decisions."""


@dataclass(slots=True)
class ByteCount:
    """Bytes of one worker since the job began."""

    payload: int = 0
    """Handed to the network."""
    wire: int = 0
    """Estimate of what the interface sends for it: 2(W-1)/W of a ring all-reduce, W-1 times of an all-gather."""
    dense: int = 0
    """Payload that fp32 all-reduce would have had."""
    fp16: int = 0
    """Payload that fp16 all-reduce would have had."""


class Ledger:
    """Counts the bytes of one worker by layer. Steps that were skipped count too: their bytes were sent."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self.by_layer: defaultdict[str, ByteCount] = defaultdict(ByteCount)
        self.total = ByteCount()

    def count(self, layers: tuple[str, ...], request: Request) -> None:
        """Book a request in equal parts on layers of equal shape."""
        payload = bytes_of(request) // len(layers)
        wire, rest = divmod(wire_bytes(request, self._world_size), len(layers))
        for layer in layers:
            self._book(layer, payload, wire + rest)
            rest = 0

    def count_mean(self, layer: str, gradient: Tensor) -> None:
        """Book a layer that is averaged as it is."""
        self.count((layer,), Mean(gradient))

    def _book(self, layer: str, payload: int, wire: int) -> None:
        for count in (self.total, self.by_layer[layer]):
            count.payload += payload
            count.wire += wire

    def expect(self, layer: str, values: int) -> None:
        """Book what a layer of this many values would have cost uncompressed in one step."""
        for count in (self.total, self.by_layer[layer]):
            count.dense += DENSE_BYTES * values
            count.fp16 += HALF_BYTES * values

    def state_dict(self) -> dict[str, dict[str, int]]:
        """The counts by layer."""
        return {layer: asdict(count) for layer, count in self.by_layer.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, int]]) -> None:
        """Continue from saved counts."""
        self.by_layer.clear()
        self.total = ByteCount()
        for layer, fields in state.items():
            count = self.by_layer[layer] = ByteCount(**fields)
            self.total = _sum(self.total, count)


def wire_bytes(request: Request, world_size: int) -> int:
    """Bytes that one worker's interface sends for a request."""
    match request:
        case Mean():
            return 2 * (world_size - 1) * bytes_of(request) // world_size
        case Gather():
            return (world_size - 1) * bytes_of(request)


def _sum(one: ByteCount, other: ByteCount) -> ByteCount:
    return ByteCount(
        payload=one.payload + other.payload,
        wire=one.wire + other.wire,
        dense=one.dense + other.dense,
        fp16=one.fp16 + other.fp16,
    )
