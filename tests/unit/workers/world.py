"""A cluster without Ray for the processes of one job: its Accordion actor runs in an event loop of
its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

from accordion.base.messages import LayerInfo
from accordion_workers.hub.accordion_actor import AccordionActor
from accordion_workers.hub.actor_client import ActorTimeoutError
from accordion_workers.hub.actor_messages import FencingToken
from accordion_workers.hub.journal import Journal, claim_generation
from accordion_workers.records.contract import (
    CheckpointRecord,
    Cursor,
    Drained,
    JobSpec,
    Launch,
    Record,
    Started,
)

WAIT_S = 120.0
"""Only ends a test that fails."""
JOB = "job-1"
SPEC = JobSpec.model_validate({"task": {"name": "synthetic"}, "policy": {"window": {"epochs": 1}}})
LAYERS = tuple(LayerInfo(name=name, shape=(8, 8)) for name in ("0.weight", "2.weight"))
STARTED = Started(
    world_size=2,
    epoch=0,
    step=0,
    resumed_from=None,
    steps_per_epoch=4,
    layers=LAYERS,
    parameters=2 * 64,
)


class FakeCluster:
    """Implements `ActorClient`. `silent` methods never reach the actor; of `deaf` ones the answer
    is lost.
    """

    def __init__(self) -> None:
        self.actor = AccordionActor()
        self.calls: list[str] = []
        self.silent: set[str] = set()
        self.deaf: set[str] = set()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def __call__(self, method: str, *arguments: Any, timeout_s: float, **named: Any) -> Any:
        self.calls.append(method)
        if method in self.silent or self._closed:
            raise ActorTimeoutError(f"{method} was not heard")
        call = self._submit(getattr(self.actor, method)(*arguments, **named))
        try:
            answer = call.result(timeout_s)
        except (TimeoutError, CancelledError) as error:
            raise ActorTimeoutError(f"no answer to {method} within {timeout_s:g} s") from error
        if method in self.deaf:
            raise ActorTimeoutError(f"the answer to {method} was lost")
        return answer

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Ask as a test does: the road is good, and errors come through."""
        return self._submit(getattr(self.actor, method)(*arguments, **named)).result(WAIT_S)

    def drain(self, confirmed: Cursor | None = None) -> Drained:
        return self.call("drain", JOB, confirmed or Cursor())

    def held(self) -> list[Any]:
        """Payloads of the records that the actor holds, in order."""
        return [record.payload for record in self.drain().records]

    def kill_actor(self) -> None:
        """Another process takes over, with empty hands."""
        self.actor = AccordionActor()

    def close(self) -> None:
        async def cancel_all() -> None:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        self._closed = True
        self._submit(cancel_all()).result(WAIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    def _submit(self, call: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(call, self._loop)


def until(condition: Callable[[], Any]) -> None:
    """Wait for a condition. pytest's time limit ends a test that hangs, and prints where each
    thread stands.
    """
    while not condition():
        threading.Event().wait(0.005)


def note(number: int) -> CheckpointRecord:
    """A payload that can be told from others."""
    return CheckpointRecord(name=f"c{number}", epoch=number, step=number, size_bytes=1, seconds=0.0)


def record(seq: int, *, generation: int = 1, attempt: int = 1) -> Record:
    return Record(attempt=attempt, generation=generation, seq=seq, time=0.0, payload=note(seq))


def cursor_of(item: Record) -> Cursor:
    return Cursor(attempt=item.attempt, generation=item.generation, seq=item.seq)


def token(generation: int = 1, attempt: int = 1) -> FencingToken:
    return FencingToken(attempt=attempt, generation=generation)


def launch(storage: Path, **spec: Any) -> Launch:
    return Launch(
        job_id=JOB, attempt=1, workers=2, storage=str(storage), spec=SPEC.model_copy(update=spec)
    )


def journal(storage: Path, *, attempt: int = 1) -> Journal:
    """Journal of the next generation."""
    return Journal(
        storage, attempt=attempt, generation=claim_generation(storage), clock=lambda: 0.0
    )
