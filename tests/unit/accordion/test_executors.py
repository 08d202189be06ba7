"""The exchange thread: whatever ends an exchange, nobody waits for ever."""

from __future__ import annotations

import threading

import pytest
import torch

from accordion.base.errors import HookError
from accordion.compress.executors import ThreadExecutor

PATIENCE_S = 20.0


@pytest.mark.parametrize(
    "ending", [SystemExit("planted"), KeyboardInterrupt("planted"), GeneratorExit("planted")]
)
def test_check_raises_an_error_when_an_exchange_ends_by_a_base_exception(ending):
    executor, answered = ThreadExecutor(torch.device("cpu")), threading.Event()

    def exchange() -> None:
        raise ending

    futures = [executor.create_future() for _ in range(2)]
    futures[-1].add_done_callback(lambda _: answered.set())
    for run, future in zip((exchange, lambda: None), futures, strict=True):
        executor.submit(run, [(future, torch.zeros(1))])
    assert answered.wait(PATIENCE_S)
    with pytest.raises(HookError, match=f"{type(ending).__name__}.*planted") as caught:
        executor.raise_failure()
    assert caught.value.__cause__ is ending
