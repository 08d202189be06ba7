"""Encode and decode: all that an exchange does for one layer in a group of one, against plain torch
at the same job.

Both sides add what is owed, encode, hand the bytes to a gloo group of one process, decode the
answer into a dense update, and keep what is owed now. Gradients are Gaussian; three take turns, so
that residuals keep changing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from accordion.base.messages import LayerInfo, OptionValue
from accordion.compress.compression_engine import Engine
from accordion.compress.exchange import GroupNetwork, run_flows
from accordion.compress.layer_stacks import Layer
from accordion.compressors import COMPRESSORS, level_of
from tests.bench.peers_encoding import AdaComp, Peer, Quantised, Sign, TopK
from tests.bench.report import Measured
from tests.bench.targets import Target
from tests.bench.timing import Copy, Round, Spread, Work, measured_rounds

SHAPE = (5000, 5120)
VALUES = math.prod(SHAPE)
ROUNDS = 8
DRAWS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row: a method at a level, and the peer that does the same."""

    method: str
    options: Mapping[str, OptionValue]
    """Options of our method that are not its defaults."""
    peer: type[Peer]
    peer_options: Mapping[str, float]
    note: str = ""


CASES: Mapping[str, Case] = {
    "encode-topk": Case(
        method="topk", options={"density": 0.01}, peer=TopK, peer_options={"density": 0.01}
    ),
    "encode-adacomp": Case(
        method="adacomp", options={"bin_other": 500}, peer=AdaComp, peer_options={"bin": 500}
    ),
    "encode-adacomp-50": Case(
        method="adacomp", options={"bin_other": 50}, peer=AdaComp, peer_options={"bin": 50}
    ),
    "encode-signsgd": Case(method="signsgd", options={}, peer=Sign, peer_options={}),
    "encode-qsgd": Case(
        method="qsgd",
        options={"bits": 8, "bucket": 512},
        peer=Quantised,
        peer_options={"bits": 8, "bucket": 512, "norm": math.inf},
        note=(
            "the peer draws a random number for every value; ours draws a tile a step and uses it"
            " shifted"
        ),
    ),
}
LAYER = "layer"


class Ours:
    """An engine of a worker that is alone, and its layer's gradient, which becomes the update."""

    def __init__(self, case: Case, group: dist.ProcessGroup) -> None:
        self.gradient = torch.zeros(SHAPE)
        self._network = GroupNetwork(group, self.gradient.device)
        self.engine = Engine([LayerInfo(name=LAYER, shape=SHAPE)], seed=0, world_size=1)
        self.engine.plan = {LAYER: level_of(case.method, case.options, name="bench")}
        self._layers = [Layer(name=LAYER, gradient=self.gradient)]

    @property
    def payload_bytes(self) -> int:
        """Since the beginning."""
        return self.engine.ledger.total.payload

    def __call__(self) -> None:
        stacks = self.engine.build_stacks(self._layers)
        run_flows([stack.flow for stack in stacks], self._network, self._count)
        self.engine.hold_updates(stacks)
        self.engine.write_updates(is_skipped=torch.zeros((), dtype=torch.bool))
        self.engine.commit_step()

    def _count(self, _: int, request: object) -> None:
        self.engine.ledger.count((LAYER,), request, "bench")


def measure(target: Target, *, quick: bool) -> Measured:
    """One row.

    Raises:
        LookupError: the library has no such method.
    """
    case = CASES[target.row]
    if case.method not in COMPRESSORS:
        raise LookupError(f"the library has no method {case.method!r}")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return _measured(case, 2 if quick else ROUNDS)
    finally:
        dist.destroy_process_group()


def _measured(case: Case, rounds: int) -> Measured:
    draw = torch.Generator().manual_seed(0)
    gradients = [torch.randn(SHAPE, generator=draw) for _ in range(DRAWS)]
    ours, peer = Ours(case, dist.group.WORLD), case.peer(_exchanged, case.peer_options)
    for gradient in gradients:
        _check(ours, peer, gradient)
    before, turns, peers_turns = (
        ours.payload_bytes,
        itertools.cycle(gradients),
        itertools.cycle(gradients),
    )
    works = {
        "ours": Work(run=ours, prepare=lambda: ours.gradient.copy_(next(turns))),
        "peer": Work(run=lambda: peer(next(peers_turns).view(-1))),
        "copy": Work(run=Copy()),
    }
    found = measured_rounds(works, rounds)
    sent = (ours.payload_bytes - before) / (rounds + 1)
    passes = 4 if COMPRESSORS[case.method].feedback else 2
    return Measured(
        ours=[seconds["ours"] for seconds in found],
        peer=[seconds["peer"] for seconds in found],
        floor=[
            Copy.seconds_for(passes * 4 * VALUES + 2 * sent, seconds["copy"]) for seconds in found
        ],
        floor_counts=(
            "gradient and residual read, residual and update"
            if passes == 4
            else "gradient read, update"
        )
        + " written, payload written and read",
        note=f"{case.note}{'; ' if case.note else ''}{_kernel_note(found)}",
        details={"payload_bytes": round(sent), "peer_payload_bytes": peer.payload_bytes},
    )


def _kernel_note(found: Sequence[Round]) -> str:
    """How much of the ratio is memory that plain torch asks for anew each time."""
    ours, peer = (
        Spread.of([seconds[f"{name} in the kernel"] for seconds in found]).median
        for name in ("ours", "peer")
    )
    rest = Spread.of(
        [
            (seconds["peer"] - seconds["peer in the kernel"])
            / (seconds["ours"] - seconds["ours in the kernel"])
            for seconds in found
        ]
    )
    return (
        f"fresh memory costs the peer {1e3 * peer:.0f} ms in the kernel and ours {1e3 * ours:.0f}; "
        f"without them the ratio is {rest.median:.2f}"
    )


def _exchanged(payload: Tensor) -> Tensor:
    gathered = torch.empty_like(payload)
    dist.all_gather_into_tensor(gathered, payload)
    return gathered


def _check(ours: Ours, peer: Peer, gradient: Tensor) -> None:
    """Before anybody is timed: nothing is lost on either side, and the peer does the same job."""
    flat = gradient.view(-1)
    ours.gradient.copy_(gradient)
    owed = ours.engine.feedback.get(LAYER)
    due = flat if owed is None else flat + owed.view(-1)
    due_at_peer = flat if peer.owed is None else flat + peer.owed
    ours()
    peer(flat)
    kept = ours.engine.feedback.get(LAYER)
    if kept is not None:
        torch.testing.assert_close(ours.gradient.view(-1) + kept.view(-1), due, rtol=0, atol=1e-5)
        torch.testing.assert_close(peer.update + peer.owed, due_at_peer, rtol=0, atol=1e-5)
    apart = torch.linalg.vector_norm(
        ours.gradient.view(-1) - peer.update
    ) / torch.linalg.vector_norm(peer.update)
    assert apart < SAME_JOB, f"ours and the peer's update differ by {apart:.2f} of its norm"


SAME_JOB = 0.05
"""Relative distance of two updates of the same job: random rounding to 8 bits makes 0.015, the
others hardly any.
"""
