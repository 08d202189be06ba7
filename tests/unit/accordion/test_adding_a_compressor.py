"""One file, one row, one test: `every_other.py`, the row below, and what it promises; the laws hold
by themselves.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from accordion.compressors import COMPRESSORS, Compressor, ladder_of
from accordion.config import Config
from accordion.messages import Level
from tests.unit.accordion import test_laws_of_compressors as laws
from tests.unit.accordion.lockstep import Cluster

ROW = Compressor(
    summary="every other entry, by turns",
    feedback=True,
    flow="tests.unit.accordion.every_other:every_other_flow",
)
CASES = {"shape": (5, 4), "world_size": 3, "seed": 7, "rung": 0, "method": "every_other"}
OF_LEVELS = [
    laws.test_all_workers_hold_the_same_update,
    laws.test_what_is_sent_and_what_is_owed_add_up_to_the_gradient_and_the_old_debt,
    laws.test_a_change_to_none_sends_the_whole_debt_once,
    laws.test_a_zero_layer_stays_zero_and_does_not_stop_later_gradients,
    laws.test_a_step_that_is_rolled_back_leaves_no_trace,
    laws.test_gradients_in_64_bits_stay_in_64_bits,
]


@pytest.fixture
def level(monkeypatch: pytest.MonkeyPatch) -> Level:
    monkeypatch.setitem(COMPRESSORS, "every_other", ROW)
    return ladder_of("every_other")[0]


@pytest.mark.parametrize("law", OF_LEVELS, ids=lambda law: law.__name__)
def test_the_laws_hold_for_a_method_that_was_just_added(
    law: Callable[..., None], level: Level
) -> None:
    inner = law.hypothesis.inner_test  # type: ignore[attr-defined]
    known = {**CASES, "level": level}
    inner(
        **{name: known[name] for name in inner.__code__.co_varnames[: inner.__code__.co_argcount]}
    )


def test_settings_take_it_by_name(level: Level) -> None:
    assert Config(method="every_other").ladder()[0] == level


def test_it_sends_half_of_the_entries_a_step_and_all_in_two(level: Level) -> None:
    cluster = Cluster({"w": (2, 4)}, 2)
    cluster.switch(level)
    ones = [{"w": torch.ones(2, 4)}, {"w": torch.ones(2, 4)}]
    updates = [cluster.step(ones)[0]["w"].flatten().tolist() for _ in range(2)]
    assert updates == [[1, 0] * 4, [0, 2] * 4]
