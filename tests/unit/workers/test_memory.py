"""Which worker process has to go when memory runs out, and who is to blame."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion_workers.common.errors import OutOfMemory
from accordion_workers.controller.actor_pool import ActorPool
from accordion_workers.controller.failure_causes import find_cause
from accordion_workers.controller.hang_detection import HEARTBEAT_S
from accordion_workers.spec.job import WorkersSpec
from accordion_workers.training.context import RankProgress
from accordion_workers.worker import memory as memory_module
from accordion_workers.worker.memory import (
    MAX_READINGS,
    SHORTAGE_GRACE_S,
    MemoryGrowth,
    MemoryUse,
    MemoryWatch,
    read_memory_use,
)
from accordion_workers.worker.process import Heartbeat, ProcessLocation
from tests.unit.workers.fake_ray import THERE, FakeRay
from tests.unit.workers.world import launch

GB = 10**9
ALLOCATED = 50_000_000
PRESSED = MemoryUse(process=4 * GB, node=15 * GB, node_total=16 * GB, is_largest=True)
Used = dict[int, MemoryUse]
Make = Callable[..., ActorPool]


@pytest.fixture
def fake() -> FakeRay:
    return FakeRay()


@pytest.fixture
def seated(fake: FakeRay, tmp_path: Path) -> Make:
    """A group of so many that trains; `used` says what each process uses, by pid."""

    def make(number: int, used: Used, **workers: Any) -> ActorPool:
        spec = launch(tmp_path, workers=WorkersSpec.model_validate(workers))
        pool = ActorPool(spec, measure=used.get, **fake.pool_arguments())
        for _ in range(number):
            pool.start()
        poll(pool, fake)
        pool.start_group(range(number), 1, None)
        return pool

    return make


def poll(pool: ActorPool, fake: FakeRay, seconds: float = 2 * HEARTBEAT_S) -> None:
    end = fake.now + seconds
    while fake.now < end:
        pool.poll(0.1)


def test_process_above_its_limit_is_ended_as_out_of_memory(fake: FakeRay, seated: Make) -> None:
    pool = seated(1, used := {}, memory="4GB")
    used[0] = replace(PRESSED, process=4_100_000_000, node=5 * GB)
    poll(pool, fake)
    assert str(pool.results()[0]).startswith("out of memory (4.1 GB; workers.memory is 4.0 GB)")
    assert find_cause(pool.results()).cause == "job"
    assert fake.killed == fake.actors


def test_process_on_another_node_tells_what_it_uses_with_its_sign_of_life(
    fake: FakeRay, seated: Make
) -> None:
    pool = seated(1, {}, memory="4GB")
    pool.start()
    use = replace(PRESSED, process=5 * GB, node=6 * GB)
    fake.actors[1].answer("heartbeat", Heartbeat(step=0, stepped_at=0.0, compute_s=0.0, memory=use))
    fake.actors[1].calls[0].answer = ProcessLocation(node=THERE, host="10.0.0.1", pid=7)
    poll(pool, fake)
    assert fake.signals == [(THERE, 7)]
    assert [one.number for one in pool.processes] == [0]


def test_only_the_largest_process_of_a_node_short_of_memory_is_ended(
    fake: FakeRay, seated: Make
) -> None:
    pool = seated(2, used := {})
    used |= {0: replace(PRESSED, process=GB, is_largest=False), 1: PRESSED}
    poll(pool, fake)
    assert isinstance(pool.results()[1], OutOfMemory)
    assert [one.number for one in pool.processes] == [0]


def test_small_process_ended_for_want_of_memory_is_not_blamed(fake: FakeRay, seated: Make) -> None:
    pool = seated(1, used := {})
    used[0] = replace(PRESSED, process=GB)
    poll(pool, fake, SHORTAGE_GRACE_S + HEARTBEAT_S)
    assert find_cause(pool.results()).cause == "infrastructure"
    assert "its node used 15.0 of 16.0 GB" in str(pool.results()[0])


def test_small_process_outlives_a_large_one_that_gives_its_memory_back(fake, seated: Make) -> None:
    pool = seated(2, used := {})
    used |= {0: replace(PRESSED, process=GB, is_largest=False), 1: PRESSED}
    poll(pool, fake)
    used[0] = replace(PRESSED, process=GB)
    poll(pool, fake, SHORTAGE_GRACE_S - 2 * HEARTBEAT_S)
    used[0] = replace(PRESSED, process=GB, node=11 * GB)
    poll(pool, fake, 2 * SHORTAGE_GRACE_S)
    assert [one.number for one in pool.processes] == [0]


def test_small_processes_are_killed_one_at_a_time(fake: FakeRay, seated: Make) -> None:
    pool = seated(2, used := {})
    used |= dict.fromkeys(range(2), replace(PRESSED, process=GB))
    poll(pool, fake, SHORTAGE_GRACE_S + HEARTBEAT_S)
    assert len(pool.processes) == 1


def seen_by_small_ranks(node_bytes: list[int]) -> list[MemoryWatch]:
    """Eight almost equal ranks on a node of 100 GB, a reading a second; a new one is the largest
    each time.
    """
    watches = [MemoryWatch() for _ in range(8)]
    for second, node in enumerate(node_bytes):
        for number, watch in enumerate(watches):
            largest = second % 8 == number
            use = MemoryUse(
                process=12 * GB + largest, node=node, node_total=100 * GB, is_largest=largest
            )
            watch.add(float(second), use)
    return watches


def test_one_of_several_equal_ranks_that_fill_a_node_is_killed() -> None:
    killed = [
        watch
        for watch in seen_by_small_ranks([96 * GB + n % 2 * 10**8 for n in range(60)])
        if watch.judge(None)
    ]
    assert len(killed) == 1


def test_equal_ranks_live_on_while_a_killed_process_gives_its_memory_back() -> None:
    giving_back = [99 * GB] * 4 + [98 * GB, 96 * GB, 94 * GB, 93 * GB]
    assert not any(watch.judge(None) for watch in seen_by_small_ranks(giving_back))


def test_process_is_the_largest_if_no_other_used_more_when_it_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_module, "_node_memory", lambda: (95 * GB, 100 * GB))
    monkeypatch.setattr(memory_module, "_worker_pids", lambda: [1, 2])
    sizes = {1: iter([12 * GB, 13 * GB]), 2: iter([11 * GB])}
    monkeypatch.setattr(memory_module, "_tree_bytes", lambda pid: next(sizes[pid]))
    use = read_memory_use(1)
    assert use is not None
    assert use.is_largest


def test_process_that_the_kernel_ended_on_a_full_node_is_told_as_out_of_memory(
    fake: FakeRay, seated: Make
) -> None:
    pool = seated(1, used := {})
    used[0] = replace(PRESSED, is_largest=False)
    poll(pool, fake)
    fake.actors[0].die()
    poll(pool, fake)
    assert str(pool.results()[0]).startswith(
        "out of memory (4.0 GB; its node used 15.0 of 16.0 GB)"
    )


def test_process_within_its_limit_trains_on(fake: FakeRay, seated: Make) -> None:
    pool = seated(1, used := {}, memory="4GB")
    used[0] = replace(PRESSED, process=4 * GB, node=5 * GB)
    poll(pool, fake)
    assert pool.results() == {}


def test_limit_of_memory_is_reserved_in_the_cluster(fake: FakeRay, seated: Make) -> None:
    seated(1, {}, memory="4GB")
    seated(1, {})
    assert [options.get("memory") for options in fake.options] == [4 * GB, None]


@pytest.mark.parametrize(("text", "told"), [("4 GB", 4 * GB), ("512MiB", 2**29), (4 * GB, 4 * GB)])
def test_limit_of_memory_is_a_number_of_bytes_or_a_text_with_a_unit(text: Any, told: int) -> None:
    assert WorkersSpec.model_validate({"memory": text}).memory == told


@pytest.mark.parametrize("text", ["a lot", "4", -1, 0, "1kB", True, float("nan"), "9999999TB"])
def test_limit_of_memory_that_makes_no_sense_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="memory"):
        WorkersSpec.model_validate({"memory": text})


def test_use_of_a_process_holds_what_it_has_allocated() -> None:
    before = read_memory_use(os.getpid())
    # New pages from the kernel: `bytes` of this size may lie in memory that earlier tests have
    # freed.
    with mmap(-1, ALLOCATED, flags=MAP_PRIVATE | MAP_ANONYMOUS) as held:
        held.write(b"x" * ALLOCATED)
        after = read_memory_use(os.getpid())
    assert before is not None
    assert after is not None
    assert after.process - before.process > 0.9 * ALLOCATED
    assert 0 < after.node < after.node_total


def test_use_of_a_process_that_is_gone_is_nothing() -> None:
    use = read_memory_use(2**22 + 1)
    assert use is None or use.process == 0


def training(step: int, used: int) -> Heartbeat:
    progress = RankProgress(step=step, doing="training")
    use = replace(PRESSED, process=used, node=used)
    return Heartbeat(step=step, stepped_at=1.0, compute_s=0.0, progress=progress, memory=use)


def train_with(pool: ActorPool, fake: FakeRay, readings: list[int]) -> str:
    """Let the process use so much, one reading a second; return why it ended."""
    for step, used in enumerate(readings):
        fake.actors[0].answers["heartbeat"] = training(step, used)
        poll(pool, fake, HEARTBEAT_S)
    poll(pool, fake)
    return str(pool.results()[0])


def test_process_that_grows_step_by_step_is_told_as_a_leak(fake: FakeRay, seated: Make) -> None:
    told = train_with(seated(1, {}, memory="1GB"), fake, [n * 10**8 for n in range(3, 12)])
    assert told.startswith("out of memory (1.1 GB; workers.memory is 1.0 GB)")
    assert "its memory grew by 6.0 GB a minute; look for objects kept across steps" in told
    assert "micro_batch" not in told


@pytest.mark.parametrize("readings", [[3, 9, 9, 9, 9, 9, 11], [3, 3, 3, 3, 3, 3, 11], [11]])
def test_process_that_needs_much_at_once_is_not_told_as_a_leak(
    fake, seated: Make, readings
) -> None:
    told = train_with(seated(1, {}, memory="1GB"), fake, [n * 10**8 for n in readings])
    assert "lower training.micro_batch" in told
    assert "grew" not in told


def test_memory_that_one_long_step_takes_bit_by_bit_is_not_told_as_a_leak(
    fake, seated: Make
) -> None:
    pool = seated(1, {}, memory="1GB")
    for used in range(3, 12):
        fake.actors[0].answers["heartbeat"] = training(0, used * 10**8)
        poll(pool, fake, HEARTBEAT_S)
    poll(pool, fake)
    assert "lower training.micro_batch" in str(pool.results()[0])


@pytest.mark.parametrize(
    ("gb_a_minute", "told"),
    [(110.0, "110.0 GB a minute"), (0.25, "0.25 GB a minute"), (0.004, "0.24 GB an hour")],
)
def test_growth_is_told_in_digits_that_people_read(gb_a_minute: float, told: str) -> None:
    assert f"its memory grew by {told};" in str(OutOfMemory("2 GB", gb_a_minute * 1e9 / 60))


def test_figures_of_a_shortage_have_as_many_digits_as_they_need(
    fake: FakeRay, seated: Make
) -> None:
    told = train_with(seated(1, {}, memory="1GB"), fake, [1_004_000_000])
    assert told.startswith("out of memory (1.004 GB; workers.memory is 1.000 GB)")


@given(st.lists(st.integers(0, 10**12), max_size=300))
def test_growth_keeps_a_bounded_number_of_readings(readings: list[int]) -> None:
    growth = MemoryGrowth()
    for second, used in enumerate(readings):
        growth.add(second, float(second), used)
    assert len(growth.readings) <= MAX_READINGS
    assert not readings or growth.readings[-1] == (len(readings) - 1.0, readings[-1])
