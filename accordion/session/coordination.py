"""Small collectives for settings, statistics, decisions and acknowledgements of a session.

They run on the training thread between steps. Every worker makes the same calls in the same order.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from accordion.base.errors import HookError, ReportError, StateError
from accordion.base.link_model import CollectiveTiming
from accordion.base.messages import (
    Ack,
    Decision,
    LayerInfo,
    StatisticKind,
    decision_from_json,
    to_json,
)
from accordion.base.wire import Gather, Mean, Request
from accordion.compress.exchange import GroupNetwork
from accordion.compress.ledger import OVERHEAD, Ledger
from accordion.compress.statistics import (
    SKETCH_SIZE,
    GradientSums,
    estimate_agreement,
    window_fields,
)
from accordion.hook.worker_networks import WorkerNetworks
from accordion.session.bandwidth_probe import BandwidthProbe
from accordion.session.training_warnings import warn_of_wait

_NUM_PROBES = 3
_PROBED_WORKERS = 8
"""Largest group whose latency is probed again at each decision, with 2(W-1) messages, and whose
neighbors are probed at all.
"""
_MESSAGE_BYTES = 1 << 16
"""Size of a message between neighbors: its bytes take 21 ms at 25 Mbit/s, far more than the
millisecond that a shaper lets pass without delay.
"""
_NUM_MESSAGES = 3
"""Messages of each size to a neighbor; the fastest counts."""
_MAX_MESSAGE_SHARE = 0.03
"""Most that messages between neighbors take, as a share of the gradient bytes sent so far."""
_PIECE_BYTES = 1 << 26
"""Largest message in which `gather_on_rank_0` sends a part of a payload."""


class Coordinator:
    """Exchanges short messages between a session's workers.

    The ledger counts their bytes as overhead, except when states are loaded and when the latency is
    probed, so that a resumed run reports the same bytes as an uninterrupted one. Larger probes are
    counted: those of the bandwidth, which only policies with costs need, and those of neighbors, in
    groups of three to `_PROBED_WORKERS` workers. So are states that rank 0 gathers.
    """

    def __init__(self, networks: WorkerNetworks, ledger: Ledger, device: torch.device) -> None:
        self._networks, self._network = networks, networks.replicas
        self._ledger = ledger
        self._device = device
        self.rank = networks.everyone.rank
        self._probed_s: float | None = None
        self._bandwidth: BandwidthProbe | None = None
        self._neighbors_s: tuple[float, ...] = ()
        """Seconds by rank in the last probe of neighbors."""
        self._fastest_s: tuple[float, ...] = ()
        """Seconds by rank in the faster one of the last two probes of neighbors."""
        self.world_size = networks.everyone.world_size
        self.num_replicas = networks.replicas.world_size
        self.num_shards = networks.num_shards

    def warn_of_wait(self, call: str) -> AbstractContextManager[None]:
        """Warn of a long wait for the other workers in a call of the script that all make."""
        return warn_of_wait(call, rank=self.rank) if self.world_size > 1 else nullcontext()

    def require_equal(self, settings: object) -> None:
        """Check that all workers have the same settings, compared by their `repr`.

        Different settings would let the workers' parameters diverge, or their collectives deadlock.

        Raises:
            HookError: the settings of this worker differ from another's; raised on both.
        """
        own = hashlib.sha256(repr(settings).encode()).hexdigest()
        with self.warn_of_wait("attach"):
            digests = self.gather_texts(own)
        others = [rank for rank, digest in enumerate(digests) if digest != own]
        if others:
            raise HookError(
                f"attach() got different settings or layers on rank {others[0]} and rank"
                f" {self.rank}; give all workers the same Config, the same model and the same"
                " overlap="
            )

    def average_(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their means over the workers, which give tensors of the same sizes.

        Raises:
            HookError: they do not; raised on all workers.
        """
        sizes = repr([(tuple(one.shape), one.dtype) for one in tensors])
        digests = self.gather_texts(hashlib.sha256(sizes.encode()).hexdigest())
        shards = self.num_shards
        if digests[:shards] * (len(digests) // shards) != digests:
            raise HookError(
                "the workers' optimizers hold different state, which cannot be averaged after local"
                " steps; every layer needs a gradient on every worker"
            )
        for dtype in dict.fromkeys(one.dtype for one in tensors):
            same = [one for one in tensors if one.dtype == dtype]
            packed = torch.cat([one.reshape(-1) for one in same])
            self._ledger.count((OVERHEAD,), Mean(packed), OVERHEAD)
            self._network.all_reduce_mean_(packed)
            parts = torch.split(packed, [one.numel() for one in same])
            for one, part in zip(same, parts, strict=True):
                one.copy_(part.view(one.shape))

    def is_any_shard(self, holds: bool) -> bool:
        """Return whether something holds for one of the workers that hold the parameters together,
        of which this is one.
        """
        if self._networks.shards is None:
            return holds
        share = torch.tensor([float(holds)], dtype=torch.float32, device=self._device)
        self._networks.shards.all_reduce_mean_(share)
        return bool(share)

    def require_equal_states(self, loaded: Mapping[str, Any]) -> None:
        """Check that all workers loaded states of the same step.

        `loaded` holds the step, world size and decision that this worker loaded, or its `error`.

        Raises:
            StateError: some worker could not load its state or loaded another step's; raised on
                all.
        """
        with self.warn_of_wait("load_state_dict"):
            texts = self.gather_texts(json.dumps(loaded), counted=False)
        accounts = [json.loads(text) for text in texts]
        for rank, account in enumerate(accounts):
            if "error" in account:
                raise StateError(f"rank {rank} could not load its state: {account['error']}")
        for rank, account in enumerate(accounts):
            if account != accounts[0]:
                raise StateError(
                    f"rank {rank} loaded the state of step {account['steps']} of a group of"
                    f" {account['world_size']}, rank 0 that of step {accounts[0]['steps']} of a"
                    f" group of {accounts[0]['world_size']}; give all workers states saved at the"
                    " same step"
                )

    def share_decision(self, decide: Callable[[], Decision]) -> Decision:
        """Call `decide` on rank 0 and return its decision on all ranks.

        Raises:
            ReportError: `decide` failed on rank 0, where its own error is raised; raised on other
                ranks.
        """
        if self.rank != 0:
            answer = json.loads(self._share_text(""))
            if "error" in answer:
                raise ReportError(f"rank 0 could not decide: {answer['error']}")
            return decision_from_json(answer)
        try:
            decision = decide()
        except Exception as error:
            # The other ranks wait for an answer: send them the error before raising it.
            self._share_text(json.dumps({"error": str(error) or type(error).__name__}))
            raise
        self._share_text(json.dumps(to_json(decision)))
        return decision

    def gather_acks(self, own: Ack) -> tuple[Ack, ...]:
        """Return the acknowledgements of all workers, in rank order."""
        return tuple(Ack(**json.loads(text)) for text in self.gather_texts(json.dumps(asdict(own))))

    def gather_texts(self, text: str, *, counted: bool = True) -> list[str]:
        """Return the texts of all workers, in rank order."""
        payload = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8).to(
            self._device
        )
        request = Gather(payload)
        payloads: list[Tensor] = self._answer(self._networks.everyone, request, counted=counted)
        return [bytes(payload.tolist()).decode() for payload in payloads]

    def _share_text(self, text: str) -> str:
        """Return rank 0's text; those of other ranks are ignored."""
        own = bytearray(text.encode())
        size = torch.tensor([len(own)], dtype=torch.int64, device=self._device)
        self._networks.everyone.broadcast_(size)
        if self.rank == 0:
            payload = torch.frombuffer(own, dtype=torch.uint8).to(self._device)
        else:
            payload = torch.empty(int(size), dtype=torch.uint8, device=self._device)
        self._networks.everyone.broadcast_(payload)
        self._ledger.count_broadcast(size.nbytes + payload.nbytes)
        return bytes(payload.tolist()).decode()

    def gather_on_rank_0(self, payload: bytes) -> list[bytearray] | None:
        """Return the payloads of all workers on rank 0, received one by one; None on others."""
        own = bytearray(payload)
        with self.warn_of_wait("gather_state_dict"):
            sizes = [int(text) for text in self.gather_texts(str(len(own)), counted=False)]
        self._ledger.count_gather_on_rank_0(sizes)
        if self.rank != 0:
            for piece in _split_payload(own):
                self._networks.everyone.send_to_rank_0(piece)
            return None
        payloads = [own]
        for rank, size in enumerate(sizes[1:], start=1):
            payloads.append(bytearray(size))
            for piece in _split_payload(payloads[-1]):
                self._networks.everyone.receive_(piece, rank)
        return payloads

    def average_tensor(self, buffer: Tensor) -> Tensor:
        """Return the mean of the workers' buffers."""
        mean: Tensor = self._answer_request(Mean(buffer))
        return mean

    def average_window(
        self, sums: GradientSums, layers: Sequence[LayerInfo], kind: StatisticKind
    ) -> dict[str, Any]:
        """Return what a window's sums measured, as fields of a report; clear the sums."""
        own, agreement = sums.summary(self._device), None
        if kind == "paper":
            # The paper sums rank 0's gradients: undo the mean over the steps and the one over the
            # workers.
            replicas = self._network
            own[:, :SKETCH_SIZE] *= sums.steps * replicas.world_size if replicas.rank == 0 else 0
        summary = self.average_tensor(own)
        if self._networks.shards is not None:
            summary = _add_up_shards(summary, self._networks.shards)
        sums.clear()
        if kind == "mean":
            agreement = estimate_agreement(summary, self._network.world_size)
        return window_fields([layer.name for layer in layers], summary, agreement=agreement)

    def probe_latency(self) -> float:
        """Return the seconds of the shortest of a few all-reduces of one value for each worker.

        With more than `_PROBED_WORKERS` workers, only the first call sends anything.
        """
        if self._probed_s is not None and self.world_size > _PROBED_WORKERS:
            return self._probed_s
        seconds = []
        for _ in range(_NUM_PROBES):
            started = self._network.seconds
            # With fewer values than workers, some would have no sum to wait for.
            size = self._network.world_size
            values = torch.zeros(size, dtype=torch.float32, device=self._device)
            self._answer_request(Mean(values), counted=False)
            seconds.append(self._network.seconds - started)
        self._probed_s = min(seconds)
        return self._probed_s

    def probe_bandwidth(self, waited_s: float, max_bytes: int) -> CollectiveTiming | None:
        """Return, on rank 0, the timing of an all-reduce that is large enough to show the
        bandwidth.

        The timing of an earlier call is returned if a probe would take too much of what it could
        save: of the increase of `waited_s`, for how long rank 0's steps waited for exchanges. No
        all-reduce has more than `max_bytes`, the bytes of all gradients. Other ranks return None.
        """
        if self._bandwidth is None:
            self._bandwidth = BandwidthProbe(max_bytes)
        size = self._share_number(self._bandwidth.begin(waited_s, self._probed_s or 0.0))
        while size:
            buffer = torch.zeros(size // 4, dtype=torch.float32, device=self._device)
            started = self._network.seconds
            self._answer_request(Mean(buffer))
            size = self._share_number(self._bandwidth.observe(self._network.seconds - started))
        return self._bandwidth.timing if self.rank == 0 else None

    def probe_neighbors(self) -> tuple[float, ...]:
        """Return the seconds that `_MESSAGE_BYTES` take from the rank before to each rank.

        The time of an empty message is subtracted, and the fastest of several messages in this
        probe and the one before counts, because busy hosts delay messages by milliseconds. The
        result is the same on all ranks; it is empty for two workers, which have one link, for more
        than `_PROBED_WORKERS`, and for sharded parameters. Messages that would take too much beside
        the gradients sent so far are not sent: the result is that of the last probe, and empty
        before the first one.
        """
        if self._networks.shards is not None or not 2 < self.world_size <= _PROBED_WORKERS:
            return ()
        if not self._share_number(int(self._can_afford_messages())):
            return self._fastest_s
        own_s = max(0.0, self._pass_message(_MESSAGE_BYTES) - self._pass_message(1))
        own = torch.zeros(self.world_size, dtype=torch.float64, device=self._device)
        own[self.rank] = own_s * self.world_size
        before = self._neighbors_s
        self._neighbors_s = tuple(self.average_tensor(own).tolist())
        self._fastest_s = tuple(map(min, self._neighbors_s, before or self._neighbors_s))
        return self._fastest_s

    def _can_afford_messages(self) -> bool:
        """Return whether a probe of neighbors and those before it take at most
        `_MAX_MESSAGE_SHARE` of what gradients took.
        """
        ledger, probe = self._ledger, _NUM_MESSAGES * (_MESSAGE_BYTES + 1)
        return ledger.message_wire + probe <= _MAX_MESSAGE_SHARE * ledger.gradient_wire

    def _pass_message(self, size: int) -> float:
        """Return the seconds of the fastest of a few messages from the rank before."""
        message = torch.zeros(size, dtype=torch.uint8, device=self._device)
        shortest = math.inf
        for _ in range(_NUM_MESSAGES):
            self._answer_request(
                Mean(torch.zeros(1, dtype=torch.float32, device=self._device)), counted=False
            )
            shortest = min(shortest, self._network.pass_to_next(message))
            self._ledger.count_message(size)
        return shortest

    def _share_number(self, number: int) -> int:
        """Return rank 0's number."""
        shared = torch.tensor([number], dtype=torch.int64, device=self._device)
        self._networks.everyone.broadcast_(shared)
        return int(shared)

    def _answer_request(self, request: Request, *, counted: bool = True) -> Any:
        """Return the answer of the replicas."""
        return self._answer(self._network, request, counted=counted)

    def _answer(self, network: GroupNetwork, request: Request, *, counted: bool) -> Any:
        def count(_: int, leaving: Request) -> None:
            if counted:
                self._ledger.count((OVERHEAD,), leaving, OVERHEAD, workers=network.world_size)

        return network.answer_requests({0: request}, 0, count)[0]


def _add_up_shards(summary: Tensor, shards: GroupNetwork) -> Tensor:
    """Return the summary, (layers, 1028), of whole layers, given those of the parts of workers that
    hold them together. The squared norm of a layer is the sum of its parts'; as its sketch, it has
    the norm in the first entry.
    """
    squares = summary[:, :SKETCH_SIZE].square().sum(1, keepdim=True)
    sums = torch.cat([squares, summary[:, SKETCH_SIZE:]], dim=1).double()
    shards.all_reduce_mean_(sums)
    sums.mul_(shards.world_size)
    whole = torch.zeros_like(summary)
    whole[:, :1] = sums[:, :1].sqrt()
    whole[:, SKETCH_SIZE:] = sums[:, 1:]
    return whole


def _split_payload(payload: bytearray) -> Sequence[Tensor]:
    """View a payload as byte tensors of at most `_PIECE_BYTES`."""
    return torch.split(torch.frombuffer(payload, dtype=torch.uint8), _PIECE_BYTES)
