"""A GPU that the process before still holds, and batches on their way to it."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import torch

from accordion_workers.data.nested import map_tensors, to_device, to_float32
from accordion_workers.worker.gpu_memory import LONGEST_WAIT_S, wait_for_free_memory

Pair = namedtuple("Pair", ["left", "right"])


def test_worker_waits_until_the_memory_of_its_gpu_is_free() -> None:
    free, pauses = [1, 5, 15], list[float]()
    assert wait_for_free_memory(lambda: (free.pop(0), 16), clock=lambda: 0.0, pause=pauses.append)
    assert len(pauses) == 2


def test_worker_does_not_wait_for_ever_for_a_gpu_that_others_use() -> None:
    now = [0.0]
    pause = lambda seconds: now.append(now[-1] + seconds)  # noqa: E731
    assert not wait_for_free_memory(lambda: (1, 16), clock=lambda: now[-1], pause=pause)
    assert LONGEST_WAIT_S <= now[-1] < LONGEST_WAIT_S + 1.0


def test_tensors_are_found_in_tuples_lists_and_dicts() -> None:
    one = torch.ones(1)
    nested: Any = {"a": (one, [one]), "b": Pair(one, "text"), "c": None}
    doubled = map_tensors(lambda tensor: tensor * 2, nested)
    assert doubled == {"a": (one * 2, [one * 2]), "b": Pair(one * 2, "text"), "c": None}
    assert to_device(nested, "cpu") == nested


def test_only_lower_precision_is_cast_to_fp32() -> None:
    kinds = (torch.float16, torch.bfloat16, torch.float64, torch.int64)
    cast = to_float32([torch.ones(1, dtype=kind) for kind in kinds])
    assert [tensor.dtype for tensor in cast] == [
        torch.float32,
        torch.float32,
        torch.float64,
        torch.int64,
    ]
