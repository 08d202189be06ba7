"""What the recovery bench reads from the log of steps."""

from __future__ import annotations

import json

import pytest

from tests.bench.recovery_report import row_of, table, write
from tests.bench.recovery_rows import ROWS
from tests.bench.recovery_task import Recovery, Step, longest_pause, recovery_after

FAULT = 10.0


def steps(pid: int, first: int, times: list[float], *, world_size: int = 2) -> list[Step]:
    return [
        Step(time=time, rank=0, pid=pid, step=first + number, world_size=world_size)
        for number, time in enumerate(times)
    ]


def test_a_new_process_has_recovered_when_it_begins_its_second_step():
    found = recovery_after([*steps(1, 100, [9.0, 9.5]), *steps(2, 99, [14.0, 14.5])], FAULT)
    assert found == Recovery(seconds=4.5, stood_still_s=5.0, rolled_back=2, world_size=2)


def test_a_process_that_stays_has_recovered_at_its_second_step_in_another_world():
    found = recovery_after(
        [*steps(1, 100, [9.0, 11.0]), *steps(1, 101, [12.0, 12.5], world_size=1)], FAULT
    )
    assert found == Recovery(seconds=2.5, stood_still_s=1.5, rolled_back=0, world_size=1)


def test_steps_of_the_old_workers_after_the_fault_are_no_recovery():
    assert recovery_after(steps(1, 100, [9.0, 10.5, 11.0]), FAULT) is None


def test_steps_that_both_a_new_and_an_old_process_made_are_made_again():
    found = longest_pause([*steps(1, 100, [9.0, 9.5, 9.9]), *steps(2, 101, [14.0, 14.1])], FAULT)
    assert (found.seconds, found.rolled_back) == (pytest.approx(4.1), 2)


def row(name):
    return next(row for row in ROWS if row.name == name)


def done(seconds, again=0):
    return Recovery(seconds=seconds, stood_still_s=seconds, rolled_back=again, world_size=2)


def reached(name, **found):
    return [asked["met"] for asked in row_of(row(name), [found])["reach"]]


@pytest.mark.parametrize(
    ("ours", "actors", "plain", "met"),
    [
        (done(3.0), done(2.0), done(6.0), [True, True, True]),
        (done(3.1), done(2.0), done(6.3), [False, True, True]),
        (done(3.0), done(2.0), done(5.9), [True, False, True]),
        (done(3.0, again=26), done(2.0, again=20), done(6.0), [True, True, False]),
    ],
)
def test_a_row_is_met_by_the_ratios_and_the_steps_of_a_round(ours, actors, plain, met):
    assert reached("worker-killed", ours=ours, actors=actors, plain=plain) == met


def test_a_row_without_our_figure_is_not_met():
    assert reached("node-drained") == [False] * 4


@pytest.mark.parametrize(("megabytes", "met"), [(850.0, True), (851.0, False)])
def test_memory_is_met_by_the_difference_to_actors(megabytes, met):
    assert reached("memory", ours=done(megabytes), actors=done(600.0)) == [met]


def test_the_table_shows_the_least_and_the_most_of_the_rounds():
    rounds = [{"ours": done(seconds), "actors": done(2.0)} for seconds in (1.0, 2.0, 4.0)]
    [line] = table([row_of(row("resized"), rounds)]).splitlines()[2:]
    assert "| 2 s (1 - 4) | 2 s |" in line
    assert "| 1 × (0.5 - 2) |" in line


def test_a_row_replaces_only_itself_in_the_results(tmp_path):
    around = {"date": "", "commit": "", "rounds": 3, "load": 0, "machine": {}, "versions": {}}
    around["machine"] = {"cpu": "", "cores": 2, "memory_gib": 24}
    around["versions"] = {"ray": "", "torch": ""}
    for name, seconds in (("start", 5.0), ("resized", 1.0), ("start", 7.0)):
        write(tmp_path, {**row_of(row(name), [{"ours": done(seconds)}]), "measured": around})
    kept = json.loads((tmp_path / "recovery.json").read_text())
    assert [(one["row"], one["seconds"]["ours"]["median"]) for one in kept] == [
        ("resized", 1.0),
        ("start", 7.0),
    ]
