"""The job's records on disk."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion_workers.hub import journal as journal_module
from accordion_workers.hub.journal import (
    Journal,
    claim_generation,
    is_superseded,
    read_end,
    read_records,
    write_end,
)
from accordion_workers.hub.journal_summary import extend_summary, read_milestones
from accordion_workers.records.contract import Cursor, EndRecord, FailureRecord
from accordion_workers.records.milestones import find_milestones
from tests.unit.workers.world import STARTED, journal, note

END = EndRecord(status="SUCCEEDED", reason="COMPLETED")


def written(storage: Path) -> list[Path]:
    return sorted((storage / "records").iterdir())


def seqs(storage: Path, above: Cursor | None = None) -> list[tuple[int, int]]:
    return [(item.generation, item.seq) for item in read_records(storage, above)]


def test_a_generation_is_claimed_once_whoever_races_for_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        claimed = list(pool.map(lambda _: claim_generation(tmp_path), range(200)))
    assert sorted(claimed) == list(range(1, 201))


def test_a_generation_that_said_nothing_is_not_claimed_again(tmp_path: Path) -> None:
    claim_generation(tmp_path)
    journal(tmp_path, attempt=2)
    assert claim_generation(tmp_path) == 3


def test_records_are_read_in_order_and_above_a_cursor(tmp_path: Path) -> None:
    first, second = journal(tmp_path), journal(tmp_path)
    for written_by in (second, first, second, first):
        written_by.write(note(0))
    assert seqs(tmp_path) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert seqs(tmp_path, Cursor(attempt=1, generation=1, seq=0)) == [(1, 1), (2, 0), (2, 1)]
    assert seqs(tmp_path, Cursor(attempt=1, generation=2, seq=1)) == []


def test_a_job_without_a_journal_has_no_records(tmp_path: Path) -> None:
    assert read_records(tmp_path) == []


def test_threads_that_write_at_once_get_numbers_of_their_own(tmp_path: Path) -> None:
    shared = journal(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        records = list(pool.map(lambda number: shared.write(note(number)), range(100)))
    assert sorted(item.seq for item in records) == list(range(100))
    assert read_records(tmp_path) == sorted(records, key=lambda item: item.seq)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.integers(0, 200))
def test_wherever_the_last_line_is_torn_the_lines_before_it_are_read(text: str, cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        storage = Path(folder)
        made = journal(storage)
        whole = [made.write(FailureRecord(cause="job", rank=0, message=text)) for _ in range(2)]
        [file] = written(storage)
        last = file.read_bytes().rstrip(b"\n").splitlines(keepends=True)[-1]
        made.write(FailureRecord(cause="job", rank=0, message=text))
        size = file.stat().st_size - len(last)
        with file.open("r+b") as torn:
            torn.truncate(size + min(cut, len(last) - 2))
        assert read_records(storage)[:2] == whole
        assert len(read_records(storage)) == 2


def test_a_write_that_a_full_disk_tore_does_not_take_the_next_one_with_it(tmp_path: Path) -> None:
    made = journal(tmp_path)
    made.write(note(0))
    with written(tmp_path)[0].open("a") as file:
        file.write('{"attempt": 1, "gen')
    made.write(note(1))
    assert [item.payload for item in read_records(tmp_path)] == [note(0), note(1)]


def test_the_end_comes_back_with_all_records(tmp_path: Path) -> None:
    made = journal(tmp_path)
    made.write(note(0))
    made.write(END)
    write_end(tmp_path, END)
    end, drained = read_end(tmp_path)
    assert end == END
    assert list(drained.records) == read_records(tmp_path)


def test_a_job_that_goes_on_has_no_end(tmp_path: Path) -> None:
    journal(tmp_path).write(note(0))
    assert read_end(tmp_path) is None


def test_the_end_file_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(content: object, file) -> None:
        file.write('{"end": {"sta')
        raise OSError("No space left on device")

    journal(tmp_path).write(END)
    monkeypatch.setattr(journal_module.json, "dump", torn)
    with pytest.raises(OSError, match="No space left"):
        write_end(tmp_path, END)
    assert read_end(tmp_path) is None


def test_a_journal_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    nowhere = Journal(tmp_path / "nowhere", attempt=1, generation=1, clock=lambda: 0.0)
    with pytest.raises(OSError, match="No such file"):
        nowhere.write(note(0))


def test_a_generation_is_superseded_as_soon_as_a_newer_one_is_claimed(tmp_path: Path) -> None:
    assert not is_superseded(tmp_path, 1)
    first = claim_generation(tmp_path)
    assert not is_superseded(tmp_path, first)
    claim_generation(tmp_path)
    assert is_superseded(tmp_path, first)


def test_a_summary_says_what_the_records_say_whatever_it_holds(tmp_path: Path) -> None:
    payloads = [STARTED, note(3), END, note(5)]
    for number, payload in enumerate(payloads):
        writer = journal(tmp_path, attempt=1 + number // 2)
        extend_summary(tmp_path)
        writer.write(payload)
        journal(tmp_path)
        told = list(find_milestones(read_records(tmp_path)))
        found = read_milestones(tmp_path)
        assert [row for row in found if row.attempt] == told
        assert [row.generation for row in found] == list(range(1, 2 * number + 3))


def test_generations_of_the_summary_are_not_read_again(tmp_path: Path) -> None:
    for number in range(3):
        journal(tmp_path).write(note(number))
    extend_summary(tmp_path)
    for generation in (1, 2, 3):
        (tmp_path / "records" / f"{generation:09d}.jsonl").write_bytes(b"")
    assert [row.saved_step for row in read_milestones(tmp_path)] == [0, 1, 0]


def test_what_follows_a_torn_line_of_the_summary_is_read_from_the_records(tmp_path: Path) -> None:
    for number in range(4):
        journal(tmp_path).write(note(number))
    extend_summary(tmp_path)
    summary = tmp_path / "records" / "summary.jsonl"
    lines = [line for line in summary.read_bytes().splitlines() if line]
    summary.write_bytes(b"\n".join([lines[0], lines[1][:9], lines[2]]))
    assert [row.saved_step for row in read_milestones(tmp_path)] == [0, 1, 2, 3]
    extend_summary(tmp_path)
    assert [row.saved_step for row in read_milestones(tmp_path)] == [0, 1, 2, 3]
