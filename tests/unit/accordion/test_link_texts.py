"""A link as text."""

from __future__ import annotations

import math

import pytest

from accordion.base.link_model import format_link


@pytest.mark.parametrize(
    ("bytes_per_s", "text"),
    [
        (12e6, "96 Mbit/s"),
        (124.9e6, "999 Mbit/s"),
        (124.99e6, "1 Gbit/s"),
        (969e6, "7.75 Gbit/s"),
        (12.4e9, "99.2 Gbit/s"),
        (12.5e9, "over 100 Gbit/s"),
        (math.inf, "over 100 Gbit/s"),
    ],
)
def test_a_fast_link_is_given_in_gbit(bytes_per_s: float, text: str) -> None:
    assert format_link(0.0002, bytes_per_s) == f"{text} and 0.2 ms per message"
