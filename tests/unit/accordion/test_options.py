"""Options: one record checks a value, fills its default and describes itself."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.base.errors import ConfigError
from accordion.base.options import Option, check_options, options_schema

RANK = Option(default=4, minimum=1, maximum=8)
DENSITY = Option(default=0.5, minimum=0.0, maximum=1.0)
KIND = Option(default="fp32", choices=("fp32", "fp16"), help="format")
FLAG = Option(default=False)
VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers())
)


@given(value=VALUES)
@pytest.mark.parametrize("option", [RANK, DENSITY, KIND, FLAG])
def test_a_value_is_taken_as_the_type_of_the_option_or_refused(option, value) -> None:
    try:
        taken = option.check(value, "it")
    except ConfigError:
        return
    assert type(taken) is type(option.default)
    assert taken == value


@given(value=st.integers())
def test_a_whole_number_is_taken_exactly_within_the_limits(value) -> None:
    if 1 <= value <= 8:
        assert RANK.check(value, "rank") == value
    else:
        with pytest.raises(ConfigError, match=r"rank is .*; it must be at least 1 and at most 8"):
            RANK.check(value, "rank")


@pytest.mark.parametrize(
    ("option", "value"),
    [(RANK, True), (RANK, 2.5), (RANK, "2"), (FLAG, 1), (DENSITY, math.nan), (DENSITY, True)],
)
def test_a_value_of_another_type_is_refused(option, value) -> None:
    with pytest.raises(ConfigError):
        option.check(value, "it")


def test_a_whole_number_becomes_a_float_where_one_is_asked() -> None:
    assert type(DENSITY.check(1, "density")) is float


def test_a_float_without_a_fraction_becomes_an_integer_where_one_is_asked() -> None:
    assert type(RANK.check(2.0, "rank")) is int


@pytest.mark.parametrize(
    ("option", "value", "said"), [(RANK, 1e300, "1e+300"), (RANK, 9.0, "9.0"), (DENSITY, 2, "2")]
)
def test_a_value_out_of_range_is_shown_as_it_was_given(option, value, said) -> None:
    with pytest.raises(ConfigError, match=f"^it is {re.escape(said)}; it must be at least"):
        option.check(value, "it")


def test_a_choice_that_is_unknown_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'fp8'; known are fp32, fp16"):
        KIND.check("fp8", "kind")


def test_options_that_are_left_out_get_their_defaults() -> None:
    assert check_options({"rank": 2}, {"rank": RANK, "kind": KIND}, "it") == {
        "rank": 2,
        "kind": "fp32",
    }


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="it has no option 'rang'; known are kind, rank"):
        check_options({"rang": 2}, {"rank": RANK, "kind": KIND}, "it")
    with pytest.raises(ConfigError, match=r"it takes none; set it to \{\}"):
        check_options({"rang": 2}, {}, "it")


def test_an_option_that_is_required_must_be_given_and_not_be_empty() -> None:
    known = {"path": Option(default="", required=True, help="where the data are"), "kind": KIND}
    assert check_options({"path": "here"}, known, "it") == {"path": "here", "kind": "fp32"}
    for options in ({}, {"path": ""}, {"path": None}):
        with pytest.raises(ConfigError, match="it needs option 'path'; give where the data are"):
            check_options(options, known, "it")
    assert options_schema(known)["required"] == ["path"]


def test_the_schema_says_what_the_check_does() -> None:
    assert options_schema({"rank": RANK, "kind": KIND}) == {
        "type": "object",
        "properties": {
            "rank": {"type": "integer", "default": 4, "minimum": 1, "maximum": 8},
            "kind": {
                "type": "string",
                "default": "fp32",
                "enum": ["fp32", "fp16"],
                "description": "format",
            },
        },
        "additionalProperties": False,
    }
