"""Bytes: what each layer and each method sent, and what plain and fp16 all-reduce would have sent
instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from accordion.wire import Gather, Mean, Request, payload_bytes

DENSE_BYTES = 4
"""Bytes of one value in the dense equivalent, fp32."""
HALF_BYTES = 2
"""Bytes of one value in the fp16 equivalent."""
OVERHEAD = "(control)"
"""Stands in for a layer's and a method's name where bytes belong to none: control words, sketches,
decisions.
"""


@dataclass(slots=True)
class ByteCount:
    """Bytes of one worker since the job began."""

    payload: int = 0
    """Handed to the network."""
    wire: int = 0
    """Estimate of what the interface sends for it: 2(W-1)/W of a ring all-reduce, W-1 times of an
    all-gather, and (W-1)/W of a broadcast, the mean over the workers."""
    dense: int = 0
    """Payload that fp32 all-reduce would have had."""
    fp16: int = 0
    """Payload that fp16 all-reduce would have had."""


class Ledger:
    """Counts the bytes of one worker. Steps that were skipped count too: their bytes were sent."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self.by_layer: defaultdict[str, ByteCount] = defaultdict(ByteCount)
        self.by_collective: defaultdict[str, ByteCount] = defaultdict(ByteCount)
        """By method and collective, such as `powersgd all-reduce`; payload and wire only."""
        self.total = ByteCount()

    def count(self, layers: tuple[str, ...], request: Request, method: str) -> None:
        """Book a request in equal parts on layers of equal shape."""
        sent, wire = payload_bytes(request), wire_bytes(request, self._world_size)
        collective = "all-reduce" if isinstance(request, Mean) else "all-gather"
        self._add_request((method, collective), layers, sent=sent, wire=wire)

    def count_broadcast(self, size: int) -> None:
        """Book control bytes that rank 0 sent to all; on every worker, so that all ledgers
        agree.
        """
        wire = (self._world_size - 1) * size // self._world_size
        self._add_request((OVERHEAD, "broadcast"), (OVERHEAD,), sent=size, wire=wire)

    def _add_request(
        self, kind: tuple[str, str], layers: tuple[str, ...], *, sent: int, wire: int
    ) -> None:
        _add_bytes(self.by_collective[" ".join(kind)], sent, wire)
        _add_bytes(self.total, sent, wire)
        for place, layer in enumerate(layers):
            _add_bytes(
                self.by_layer[layer],
                _share(sent, place, len(layers)),
                _share(wire, place, len(layers)),
            )

    def count_dense(self, layer: str, gradient: Tensor) -> None:
        """Book a layer that is averaged as it is."""
        self.count((layer,), Mean(gradient), "none")

    def count_dense_equivalent(self, layer: str, values: int) -> None:
        """Book what a layer of this many values would have cost uncompressed in one step."""
        for count in (self.total, self.by_layer[layer]):
            count.dense += DENSE_BYTES * values
            count.fp16 += HALF_BYTES * values

    def state_dict(self) -> dict[str, Any]:
        """The counts by layer and by collective."""
        tables = {"layers": self.by_layer, "collectives": self.by_collective}
        return {
            name: {key: asdict(count) for key, count in table.items()}
            for name, table in tables.items()
        }

    @staticmethod
    def parse_tables(state: Mapping[str, Any]) -> dict[str, defaultdict[str, ByteCount]]:
        """The tables of a saved state, for `restore`.

        Raises:
            KeyError, TypeError: it is no state of ours.
        """
        return {
            name: defaultdict(
                ByteCount, {key: ByteCount(**count) for key, count in state[name].items()}
            )
            for name in ("layers", "collectives")
        }

    def restore(self, tables: Mapping[str, defaultdict[str, ByteCount]]) -> None:
        """Continue from saved counts."""
        self.by_layer, self.by_collective = tables["layers"], tables["collectives"]
        self.total = ByteCount()
        for count in self.by_layer.values():
            _add_bytes(self.total, count.payload, count.wire)
            self.total.dense += count.dense
            self.total.fp16 += count.fp16


def wire_bytes(request: Request, world_size: int) -> int:
    """Bytes that one worker's interface sends for a request."""
    match request:
        case Mean():
            return 2 * (world_size - 1) * payload_bytes(request) // world_size
        case Gather():
            return (world_size - 1) * payload_bytes(request)


def _add_bytes(count: ByteCount, payload: int, wire: int) -> None:
    count.payload += payload
    count.wire += wire


def _share(total: int, place: int, parts: int) -> int:
    """An equal share; the first takes what does not divide."""
    share, rest = divmod(total, parts)
    return share + rest if place == 0 else share
