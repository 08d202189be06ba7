"""One of four workers of `tests.bench.sharded_learning`: `sharded_learning_worker.py RANK ADDRESS`.

Commands and answers are those of `sharded_worker.py`.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from accordion import Config, LocalSteps, attach
from tests.bench.sharded_worker import (
    BATCH,
    SHARDS,
    TOKENS,
    TORCH,
    WIDTH,
    WORKERS,
    Transformer,
    main,
)

STEPS, WARM_UP, EPOCH_STEPS, EVALUATE_EVERY = 192, 16, 16, 8
HELD_OUT = 8
"""Sequences that each worker evaluates."""


def _quantized(bits: int, local_steps: LocalSteps | None = None) -> Config:
    level = {"bits": bits}
    return Config(method="qsgd", low=level, high=level, local_steps=local_steps)


_BY_RATE = LocalSteps(low=16, high=48)
_AFTER_START = LocalSteps(low=16, high=48, start_steps=58)
OURS: Mapping[str, Config] = {
    "rank 4": Config(method="powersgd", low={"rank": 4}, high={"rank": 4}),
    "4 bits": _quantized(4),
    "rounds of 16 and more, 4 bits": _quantized(4, _BY_RATE),
    "30 % start, then rounds of 16 and more, 4 bits": _quantized(4, _AFTER_START),
    "30 % start, then rounds of 16 and more, 2 bits": _quantized(2, _AFTER_START),
}
"""Rounds become longer as the learning rate falls."""


def scheduled_rate(peak: float, step: int) -> float:
    """Return the learning rate of a step, with a warm-up and a cosine after it."""
    if step < WARM_UP:
        return peak * (step + 1) / WARM_UP
    return peak * 0.5 * (1.0 + math.cos(math.pi * (step - WARM_UP) / (STEPS - WARM_UP)))


class CausalTransformer(Transformer):
    """A small language model of which no token sees later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(TOKENS, WIDTH)
        mask = nn.Transformer.generate_square_subsequent_mask(TOKENS)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens) + self.places.weight
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.mask, is_causal=True)
        logits: Tensor = self.head(hidden)
        return logits


class Workplace:
    """This rank's text, and the grid of workers."""

    def __init__(self, rank: int) -> None:
        shape = (WORKERS // SHARDS, SHARDS)
        self._mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        self._rank = rank
        file = Path(os.environ["ACCORDION_DATA"], "tinyshakespeare", "input.txt")
        text = torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8).long()
        first_held_out = int(0.9 * len(text))
        self._text, held_out = text[:first_held_out], text[first_held_out:]
        draw = torch.Generator().manual_seed(rank)
        self._held_out = _draw(held_out, HELD_OUT, draw)

    def start(self) -> bool:
        """Answer once this worker is ready, so that its start keeps no processor busy."""
        return True

    def learn(self, name: str, rate: float, seed: int) -> list[list[float]]:
        """Train; return step, seconds without evaluations, and held-out loss at each of these."""
        torch.manual_seed(seed)
        model = _create_model(name, self._mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        session, take = None, optimizer.step
        if name in OURS:
            replicas = self._mesh["replicate"].get_group()
            session = attach(model, OURS[name], optimizer, replicate_group=replicas)
            take = session.step
        draw = torch.Generator().manual_seed(1000 * seed + self._rank)
        points, seconds = [[0.0, 0.0, self._evaluate(model)]], 0.0
        dist.barrier()
        started = time.perf_counter()
        for step in range(STEPS):
            for group in optimizer.param_groups:
                group["lr"] = scheduled_rate(rate, step)
            _mean_loss(model, _draw(self._text, BATCH, draw)).backward()
            take()
            optimizer.zero_grad()
            done = step + 1
            if session is not None and done % EPOCH_STEPS == 0:
                session.end_epoch(lr=scheduled_rate(rate, step), next_lr=scheduled_rate(rate, done))
            if session is not None and done == STEPS:
                session.finish_round()
            if done % EVALUATE_EVERY == 0:
                seconds += time.perf_counter() - started
                points.append([done, seconds, self._evaluate(model)])
                dist.barrier()
                started = time.perf_counter()
        return points

    @torch.no_grad()
    def _evaluate(self, model: nn.Module) -> float:
        """Return the mean over all workers; within a round, each replica's own parameters count.

        There is no dropout, so the model need not leave its training mode.
        """
        loss = _mean_loss(model, self._held_out)
        dist.all_reduce(loss)
        return float(loss) / WORKERS


def _create_model(name: str, mesh: DeviceMesh) -> nn.Module:
    model = CausalTransformer()
    for part in (*model.blocks, model):
        if name in OURS:
            fully_shard(part, mesh=mesh["shard"])
        else:
            fully_shard(part, mesh=mesh, **TORCH[name])
    return model


def _draw(text: Tensor, number: int, draw: torch.Generator) -> Tensor:
    starts = torch.randint(0, len(text) - TOKENS - 1, (number,), generator=draw)
    return torch.stack([text[start : start + TOKENS + 1] for start in starts.tolist()])


def _mean_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Workplace)
