from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accordion_workers.records.contract import Position
from accordion_workers.training.sampler import (
    balanced_counts,
    batch_at,
    derive_seed,
    epoch_order,
    even_counts,
    loss_weight,
    micro_batches,
    num_batches,
    rank_shard,
)

SAMPLES = st.integers(1, 300)
BATCH = st.integers(1, 80)
MICRO = st.integers(1, 40)
WORLD = st.integers(1, 7)


def places(pieces) -> list[int]:
    return [place for piece in pieces for place in piece]


def shares(batch: range, micro: int, world: int):
    pieces = micro_batches(batch, micro)
    counts = even_counts(len(pieces), world)
    return [rank_shard(pieces, rank=rank, counts=counts) for rank in range(world)]


@given(st.integers(0, 200), st.integers(1, 6), st.integers(1, 6))
def test_replicas_take_as_many_micro_batches_as_workers_without_shards(number, replicas, shards):
    counts = even_counts(number, replicas * shards, shards=shards)
    assert sum(counts) == number
    assert max(counts) - min(counts) <= 1
    by_replica = [sum(counts[rank : rank + shards]) for rank in range(0, len(counts), shards)]
    assert tuple(by_replica) == even_counts(number, replicas)


@given(SAMPLES, BATCH, MICRO, st.lists(WORLD, min_size=1, max_size=8), st.integers(0, 50))
def test_any_sequence_of_resizes_visits_every_sample_of_an_epoch_exactly_once(
    samples, batch, micro, worlds, epoch
):
    order, done, seen = epoch_order(samples, seed=3, epoch=epoch), 0, []
    for step in range(num_batches(samples, batch)):
        now = batch_at(done, num_samples=samples, global_batch=batch)
        for mine in shares(now, micro, worlds[step % len(worlds)]):
            seen += order[torch.tensor(places(mine), dtype=torch.long)].tolist()
        done = now.stop
    assert sorted(seen) == list(range(samples))


@dataclass
class Job:
    """A job whose groups end, grow, shrink and crash; its history is what the surviving parameters
    have seen.
    """

    samples: int
    micro: int
    world: int = 1
    batch: int = 1
    position: Position = field(default_factory=Position)
    history: list[tuple[int, int]] = field(default_factory=list)
    """Epoch and sample, in the order in which they were trained on."""
    saved: tuple[Position, int] = (Position(), 0)
    """Newest checkpoint: its position, and how much of the history it holds."""

    def step(self) -> None:
        epoch, order = (
            self.position.epoch,
            epoch_order(self.samples, seed=3, epoch=self.position.epoch),
        )
        now = batch_at(self.position.samples, num_samples=self.samples, global_batch=self.batch)
        for mine in shares(now, self.micro, self.world):
            taken = order[torch.tensor(places(mine), dtype=torch.long)].tolist()
            self.history += [(epoch, sample) for sample in taken]
        self.position = Position(epoch=epoch, samples=now.stop)
        if now.stop == self.samples:
            self.position = Position(epoch=epoch + 1)

    def checkpoint(self) -> None:
        self.saved = (self.position, len(self.history))

    def crash(self) -> None:
        self.position, kept = self.saved
        del self.history[kept:]

    def resize(self, world: int) -> None:
        self.checkpoint()
        self.world = world


STEP, CRASH, CHECKPOINT = (st.tuples(st.just(name)) for name in ("step", "crash", "checkpoint"))
RESIZE, LOSE, REBATCH = (
    st.tuples(st.just(name), size)
    for name, size in (("resize", WORLD), ("lose", WORLD), ("batch", BATCH))
)
EVENTS = st.lists(
    st.one_of(STEP, STEP, STEP, CRASH, CHECKPOINT, RESIZE, LOSE, REBATCH), max_size=40
)


def happen(job: Job, event: str, *size: int) -> None:
    match event:
        case "step" | "crash" | "checkpoint":
            getattr(job, event)()
        case "resize":
            job.resize(*size)
        case "lose":
            job.crash()
            (job.world,) = size
        case "batch":
            (job.batch,) = size


@given(st.integers(1, 80), MICRO, EVENTS)
def test_the_surviving_history_holds_every_sample_of_an_epoch_exactly_once(samples, micro, events):
    job = Job(samples=samples, micro=micro, world=2, batch=17)
    for event in events:
        happen(job, *event)
    last = job.position.epoch
    while job.position.epoch == last:
        job.step()
    assert sorted(job.history) == [
        (epoch, sample) for epoch in range(last + 1) for sample in range(samples)
    ]
    assert [epoch for epoch, _ in job.history] == sorted(epoch for epoch, _ in job.history)


@given(SAMPLES, MICRO, BATCH, WORLD)
def test_a_crash_costs_the_steps_since_the_last_checkpoint_which_repeat_identically(
    samples, micro, batch, world
):
    job = Job(samples=samples, micro=micro, world=world, batch=batch)
    job.step()
    job.checkpoint()
    job.step()
    before = list(job.history)
    job.crash()
    job.world = world + 1
    job.step()
    assert job.history == before


@given(SAMPLES, MICRO, WORLD)
def test_shares_are_contiguous_whole_micro_batches_and_differ_by_one_at_most(samples, micro, world):
    parts = shares(range(samples), micro, world)
    assert [piece for part in parts for piece in part] == micro_batches(range(samples), micro)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


