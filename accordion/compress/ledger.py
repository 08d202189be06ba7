"""Byte counts by layer and method, and what dense fp32 and fp16 all-reduce would have sent."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from accordion.base.link_model import CollectiveKind, wire_bytes
from accordion.base.wire import Gather, Mean, Request, Scatter

DENSE_BYTES = 4
"""Bytes of one value in the dense equivalent, fp32."""
HALF_BYTES = 2
"""Bytes of one value in the fp16 equivalent."""
OVERHEAD = "(control)"
"""Name for bytes that belong to no layer and no method: step signals, sketches, decisions, probes,
and states that rank 0 gathers.
"""
CHANGES = "(local steps)"
"""Words after the method of bytes that are no gradients but changes of parameters by rounds of
local steps.
"""
_MESSAGES = "message"
_COLLECTIVES: Mapping[type[Request], CollectiveKind] = {
    Mean: "all-reduce",
    Gather: "all-gather",
    Scatter: "all-to-all",
}


@dataclass(slots=True)
class ByteCount:
    """Bytes of one worker since the start of the job."""

    payload: int = 0
    """Bytes passed to the network."""
    wire: int = 0
    """Estimate of the bytes that the network interface sends, averaged over the workers.

    It is 2(W-1)/W times the payload of an all-reduce, W-1 times that of an all-gather and
    (W-1)/W times that of an all-to-all or a broadcast.
    """
    dense: int = 0
    """Payload of an fp32 all-reduce of the same gradients."""
    fp16: int = 0
    """Payload of an fp16 all-reduce of the same gradients."""
    dense_wire: int = 0
    """Wire bytes of an fp32 all-reduce of the same gradients; one in fp16 sends half of them."""


class Ledger:
    """Counts the bytes of one worker, including those of skipped steps, which were sent."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self.by_layer: defaultdict[str, ByteCount] = defaultdict(ByteCount)
        self.by_collective: defaultdict[str, ByteCount] = defaultdict(ByteCount)
        """Payload and wire bytes by method and collective, such as `powersgd all-reduce` or, of
        changes by local steps, `powersgd (local steps) all-reduce`.
        """
        self.total = ByteCount()
        self.counts_changes = False
        """Whether what the methods send are changes of parameters by rounds of local steps."""

    @property
    def control_wire(self) -> int:
        """Wire bytes of `OVERHEAD`, a part of the total's."""
        return self.by_layer[OVERHEAD].wire if OVERHEAD in self.by_layer else 0

    @property
    def gradient_wire(self) -> int:
        """Wire bytes of gradients: the total's without control bytes."""
        return self.total.wire - self.control_wire

    @property
    def message_wire(self) -> int:
        """Wire bytes that `count_message` counted."""
        name = f"{OVERHEAD} {_MESSAGES}"
        return self.by_collective[name].wire if name in self.by_collective else 0

    def count(
        self,
        layers: tuple[str, ...],
        request: Request,
        method: str,
        *,
        workers: int | None = None,
    ) -> None:
        """Count a request, in equal parts for layers of equal shape; `workers` is the number of
        those that exchange it, if they are not the ones that exchange gradients.
        """
        sent = request.payload_bytes
        collective = _COLLECTIVES[type(request)]
        wire = int(wire_bytes(collective, sent, workers or self._world_size))
        if self.counts_changes and method != OVERHEAD:
            method = f"{method} {CHANGES}"
        self._add_request((method, collective), layers, sent=sent, wire=wire)

    def count_broadcast(self, size: int) -> None:
        """Count control bytes that rank 0 broadcasts; every worker counts them alike."""
        wire = (self._world_size - 1) * size // self._world_size
        self._add_request((OVERHEAD, "broadcast"), (OVERHEAD,), sent=size, wire=wire)

    def count_message(self, size: int) -> None:
        """Count control bytes that every worker sends to one other."""
        self._add_request((OVERHEAD, _MESSAGES), (OVERHEAD,), sent=size, wire=size)

    def count_gather_on_rank_0(self, sizes: Sequence[int]) -> None:
        """Count control bytes that each worker sends to rank 0, given by rank; all workers count
        the mean alike.
        """
        mean = sum(sizes[1:]) // self._world_size
        if mean:
            self._add_request((OVERHEAD, "gather on rank 0"), (OVERHEAD,), sent=mean, wire=mean)

    def _add_request(
        self, kind: tuple[str, str], layers: tuple[str, ...], *, sent: int, wire: int
    ) -> None:
        _add_bytes(self.by_collective[" ".join(kind)], sent, wire)
        _add_bytes(self.total, sent, wire)
        for index, layer in enumerate(layers):
            _add_bytes(
                self.by_layer[layer],
                _equal_share(sent, index, len(layers)),
                _equal_share(wire, index, len(layers)),
            )

    def count_dense(self, layer: str, gradient: Tensor) -> None:
        """Count a layer that is averaged uncompressed."""
        self.count((layer,), Mean(gradient), "none")

    def count_dense_equivalent(self, layer: str, values: int, *, steps: int = 1) -> None:
        """Count what a layer with this many values would send uncompressed in so many steps."""
        dense = DENSE_BYTES * values
        for count in (self.total, self.by_layer[layer]):
            count.dense += steps * dense
            count.fp16 += steps * HALF_BYTES * values
            count.dense_wire += steps * self._dense_wire(dense)

    def _dense_wire(self, dense: int) -> int:
        return int(wire_bytes("all-reduce", dense, self._world_size))

    def summarize(self) -> dict[str, Any]:
        """Return the total, as the fields of a record, with its parts by method: those of gradients
        under the name of the method, of changes by local steps with `(local steps)` after it, and
        control bytes under `(control)`.
        """
        payload: Counter[str] = Counter()
        wire: Counter[str] = Counter()
        for name, count in self.by_collective.items():
            method = OVERHEAD if name.startswith(OVERHEAD) else name.rpartition(" ")[0]
            payload[method] += count.payload
            wire[method] += count.wire
        return {
            **asdict(self.total),
            "control_wire": self.control_wire,
            "payload_by_method": dict(payload),
            "wire_by_method": dict(wire),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the counts by layer and by collective."""
        tables = {"layers": self.by_layer, "collectives": self.by_collective}
        return {
            name: {key: asdict(count) for key, count in table.items()}
            for name, table in tables.items()
        }

    @staticmethod
    def parse_tables(state: Mapping[str, Any]) -> dict[str, defaultdict[str, ByteCount]]:
        """Return the tables of a saved state, for `restore`.

        Raises:
            KeyError, TypeError: the state is not one of `state_dict`.
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
            self.total.dense_wire += count.dense_wire


def _add_bytes(count: ByteCount, payload: int, wire: int) -> None:
    count.payload += payload
    count.wire += wire


def _equal_share(total: int, index: int, parts: int) -> int:
    """Return one of equal shares; the first one includes the remainder."""
    share, rest = divmod(total, parts)
    return share + rest if index == 0 else share
