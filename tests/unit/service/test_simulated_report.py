"""The report of a simulated run, from the records in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accordion_client.commands.simulated_jobs import list_simulated
from accordion_client.commands.simulated_report import read_source
from accordion_service.api.dashboard.report_content import list_figures
from accordion_service.api.dashboard.report_page import build_report
from accordion_service.domain.jobs.statuses import Status
from accordion_service.errors import SettingsError
from accordion_workers.hub.journal import Journal, claim_generation
from accordion_workers.records.contract import Payload
from accordion_workers.simulation.simulated_runs import SimulatedRun, SimulatedStatus
from tests.unit.service.report_samples import BEGIN, SPEC
from tests.unit.service.reported_row import decision, epoch, started


def write_run(folder: Path, **changes: Any) -> Path:
    run = {"name": "small", "spec": SPEC, "workers": 3, "seed": 0, **changes}
    folder.mkdir()
    SimulatedRun(**{"status": SimulatedStatus.SUCCEEDED, **run}).write(folder)
    return folder


def write_records(folder: Path, *payloads: Payload) -> None:
    """Write what one process of a run recorded, a second after the other."""
    times = iter(range(1, 10_000))
    generation = claim_generation(folder)
    journal = Journal(folder, attempt=1, generation=generation, clock=lambda: float(next(times)))
    for payload in payloads:
        journal.write(payload)


@pytest.mark.parametrize(
    "field", [{"spec": 5}, {"workers": "two"}, {"seed": True}, {"name": None}, {"message": []}]
)
def test_a_run_whose_field_has_another_type_is_damaged(
    tmp_path: Path, field: dict[str, Any]
) -> None:
    write_run(tmp_path / "seed-0", **field)
    with pytest.raises(SettingsError, match=r"run.json is damaged .*; remove its folder"):
        list_simulated(tmp_path)


def test_records_and_folders_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (write_run(tmp_path / "seed-0") / "records" / "000000001.jsonl").mkdir(parents=True)
    for folder, file in ((tmp_path, "jsonl"), (tmp_path / ("a" * 300), "a")):
        with pytest.raises(SettingsError, match=f"{file} cannot be read .*; give a job"):
            list_simulated(folder)


def test_output_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "seed-0")
    (folder / "output.log").symlink_to("/proc/self/mem")  # nobody can read its beginning
    with pytest.raises(SettingsError, match=r"output.log cannot be read .*; make it readable"):
        read_source(folder, written_at=BEGIN)


def test_a_run_has_one_id_by_whatever_path_it_is_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "seed-0")
    (tmp_path / "link").symlink_to(folder)
    places = (folder, folder / ".." / "seed-0", tmp_path / "link")
    assert {one.job.id for place in places for one in list_simulated(place)} == {str(folder)}


def test_a_run_that_went_on_from_a_checkpoint_shows_the_decisions_that_held(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "seed-0")
    write_records(folder, started(), epoch(0, 9), decision(1, 9), decision(1, 12), epoch(1, 18))
    write_records(folder, started(step=9), decision(1, 15), epoch(1, 18))
    source = read_source(folder, written_at=BEGIN)
    assert [view.decision.step for view in source.decisions] == [9, 15]
    assert [(row.epoch, row.step) for row in source.epochs] == [(0, 9), (1, 18)]


def test_a_simulation_has_its_workers_and_no_attempts_among_its_figures(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "seed-0")
    write_records(folder, started(), epoch(0, 9))
    figures = {one.label: one for one in list_figures(read_source(folder, written_at=BEGIN))}
    assert (figures["Workers"].value, figures["Workers"].note) == ("3", "simulated")
    assert figures["Epochs"].value == "1 of 20"
    assert "took turns" in figures["Time"].note
    assert "Attempts" not in figures


def test_a_run_that_failed_before_its_first_epoch_tells_why(tmp_path: Path) -> None:
    failed = {"status": SimulatedStatus.FAILED, "message": "ValueError: it raised"}
    source = read_source(write_run(tmp_path / "seed-0", **failed), written_at=BEGIN)
    html = b"".join(build_report(source).pieces).decode()
    assert "ValueError: it raised" in html
    assert "No epoch was finished, so there are no charts." in html


def test_a_stopped_run_is_paused_and_has_no_end(tmp_path: Path) -> None:
    stopped = write_run(tmp_path / "seed-0", status=SimulatedStatus.STOPPED)
    job = read_source(stopped, written_at=BEGIN).job
    assert (job.status, job.ended_at) == (Status.PAUSED, None)


def test_a_long_run_is_thinned_and_has_the_newest_lines_of_its_output(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "seed-0")
    rows = [one for n in range(500) for one in (decision(n, 9 * n), epoch(n, 9 * n + 9))]
    write_records(folder, started(), *rows)
    (folder / "output.log").write_text("\n".join(f"line {n} \x1b[1m" for n in range(50_000)))
    source = read_source(folder, written_at=BEGIN)
    assert (len(source.epochs), source.num_epochs, source.num_decisions) == (200, 500, 500)
    in_force = {row.epoch for row in source.epochs}
    assert {view.decision.epoch for view in source.decisions} == in_force
    assert len(source.log_lines) == 200
    assert source.log_lines[-1].startswith("line 49999")
    assert "\x1b" not in source.log_lines[-1]
