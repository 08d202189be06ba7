"""A new compression method is one file, `every_other.py`, and one row, the one below; the laws
apply to it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from accordion.base.messages import Level
from accordion.compressors import COMPRESSORS, Compressor, ladder_of
from accordion.config import Config
from tests.unit.accordion.compressor_laws import LAWS, sent_and_owed_add_up
from tests.unit.accordion.lockstep import Cluster

ROW = Compressor(
    summary="every other entry, by turns",
    feedback=True,
    flow="tests.unit.accordion.every_other:every_other_flow",
)


@pytest.fixture
def level(monkeypatch: pytest.MonkeyPatch) -> Level:
    monkeypatch.setitem(COMPRESSORS, "every_other", ROW)
    return ladder_of("every_other")[0]


@pytest.mark.parametrize("law", [*LAWS, sent_and_owed_add_up], ids=lambda law: law.__name__)
def test_the_laws_hold_for_a_method_that_was_just_added(
    law: Callable[..., None], level: Level
) -> None:
    law(level, shape=(5, 4), world_size=3, seed=7)


def test_settings_take_it_by_name(level: Level) -> None:
    assert Config(method="every_other").ladder()[0] == level


def test_it_sends_half_of_the_entries_a_step_and_all_in_two(level: Level) -> None:
    cluster = Cluster({"w": (2, 4)}, 2)
    cluster.switch(level)
    ones = [{"w": torch.ones(2, 4)}, {"w": torch.ones(2, 4)}]
    updates = [cluster.step(ones)[0]["w"].flatten().tolist() for _ in range(2)]
    assert updates == [[1, 0] * 4, [0, 2] * 4]
