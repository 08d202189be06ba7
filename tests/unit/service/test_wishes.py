"""What a person may wish of a job: the last value that is accepted, and the first that is not."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from accordion.config import BatchConfig
from service.domain.wishes import check_batch, check_interval, check_layers, check_level, matching
from service.errors import Invalid
from workers.contract import JobSpec

LADDER = JobSpec.model_validate({"task": {"name": "digits-mlp"}}).config().ladder()
BATCH = BatchConfig(low=64, high=512)


def refused(pointer: str | None) -> Any:
    """Invalid with that pointer; None is accepted."""
    return pytest.raises(Invalid) if pointer is not None else nullcontext()


def check(pointer: str | None, wish: Any, *given: Any, **more: Any) -> None:
    with refused(pointer) as raised:
        wish(*given, **more)
    assert raised is None or raised.value.pointer == pointer


@pytest.mark.parametrize(
    ("level", "pointer"),
    [
        (LADDER[0].name, None),
        ("no-such-rung", "/level"),
        (0, None),
        (len(LADDER) - 1, None),
        (len(LADDER), "/level"),
        ({"rank": 3}, None),
        ({"rank": 0}, "/level"),
        ({"method": "topk", "density": 0.5}, None),
        ({"method": "no-such-method"}, "/level"),
    ],
)
def test_a_level_is_a_rung_or_options_of_a_method(level: Any, pointer: str | None) -> None:
    check(pointer, check_level, level, LADDER)


@pytest.mark.parametrize(
    ("level", "layers", "pointer"),
    [
        ("low", ["*"], None),
        ("high", ["*"], None),
        ("middle", ["*"], "/level"),
        (8, ["*"], None),
        (7, ["*"], "/level"),
        ({"rank": 2}, ["*"], "/level"),
        ("low", ["fc1"], "/layers"),
    ],
)
def test_a_batch_is_one_of_its_levels_or_a_size_of_which_everybody_gets_a_part(
    level: Any, layers: list[str], pointer: str | None
) -> None:
    check(pointer, check_batch, level, layers, batch=BATCH, least=8)


def test_a_job_without_batch_levels_keeps_its_batch() -> None:
    check("/target", check_batch, "low", ["*"], batch=None, least=8)


@pytest.mark.parametrize(
    ("apply_at", "until", "pointer"),
    [
        ("next_step", None, None),
        ("next_epoch", None, None),
        (9, None, None),
        (10, None, "/apply_at"),
        (0, 6, None),
        (0, 5, "/until"),
        (7, 8, None),
        (7, 7, "/until"),
        ("next_epoch", 7, None),
        ("next_epoch", 6, "/until"),
    ],
)
def test_an_interval_has_an_epoch_that_is_still_to_come(
    apply_at: str | int, until: int | None, *, pointer: str | None
) -> None:
    check(pointer, check_interval, apply_at, until, epoch=5, epochs=10)


@pytest.mark.parametrize(
    ("apply_at", "pointer"), [("next_step", None), ("next_epoch", "/apply_at")]
)
def test_the_last_epoch_has_no_next_one(apply_at: str, pointer: str | None) -> None:
    check(pointer, check_interval, apply_at, None, epoch=9, epochs=10)


@pytest.mark.parametrize(
    ("globs", "names", "pointer"),
    [
        (["fc*", "fc1"], ["fc1", "fc2"], None),
        (["fc1", "conv*"], ["fc1", "fc2"], "/layers/1"),
        (["conv*"], [], None),
        (["FC1"], ["fc1"], "/layers/0"),
    ],
)
def test_every_glob_matches_a_layer_once_layers_are_known(
    globs: list[str], names: list[str], pointer: str | None
) -> None:
    check(pointer, check_layers, globs, names)


def test_globs_speak_of_every_layer_that_one_of_them_matches() -> None:
    assert matching(["fc[12]", "head"], ["fc1", "fc2", "fc3", "head"]) == {"fc1", "fc2", "head"}
