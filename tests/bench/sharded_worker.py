"""One of four workers of `tests.bench.sharded`, two on each host: `sharded_worker.py RANK ADDRESS`.

Commands come as JSON lines on standard input, answers leave on standard output as JSON lines behind
an `@`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from accordion import Config, LocalSteps, attach

WORKERS, SHARDS = 4, 2
WIDTH, LAYERS, TOKENS, BATCH, WORDS = 256, 4, 64, 4, 512
PATIENCE = timedelta(seconds=300)
SETTLING_STEPS = 3
"""Steps of each contestant before it is timed; the last ones follow its plan of exchanges."""
CHECK_STEPS = 12

Step = Callable[[], object]
HALF = MixedPrecisionPolicy(reduce_dtype=torch.float16)
OURS: Mapping[str, Config] = {
    "ours, none": Config(method="none"),
    "ours, rank 4": Config(method="powersgd", low={"rank": 4}, high={"rank": 4}),
    "ours, 4 bits": Config(method="qsgd", low={"bits": 4}, high={"bits": 4}),
    "ours, 4 bits, rounds of 16": Config(
        method="qsgd",
        low={"bits": 4},
        high={"bits": 4},
        local_steps=LocalSteps(low=16, high=16),
    ),
}
TORCH: Mapping[str, Mapping[str, Any]] = {"torch": {}, "torch, fp16": {"mp_policy": HALF}}
"""FSDP2 with a mesh of two dimensions, whose gradients it averages itself."""


class Transformer(nn.Module):
    """A small language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(hidden)
        return logits


class Contestant:
    """A sharded model and how it takes a step."""

    def __init__(self, name: str, mesh: DeviceMesh, rank: int) -> None:
        torch.manual_seed(0)
        self.model = Transformer()
        for part in (*self.model.blocks, self.model):
            if name in OURS:
                fully_shard(part, mesh=mesh["shard"])
            else:
                fully_shard(part, mesh=mesh, **TORCH[name])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self._take: Step = self.optimizer.step
        if name in OURS:
            replicas = mesh["replicate"].get_group()
            session = attach(self.model, OURS[name], self.optimizer, replicate_group=replicas)
            self._take = session.step
        draw = torch.Generator().manual_seed(rank)
        self._tokens = torch.randint(0, WORDS, (BATCH, TOKENS + 1), generator=draw)

    def step(self) -> float:
        """Take a step; return the loss."""
        logits = self.model(self._tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), self._tokens[:, 1:].flatten())
        loss.backward()
        self._take()
        self.optimizer.zero_grad()
        return float(loss.detach())

    def parameters(self) -> list[Tensor]:
        """Return the whole parameters."""
        held = (one for one in self.model.parameters() if isinstance(one, DTensor))
        return [one.full_tensor().detach() for one in held]


class Workplace:
    """All contestants of this rank."""

    def __init__(self, rank: int) -> None:
        mesh = init_device_mesh(
            "cpu", (WORKERS // SHARDS, SHARDS), mesh_dim_names=("replicate", "shard")
        )
        names = (*TORCH, *OURS)
        self._contestants = {name: Contestant(name, mesh, rank) for name in names}

    def check(self) -> dict[str, list[float]]:
        """Whether all learn, and `none` as torch does, before anybody is timed."""
        losses = {
            name: [one.step() for _ in range(CHECK_STEPS)]
            for name, one in self._contestants.items()
        }
        for name, values in losses.items():
            assert values[-1] < 0.95 * values[0], f"{name} does not learn: {values}"
        ours, theirs = (self._contestants[name].parameters() for name in ("ours, none", "torch"))
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
        return losses

    def measure(self, steps: Mapping[str, int], rounds: int) -> list[dict[str, float]]:
        """Return seconds a step by contestant in every round, in turning order."""
        for name in steps:
            for _ in range(SETTLING_STEPS):
                self._contestants[name].step()
        found = []
        for turn in range(rounds):
            names = list(steps) if turn % 2 == 0 else list(steps)[::-1]
            found.append({name: self._seconds(name, steps[name]) for name in names})
        return found

    def _seconds(self, name: str, steps: int) -> float:
        dist.barrier()
        started = time.perf_counter()
        for _ in range(steps):
            self._contestants[name].step()
        dist.barrier()
        return (time.perf_counter() - started) / steps


def main(rank: int, address: str, create: Callable[[int], Any] = Workplace) -> None:
    """Answer commands until standard input ends, in the workplace of this rank."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=address, rank=rank, world_size=WORKERS, timeout=PATIENCE
    )
    place = create(rank)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = getattr(place, asked.pop("do"))(**asked)
        print("@" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
