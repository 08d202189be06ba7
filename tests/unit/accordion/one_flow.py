"""One worker's flow by itself, without engine and network: what it asks for, and what it leaves
behind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from accordion.base.wire import Context, Mean, Request, Scatter, Scratch
from accordion.compress.statistics import seeded_generator
from accordion.compressors import COMPRESSORS, level_of, load_function


class Alone:
    """A worker that sends one stack again and again, alone or among workers that send the same."""

    def __init__(self, method: str, options: dict[str, Any], *, world_size: int = 1) -> None:
        self._flow = load_function(COMPRESSORS[method].flow)
        self._options = level_of(method, options, name="alone").options
        self._scratch, self._shared = (Scratch(torch.device("cpu")) for _ in range(2))
        self._step, self._world_size = 0, world_size
        self.requests: list[Request] = []
        """Requests of the last step."""

    def send(self, owed: Tensor, seed: int | None = None, update: Tensor | None = None) -> Tensor:
        """The update, written there if given; `owed` is left with what is owed after.

        Randomness is the step's, or this seed's.
        """
        update = torch.full_like(owed, torch.nan) if update is None else update.fill_(torch.nan)
        draw = self.draw(self._step if seed is None else seed)
        context = Context(
            options=self._options,
            update=update,
            scratch=self._scratch,
            shared=self._shared,
            step=self._step,
            world_size=self._world_size,
            rank=0,
            draw=draw,
        )
        flow, answer = self._flow(owed, context), None
        self.requests, self._step = [], self._step + 1
        while True:
            try:
                asked = flow.send(answer)
            except StopIteration:
                return update
            if asked is None:
                continue
            self.requests.append(asked)
            answer = self._answer(asked)

    def _answer(self, asked: Request) -> Any:
        if isinstance(asked, Mean):
            return asked.buffer
        sent = asked.parts[0] if isinstance(asked, Scatter) else asked.payload
        return [sent] * self._world_size

    @staticmethod
    def draw(seed: int) -> Callable[[str], torch.Generator]:
        """The generators that a step is given."""
        return lambda whose: seeded_generator(seed, whose)


def assert_keeps_its_memory(alone: Alone, first: Tensor, *others: Tensor) -> None:
    """Sending `others`, or `first` again, after `first` allocates nothing above 64 KB."""
    update = torch.empty_like(first)
    alone.send(first.clone(), update=update)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        for owed in others or (first,):
            alone.send(owed, update=update)
    assert [
        event.name for event in profiled.events() if event.self_cpu_memory_usage > 1 << 16
    ] == []
