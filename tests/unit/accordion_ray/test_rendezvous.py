"""Ranks as threads that share a store: whoever does not call is named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from torch.distributed import HashStore

from accordion_ray import rendezvous
from accordion_ray.errors import AttachError
from accordion_ray.rendezvous import wait_for_ranks
from tests.unit.workers.world import until


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> HashStore:
    store = HashStore()
    monkeypatch.setattr(rendezvous, "default_store", lambda: store)
    return store


def test_all_ranks_pass_call_after_call() -> None:
    with ThreadPoolExecutor(3) as ranks:
        for _ in range(5):
            call = partial(wait_for_ranks, "attach", world_size=3, timeout_s=20.0)
            for passed in [ranks.submit(call, rank=rank) for rank in range(3)]:
                passed.result()


def test_ranks_that_do_not_call_are_named() -> None:
    sentence = (
        r"save_state\(\) was called on rank 0, but not on rank 1, 2 within 0.1 s; call it on every"
        r" rank"
    )
    with pytest.raises(AttachError, match=sentence):
        wait_for_ranks("save_state", rank=0, world_size=3, timeout_s=0.1)


def test_another_call_of_a_rank_does_not_count() -> None:
    with ThreadPoolExecutor(2) as ranks:
        one = ranks.submit(wait_for_ranks, "attach", rank=0, world_size=2, timeout_s=0.1)
        other = ranks.submit(wait_for_ranks, "save_state", rank=1, world_size=2, timeout_s=0.1)
        assert isinstance(one.exception(), AttachError)
        assert isinstance(other.exception(), AttachError)


def test_a_single_rank_needs_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(rendezvous, "default_store")
    wait_for_ranks("attach", rank=0, world_size=1, timeout_s=0.1)


def test_a_rank_that_calls_late_is_named_and_waited_for(
    store: HashStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rendezvous, "WARN_AFTER_S", 0.05)
    call = partial(wait_for_ranks, "save_state", world_size=2, timeout_s=20.0)
    with ThreadPoolExecutor(2) as ranks:
        early = ranks.submit(call, rank=0)
        until(lambda: "was called on rank 0, but not on rank 1 within 0.05 s" in caplog.text)
        ranks.submit(call, rank=1).result()
        early.result()
