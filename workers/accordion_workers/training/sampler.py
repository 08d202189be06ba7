"""Which worker reads which sample, as pure functions of seed, epoch, position and world size.

An epoch's order is divided into global batches, a batch into micro-batches, and each worker takes
contiguous whole micro-batches: equally many, or more on faster workers. A batch is a `range` of
places in the epoch's order, a micro-batch a smaller one.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor


def derive_seed(*parts: str | int) -> int:
    """Return a seed of 63 bits; unlike a sum of the parts, neighbours such as (seed 1, epoch 0) and
    (seed 0, epoch 1) share nothing.
    """
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def epoch_order(num_samples: int, *, seed: int, epoch: int) -> Tensor:
    """Return the indices of all samples, int64 [num_samples], in the order in which this epoch
    visits them.
    """
    generator = torch.Generator().manual_seed(derive_seed("order", seed, epoch))
    return torch.randperm(num_samples, generator=generator)


def num_batches(num_samples: int, global_batch: int) -> int:
    """Return the steps of an epoch; the last batch may be short."""
    return -(-num_samples // global_batch)


def batch_at(samples: int, *, num_samples: int, global_batch: int) -> range:
    """Return the batch that begins where `samples` of the epoch are done.

    BatchNorm cannot train on a single sample: if only one would be left for the last batch, this
    batch leaves it a second. Jobs with a global batch of one or two keep it.
    """
    left = num_samples - samples
    leaves_one = global_batch > 2 and left == global_batch + 1
    return range(samples, samples + (global_batch - 1 if leaves_one else min(global_batch, left)))


def micro_batches(batch: range, micro_batch: int) -> list[range]:
    """Divide the batch into micro-batches; the last may be short.

    BatchNorm cannot train on a single sample: a last micro-batch of one sample takes another one
    from its predecessor, or joins it if that has only two.
    """
    starts = list(range(0, len(batch), micro_batch))
    if micro_batch > 1 and len(starts) > 1 and len(batch) - starts[-1] == 1:
        starts[-1:] = [starts[-1] - 1] if micro_batch > 2 else []
    return [batch[start:stop] for start, stop in pairwise([*starts, len(batch)])]


def even_counts(number: int, world_size: int, *, shards: int = 1) -> tuple[int, ...]:
    """Return how many of `number` micro-batches each rank takes if all take equally many; counts
    differ by at most one, the first ranks take more. Counts of replicas of `shards` neighbors
    differ by at most one, too.

    Ranks have none if there are fewer micro-batches than workers, such as in the last batch of an
    epoch.
    """
    least, more = divmod(number, world_size)
    replicas = world_size // shards
    turns = (rank % shards * replicas + rank // shards for rank in range(world_size))
    return tuple(least + (turn < more) for turn in turns)


@lru_cache(maxsize=64)
def balanced_counts(number: int, micro_batch_s: tuple[float, ...]) -> tuple[int, ...]:
    """Return how many of `number` micro-batches each rank takes so that the last worker is done as
    early as possible, given each rank's seconds per micro-batch.

    Every rank takes at least one if there are enough, because a worker without samples runs a
    backward pass all the same. Equal times give `even_counts`.
    """
    counts = [1 if number >= len(micro_batch_s) else 0] * len(micro_batch_s)
    done_s = [((counts[rank] + 1) * seconds, rank) for rank, seconds in enumerate(micro_batch_s)]
    heapq.heapify(done_s)
    for _ in range(number - sum(counts)):
        seconds, rank = done_s[0]
        counts[rank] += 1
        heapq.heapreplace(done_s, (seconds + micro_batch_s[rank], rank))
    return tuple(counts)


def rank_shard(pieces: Sequence[range], *, rank: int, counts: Sequence[int]) -> Sequence[range]:
    """Return the rank's contiguous part of the micro-batches, given how many each rank takes."""
    start = sum(counts[:rank])
    return pieces[start : start + counts[rank]]


def loss_weight(piece: range, batch: range, *, world_size: int) -> float:
    """Return the factor for the mean loss of a micro-batch.

    The workers' gradients are averaged, that is divided by the world size; with this factor their
    sum is the gradient of the batch's mean loss, however the batch is divided. It is exactly 1.0 if
    every worker has one micro-batch of equal size.
    """
    return len(piece) * world_size / len(batch)
