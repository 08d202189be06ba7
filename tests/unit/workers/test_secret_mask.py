"""Values of secrets in output and messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion_workers.common.secret_mask import MASK, MIN_LENGTH, SecretMask
from accordion_workers.controller.plan_task import mask_error
from accordion_workers.hub.journal import Journal, claim_generation, read_records
from accordion_workers.hub.log_shipper import LINE_BYTES, LogSource, ship_logs
from accordion_workers.records.contract import EndRecord, EpochRecord, FailureRecord
from tests.unit.workers.world import JOB, FakeCluster

TOKEN = "hf_abcdef"
SECRETS = st.text(st.characters(exclude_categories=["Cs"]), min_size=MIN_LENGTH)


def test_a_value_is_masked_wherever_it_stands() -> None:
    mask = SecretMask([TOKEN, "hf_abcdef_and_more", "first line\n  second line\n"])
    assert mask.apply(f"GET /?token={TOKEN}&again={TOKEN}") == f"GET /?token={MASK}&again={MASK}"
    assert mask.apply("hf_abcdef_and_more") == MASK
    assert mask.apply("a second line of a file") == f"a {MASK} of a file"


def test_values_that_overlap_are_masked_as_a_whole() -> None:
    mask = SecretMask(["secret-one", "one-secret-two", "two-and"])
    assert mask.apply("a secret-one-secret-two-and b") == f"a {MASK} b"
    assert mask.apply("secret-onesecret-one") == MASK + MASK


def test_short_values_are_not_masked() -> None:
    mask = SecretMask(["1", "true", ""])
    assert mask.apply("1 is true") == "1 is true"


@given(secrets=st.lists(SECRETS, max_size=3), text=st.text())
def test_no_line_of_a_secret_is_left(secrets: list[str], text: str) -> None:
    whole = text.join(["", *secrets, ""])
    masked = SecretMask(secrets).apply(whole)
    lines = {line.strip() for secret in secrets for line in secret.splitlines()}
    assert not any(line in masked.replace(MASK, "\0") for line in lines if len(line) >= MIN_LENGTH)


def test_output_of_a_process_is_sent_without_secrets(cluster: FakeCluster) -> None:
    with ship_logs(LogSource(job_id=JOB, attempt=1, rank=0), cluster, SecretMask([TOKEN])):
        print(f"logged in with {TOKEN}")
    assert [line.text for line in cluster.drain().logs] == [f"logged in with {MASK}"]


@pytest.mark.parametrize("shift", range(-2 * len(TOKEN), 2 * len(TOKEN)))
def test_a_secret_that_is_printed_in_two_writes_is_not_cut(
    cluster: FakeCluster, shift: int
) -> None:
    with ship_logs(LogSource(job_id=JOB, attempt=1, rank=0), cluster, SecretMask([TOKEN])):
        text = "x" * (LINE_BYTES + len(TOKEN) + shift)
        for piece in (text, TOKEN[:4], TOKEN[4:], text, "\n"):
            print(piece, end="")
    lines = [line.text for line in cluster.drain().logs]
    assert "".join(lines).strip("x*") == ""


def test_the_error_of_a_planner_has_no_secret() -> None:
    masked = mask_error({"error": f"401 for {TOKEN}"}, [TOKEN])
    assert masked == {"error": f"401 for {MASK}"}
    assert mask_error({"choices": []}, [TOKEN]) == {"choices": []}


def test_messages_of_records_are_stored_without_secrets(tmp_path: Path) -> None:
    journal = Journal(
        tmp_path,
        attempt=1,
        generation=claim_generation(tmp_path),
        clock=lambda: 0.0,
        mask=SecretMask([TOKEN]),
    )
    failure = FailureRecord(cause="job", rank=0, message=f"ValueError: {TOKEN} is no token")
    journal.write(failure)
    journal.write(EndRecord(status="FAILED", reason="TASK_RAISED", message=f"{TOKEN}!"))
    messages = [getattr(record.payload, "message", "") for record in read_records(tmp_path)]
    assert messages == [f"ValueError: {MASK} is no token", f"{MASK}!"]
    assert TOKEN.encode() not in b"".join(
        file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()
    )
    assert "message" not in EpochRecord.model_fields, "an epoch's record has no text of the job"
