"""Texts of a job's own code on their way out, and texts of people on their way in."""

from __future__ import annotations

import pickle
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from accordion.base.messages import LayerInfo
from accordion_workers.common.error_text import clean_raised_errors, format_error
from accordion_workers.common.errors import TaskRaised
from accordion_workers.common.plain_text import clean_text, clean_texts, describe_refused_text
from accordion_workers.records.contract import (
    Bytes,
    EndRecord,
    EpochRecord,
    FailureRecord,
    JobSpec,
    LogLine,
    Record,
    Started,
)

BAD = "caf\udce9\0"
CLEAN = "caf\ufffd\ufffd"
ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))
EPOCH = {
    "epoch": 0,
    "step": 1,
    "world_size": 1,
    "loss": None,
    "lr": 0.1,
    "global_batch": 1,
    "samples": 1,
}


def raised_by(error: Exception, cause: Exception | None = None) -> Exception:
    with pytest.raises(Exception) as caught, clean_raised_errors():  # noqa: PT011  # any error is what the test is about
        raise error from cause
    return caught.value


@given(ANY_TEXT)
def test_a_cleaned_text_is_as_long_as_before_and_taken_everywhere(text: str) -> None:
    cleaned = clean_text(text)
    assert len(cleaned) == len(text)
    assert b"\0" not in cleaned.encode()
    assert (describe_refused_text(text) is None) == (cleaned == text)


def test_texts_are_cleaned_wherever_they_are_in_a_value() -> None:
    value = {BAD: [BAD, 1, (BAD, None)], "layer": LayerInfo(name=BAD, shape=(1,))}
    layer = LayerInfo(name=CLEAN, shape=(1,))
    assert clean_texts(value) == {CLEAN: [CLEAN, 1, (CLEAN, None)], "layer": layer}


@pytest.mark.parametrize(
    "payload",
    [
        lambda: FailureRecord(cause="job", rank=0, message=BAD),
        lambda: EndRecord(status="FAILED", reason="TASK_RAISED", message=BAD),
        lambda: EpochRecord(
            **EPOCH,
            metrics={BAD: 1.0},
            bytes=Bytes(),
            seconds_by_phase={},
            regime_by_layer={},
            level_by_layer={},
        ),
        lambda: Started(
            world_size=1,
            epoch=0,
            step=0,
            resumed_from=None,
            steps_per_epoch=1,
            parameters=1,
            layers=(LayerInfo(name=BAD, shape=(1,)),),
        ),
    ],
)
def test_a_record_with_any_text_can_be_written_and_read(payload) -> None:
    record = Record(attempt=1, generation=1, seq=0, time=0.0, payload=payload())
    text = record.model_dump_json()
    assert CLEAN in text
    assert Record.model_validate_json(text) == record


def test_a_line_of_output_with_any_text_can_be_kept() -> None:
    assert LogLine(attempt=1, rank=0, time=0.0, text=BAD).text == CLEAN


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ValueError(BAD), f"ValueError: {CLEAN}"),
        (FileNotFoundError(2, "No such file", BAD), "FileNotFoundError: [Errno 2] No such file"),
        (TaskRaised(3, 0, BAD), CLEAN),
    ],
)
def test_an_error_with_any_text_can_be_sent_and_keeps_its_type(
    error: Exception, sentence: str
) -> None:
    sent = raised_by(error)
    assert type(sent) is type(error)
    assert sentence in format_error(sent)
    assert format_error(pickle.loads(pickle.dumps(sent))) == format_error(sent)
    assert clean_text("".join(traceback.format_exception(sent))) == "".join(
        traceback.format_exception(sent)
    )


def test_what_led_to_an_error_is_not_sent_where_its_text_cannot_be() -> None:
    assert raised_by(KeyError("a"), ValueError("good")).__cause__ is not None
    assert raised_by(KeyError("a"), ValueError(BAD)).__cause__ is None


def test_a_spec_names_the_place_of_each_text_that_is_refused() -> None:
    with pytest.raises(ValidationError) as caught:
        JobSpec.model_validate({"task": {"name": "mine:Task", "options": {"a": BAD, "b": "\0"}}})
    assert [error["loc"] for error in caught.value.errors()] == [
        ("task", "options", "a"),
        ("task", "options", "b"),
    ]
