"""Short texts of the command line."""

from __future__ import annotations

import pytest

from service.commands.cli_support import create_console
from service.commands.format import format_milliseconds, format_rounded, format_sent_bytes


@pytest.mark.parametrize(
    ("payload", "said"),
    [(50, "2.0x less than dense"), (1000, "10.0x more than dense"), (100, "as much as dense")],
)
def test_bytes_are_compared_with_dense_in_the_right_direction(payload: int, said: str) -> None:
    assert format_sent_bytes({"payload": payload, "dense": 100, "fp16": 50}).endswith(said)


@pytest.mark.parametrize(
    ("value", "said"),
    [(12345.0, "12300"), (99.97, "100"), (1.5, "1.5"), (0.01234, "0.0123"), (2e6, "2000000")],
)
def test_rounded_numbers_have_no_exponent(value: float, said: str) -> None:
    assert format_rounded(value) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0997, "99.7 ms"), (0.9999, "1000 ms"), (1.234, "1.23 s"), (150, "150 s")],
)
def test_short_times_are_in_milliseconds_and_long_ones_in_seconds(
    seconds: float, said: str
) -> None:
    assert format_milliseconds(seconds) == said


def test_a_text_with_the_name_of_an_emoji_is_printed_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    create_console().print("stopped :warning: at [10:100:3]")
    assert capsys.readouterr().out == "stopped :warning: at [10:100:3]\n"