PIECE_S = st.lists(st.integers(1, 50).map(float), min_size=1, max_size=7).map(tuple)


@given(st.integers(0, 200), PIECE_S)
def test_balanced_counts_are_those_with_which_the_last_worker_is_done_first(number, piece_s):
    counts = balanced_counts(number, piece_s)
    assert sum(counts) == number
    least = int(number >= len(piece_s))
    assert min(counts) >= least
    slowest_s = max(count * seconds for count, seconds in zip(counts, piece_s, strict=True))
    done_before = [max(least, math.ceil(slowest_s / seconds) - 1) for seconds in piece_s]
    one_each = max(piece_s, default=0.0) if least else 0.0
    assert slowest_s == one_each or number == 0 or sum(done_before) < number


@given(st.integers(0, 200), WORLD, st.integers(1, 9))
def test_equally_fast_workers_take_equally_many(number, world, seconds):
    assert balanced_counts(number, (float(seconds),) * world) == even_counts(number, world)


def test_a_worker_half_as_fast_takes_half_as_many():
    assert balanced_counts(12, (1.0, 2.0)) == (8, 4)
    assert balanced_counts(4, (3.0, 1.0)) == (1, 3)
    assert balanced_counts(3, (1.0, 900.0)) == (2, 1)
    assert balanced_counts(1, (3.0, 1.0)) == (0, 1)


@given(SAMPLES, MICRO, WORLD)
def test_weighted_and_averaged_micro_batches_give_the_mean_over_the_batch(samples, micro, world):
    batch = range(samples)
    values = [0.5 * place for place in batch]
    sums = [
        sum(
            sum(values[p] for p in piece) / len(piece) * loss_weight(piece, batch, world_size=world)
            for piece in part
        )
        for part in shares(batch, micro, world)
    ]
    assert sum(sums) / world == pytest.approx(sum(values) / samples, rel=1e-12, abs=1e-12)


@given(st.integers(1, 64), WORLD)
def test_the_weight_is_exactly_one_when_every_worker_has_one_equal_piece(micro, world):
    batch = range(micro * world)
    assert {
        loss_weight(piece, batch, world_size=world) for piece in micro_batches(batch, micro)
    } == {1.0}


def test_a_worker_gets_an_empty_shard_when_workers_outnumber_micro_batches():
    assert [len(part) for part in shares(range(20), 16, 3)] == [1, 1, 0]


def test_only_the_last_batch_and_the_last_micro_batch_are_short():
    assert batch_at(1408, num_samples=1437, global_batch=64) == range(1408, 1437)
    assert [len(piece) for piece in micro_batches(range(1408, 1437), 16)] == [16, 13]


def test_the_order_depends_on_seed_and_epoch_and_on_nothing_else():
    first = epoch_order(100, seed=0, epoch=1)
    torch.rand(7)
    assert torch.equal(first, epoch_order(100, seed=0, epoch=1))
    assert not torch.equal(first, epoch_order(100, seed=1, epoch=0))
    assert not torch.equal(first, epoch_order(100, seed=0, epoch=2))


def test_drawing_an_order_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    epoch_order(100, seed=0, epoch=1)
    assert torch.equal(before, torch.get_rng_state())


def test_neighbouring_seeds_share_nothing():
    assert (
        len({derive_seed("sample", seed, epoch, 0) for seed in range(10) for epoch in range(10)})
        == 100
    )


@given(st.integers(2, 300), st.integers(2, 40))
def test_no_piece_has_one_sample_where_micro_batches_have_more(size: int, micro_batch: int) -> None:
    pieces = micro_batches(range(size), micro_batch)
    assert [sample for piece in pieces for sample in piece] == list(range(size))
    assert min(map(len, pieces)) >= 2
    assert max(map(len, pieces)) <= max(micro_batch, 3)


def test_a_last_piece_of_one_sample_takes_one_of_the_piece_before() -> None:
    assert [len(piece) for piece in micro_batches(range(33), 16)] == [16, 15, 2]
    assert [len(piece) for piece in micro_batches(range(5), 2)] == [2, 3]
    assert [len(piece) for piece in micro_batches(range(3), 1)] == [1, 1, 1]


@given(st.integers(2, 300), st.lists(st.integers(3, 80), min_size=1))
def test_no_batch_has_one_sample_whatever_sizes_batches_have(
    samples: int, sizes: list[int]
) -> None:
    done, batches = 0, []
    while done < samples:
        size = sizes[len(batches) % len(sizes)]
        batches.append(batch_at(done, num_samples=samples, global_batch=size))
        assert len(batches[-1]) <= size
        done = batches[-1].stop
    assert places(batches) == list(range(samples))
    assert min(map(len, batches)) >= 2
    assert len(sizes) > 1 or len(batches) == num_batches(samples, sizes[0])


def test_a_last_batch_of_one_sample_takes_one_of_the_batch_before() -> None:
    assert batch_at(64, num_samples=129, global_batch=64) == range(64, 127)
    assert batch_at(127, num_samples=129, global_batch=64) == range(127, 129)


def test_a_checkpoint_that_left_one_sample_goes_on_with_it() -> None:
    assert batch_at(128, num_samples=129, global_batch=64) == range(128, 129)
