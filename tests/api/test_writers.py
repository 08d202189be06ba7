"""Requests that write wait for their turn without keeping those that read from theirs."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from accordion_service.api.app_state import NUM_UPLOAD_CHECKS, NUM_WRITERS, WriteSlots
from accordion_service.errors import Unavailable
from accordion_service.job_inputs.code import CodeStore
from accordion_service.store.writes.jobs import JobSubmission
from tests.api.conftest import Live
from tests.api.world import DIGITS
from tests.unit.workers.archives import archive

ZIP, IS_ZIP = archive(("mine.py", b"")), {"Content-Type": "application/zip"}
MANY = 60
"""More than the threads that routes share."""


def test_readers_are_answered_while_more_writers_wait_than_there_are_threads(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    came, go, submit = threading.Semaphore(0), threading.Event(), JobSubmission.submit

    def wait_and_submit(*given: Any) -> Any:
        came.release()
        assert go.wait(timeout=60)
        return submit(*given)

    monkeypatch.setattr(JobSubmission, "submit", wait_and_submit)
    with ThreadPoolExecutor(MANY) as pool, live.client() as client:
        writers = [
            pool.submit(client.post, "/api/v1/jobs", json=DIGITS, timeout=60) for _ in range(MANY)
        ]
        try:
            assert all(came.acquire(timeout=30) for _ in range(NUM_WRITERS))
            for path in ("/livez", "/api/v1/jobs", "/metrics") * 5:
                assert client.get(path, timeout=8).status_code == 200
            assert not came.acquire(blocking=False)
        finally:
            go.set()
        assert {writer.result().status_code for writer in writers} == {201}


def test_readers_are_answered_while_more_uploads_are_checked_than_there_are_threads(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    came, go, keep = threading.Semaphore(0), threading.Event(), CodeStore.keep

    def wait_and_keep(*given: Any) -> Any:
        came.release()
        assert go.wait(timeout=60)
        return keep(*given)

    monkeypatch.setattr(CodeStore, "keep", wait_and_keep)
    with ThreadPoolExecutor(MANY) as pool, live.client() as client:
        uploads = [
            pool.submit(client.post, "/api/v1/code", content=ZIP, headers=IS_ZIP, timeout=60)
            for _ in range(MANY)
        ]
        try:
            assert all(came.acquire(timeout=30) for _ in range(NUM_UPLOAD_CHECKS))
            assert {
                client.get(path, timeout=8).status_code for path in ("/api/v1/jobs", "/metrics") * 5
            } == {200}
            assert not came.acquire(blocking=False)
        finally:
            go.set()
        assert {upload.result().status_code for upload in uploads} == {201}


def test_request_without_a_write_slot_in_time_gets_503_and_takes_none() -> None:
    async def crowd() -> None:
        slots = WriteSlots(num_slots=1, wait_s=0.01)
        async with slots.slot():
            with pytest.raises(
                Unavailable, match=r"1 requests are already writing .* 0.01 s; try again"
            ):
                async with slots.slot():
                    pass
        async with slots.slot():
            pass

    asyncio.run(crowd())
