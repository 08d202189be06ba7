"""Short texts of the command line."""

from __future__ import annotations

import pytest

from accordion_client.commands.cli_support import create_console
from accordion_service.schemas.format import (
    format_metrics,
    format_milliseconds,
    format_rounded,
    format_savings,
    format_sent_bytes,
    format_workers,
)
from accordion_workers.spec.public_records import Bytes
from tests.unit.service.report_samples import make_job


@pytest.mark.parametrize(
    ("wire", "said"),
    [
        (50, "each worker sent 50 B (control 0 B), 2.0x less than uncompressed"),
        (1000, "10.0x more than uncompressed (100 B, in fp16 50 B)"),
        (100, "as much as uncompressed (100 B, in fp16 50 B)"),
    ],
)
def test_bytes_are_compared_with_uncompressed_in_the_right_direction(wire: int, said: str) -> None:
    sent = Bytes(wire=wire, dense=100, dense_wire=100)
    assert said in format_sent_bytes(sent)


def test_bytes_are_those_on_the_wire_with_the_control_bytes_beside_them() -> None:
    gathered = Bytes(
        payload=2000, wire=6000, dense=9000, fp16=4500, dense_wire=13500, control_wire=400
    )
    assert format_sent_bytes(gathered) == (
        "each worker sent 6 kB (control 400 B), 2.2x less than uncompressed (13.5 kB, in fp16"
        " 6.75 kB)"
    )
    assert format_savings(gathered) == "2.2x"


def test_the_workers_of_an_ended_job_are_none() -> None:
    assert format_workers(make_job(2)) == "none, it has ended; 1 to 2 allowed"


def test_one_worker_sends_nothing_and_saves_nothing() -> None:
    alone = Bytes(payload=1000, dense=7700, fp16=3850)
    assert format_sent_bytes(alone) == "nothing is sent: one worker has no peers"
    assert format_savings(alone) == "-"


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


@pytest.mark.parametrize(
    ("metrics", "newest"),
    [
        ({}, "-"),
        ({"loss": 2.0}, "-"),
        ({"loss": 2.0, "accuracy": 0.974}, "accuracy 97.4 %"),
        ({"top5": 0.5, "accuracy": 0.25}, "accuracy 25.0 %, top5 0.5"),
        ({"bleu": 3.0, "top5_accuracy": 0.5}, "top5_accuracy 50.0 %, bleu 3"),
        ({"accuracy": 87.3}, "accuracy 87.3"),  # a script's own percent
        ({"perplexity": 4.21}, "perplexity 4.21"),
        ({"loss": 2.0, "bleu": 31.04, "wer": 0.125}, "bleu 31.04, wer 0.125"),
    ],
)
def test_whatever_a_task_measures_has_its_name_and_only_an_accuracy_is_a_share(
    metrics: dict[str, float], newest: str
) -> None:
    assert format_metrics(metrics) == newest
