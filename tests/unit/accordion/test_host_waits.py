"""On accelerators a flow only enqueues work: nothing that it does depends on values that the host
must wait for.

A tensor on the device `meta` has no values, so whatever looks at one raises.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from accordion.base.wire import Context, Mean, Scatter, Scratch
from accordion.compress.statistics import seeded_generator
from accordion.compressors import COMPRESSORS, adacomp, ladder_of, load_function

LENGTH = 1 << 16
"""Values of a layer, from which `topk` samples on a CPU; fewer than a block of `adacomp`."""
WORKERS = 3
"""Number of workers from which `qsgd` scatters."""


def _run(method: str, owed: Tensor, gradient: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Drive a flow of equal workers to its end; what the optimizer gets and what is owed."""
    row, options = COMPRESSORS[method], ladder_of(method)[0].options
    owed = owed.view(1, 256, -1) if row.matrices else owed.view(1, -1)
    warm = torch.ones(1, 4, LENGTH // 256, device=owed.device) if row.warm_start else None
    context = Context(
        options=options,
        update=torch.zeros_like(owed),
        scratch=Scratch(owed.device),
        shared=Scratch(owed.device),
        step=0,
        world_size=WORKERS,
        rank=0,
        warm=warm,
        draw=lambda whose: seeded_generator(0, whose),
        gradient=gradient,
    )
    flow, answer = load_function(row.flow)(owed, context), None
    while True:
        try:
            request = flow.send(answer)
        except StopIteration:
            return context.update, owed
        if request is None:
            continue
        if isinstance(request, Mean):
            answer = request.buffer.clone()
        else:
            sent = request.parts[0] if isinstance(request, Scatter) else request.payload
            answer = [sent.clone() for _ in range(WORKERS)]


@pytest.mark.parametrize("method", sorted(set(COMPRESSORS) - {"adacomp"}))
def test_a_flow_needs_no_value_on_the_host(method):
    update, _ = _run(method, torch.empty(LENGTH, device="meta"))
    assert update.device.type == "meta"


class _Waits(TorchDispatchMode):
    """Counts the operations for whose results the host would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name in {"index", "index_put_"} and any(
            i is not None and i.dtype == torch.bool for i in args[1]
        )
        if by_mask or name in {
            "_local_scalar_dense",
            "nonzero",
            "is_nonzero",
            "masked_select",
            "equal",
        }:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("zeros", [False, True])
def test_adacomp_waits_once_a_layer_for_the_number_of_entries_that_it_sends(monkeypatch, zeros):
    gradient = torch.randn(1, LENGTH, generator=torch.Generator().manual_seed(0))
    owed = torch.randn(1, LENGTH, generator=torch.Generator().manual_seed(1))
    if zeros:  # bins without an entry to send
        owed[:, : LENGTH // 2], gradient[:, : LENGTH // 2] = 0, 0
    on_cpu = _run("adacomp", owed.clone(), gradient.clone())
    monkeypatch.setattr(adacomp, "_is_needed", lambda device, look: True)
    with _Waits() as waits:
        elsewhere = _run("adacomp", owed.clone(), gradient.clone())
    assert waits.counts == {"nonzero": 1}
    assert all(torch.equal(a, b) for a, b in zip(on_cpu, elsewhere, strict=True))
