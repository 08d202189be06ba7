"""Short texts of the command line."""

from __future__ import annotations

import pytest

from service.commands.format import format_sent_bytes


@pytest.mark.parametrize(
    ("payload", "said"),
    [(50, "2.0x less than dense"), (1000, "10.0x more than dense"), (100, "as much as dense")],
)
def test_bytes_are_compared_with_dense_in_the_right_direction(payload: int, said: str) -> None:
    assert format_sent_bytes({"payload": payload, "dense": 100, "fp16": 50}).endswith(said)
