"""From seconds to rows, JSON and a table; nothing here depends on how fast this machine is."""

from __future__ import annotations

import json

import pytest

from tests.bench import report
from tests.bench.report import Measured
from tests.bench.step_rows import PLANS
from tests.bench.targets import TARGETS, Target
from tests.bench.timing import Work, measured_rounds

FASTER = Target(row="a", work="work", peer="the peer", reach=">=", ratio=2.0)
CLOSER = Target(row="b", work="work", peer="the limit", reach="<=", ratio=1.1)
TOLD = Target(row="c", work="work", peer="another")


def measured(ours: list[float], peer: list[float]) -> Measured:
    return Measured(ours=ours, peer=peer, floor=[0.5] * len(ours), floor_counts="reading once")


def test_the_ratio_is_taken_within_a_round_and_its_median_counts():
    row = report.row_of(FASTER, measured([1.0, 10.0, 1.0], [3.0, 20.0, 4.0]))
    assert (row["least"], row["reached"], row["most"]) == (2.0, 3.0, 4.0)
    assert row["rounds"] == 3


def test_where_at_most_a_ratio_is_asked_it_is_ours_over_the_peers():
    assert report.row_of(CLOSER, measured([1.0], [2.0]))["reached"] == 0.5


@pytest.mark.parametrize(
    ("target", "ratio", "met"),
    [
        (FASTER, 2.0, True),
        (FASTER, 1.99, False),
        (CLOSER, 1.1, True),
        (CLOSER, 1.11, False),
        (TOLD, 9.0, None),
    ],
)
def test_a_ratio_meets_its_target_from_the_target_on(target, ratio, met):
    assert target.met_by(ratio) is met


def test_a_row_that_was_not_measured_is_not_met_and_says_why():
    row = report.missing_row(FASTER, "no hosts")
    assert (row["reached"], row["met"], row["note"]) == (None, False, "not measured: no hosts")
    assert "not measured: no hosts" in report.table([row])


def test_the_file_holds_command_machine_versions_commit_and_rows(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCORDION_BENCH_ANYWAY", "1")
    rows = [report.row_of(FASTER, measured([1.0], [3.0]))]
    report.write(tmp_path, {"command": "the command", **report.surroundings(), "rows": rows})
    found = json.loads((tmp_path / "library.json").read_text())
    assert found.keys() == {"command", "commit", "machine", "versions", "load", "rows"}
    assert [(row["row"], row["reach"], row["reached"]) for row in found["rows"]] == [
        ("a", ">= 2", 3.0)
    ]
    assert "the command" in (tmp_path / "library.md").read_text()


def test_every_row_of_the_step_has_a_plan_and_every_plan_a_row():
    planned = {f"step-{plan.rate}-{end}" for plan in PLANS for end in plan.peers}
    assert planned == {target.row for target in TARGETS if target.row.startswith("step-")}


def test_contestants_take_turns_and_the_first_round_does_not_count():
    calls: list[str] = []
    works = {name: Work(run=lambda name=name: calls.append(name)) for name in "ab"}
    found = measured_rounds(works, rounds=2, calls=1)
    assert [seconds.keys() for seconds in found] == [
        {"a", "b", "a in the kernel", "b in the kernel"}
    ] * 2
    assert calls == ["a", "b"] * 3


@pytest.mark.parametrize(
    ("busy", "changed", "sentence"),
    [
        (1.4, "", "1.4 processors are busy with something else: measure"),
        (0.2, " M accordion/config.py", "the checkout has changes: measure"),
        (1.4, " M accordion/config.py", "something else and the checkout has changes: measure"),
    ],
)
def test_a_bench_measures_a_commit_alone_on_the_machine(
    busy: float, changed: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "busy_processors", lambda: busy)
    monkeypatch.setattr(
        report, "read_git", lambda *words: changed if "status" in words else "abc1234"
    )
    monkeypatch.delenv("ACCORDION_BENCH_ANYWAY", raising=False)
    with pytest.raises(SystemExit, match=sentence):
        report.surroundings()
    monkeypatch.setenv("ACCORDION_BENCH_ANYWAY", "1")
    marked = report.surroundings()
    assert marked["load"] == busy
    assert marked["commit"].endswith(" with changes") == bool(changed)


def test_results_that_a_bench_has_written_are_no_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(report, "busy_processors", lambda: 0.0)
    monkeypatch.setattr(report, "read_git", lambda *words: asked.append(words) or "")
    report.surroundings()
    assert ("status", "--porcelain", "--", ".", ":!tests/bench/results") in asked
