"""The report of a job, over HTTP."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import pytest
from fastapi.testclient import TestClient

from accordion_service.api.app_state import MAX_WAITING_REPORTS
from accordion_service.api.dashboard import report_route
from accordion_service.api.dashboard.report_frame import ReportPage
from accordion_service.store.reads.report import ReportLimits, read_report_rows
from accordion_service.store.reads.thinned_history import HistoryShare
from accordion_service.store.tables.models import DecisionRow, EpochRow
from tests.api.team import JOBS, Team
from tests.api.world import World

MANY = 1000


def get_report(client: TestClient, job_id: str) -> Any:
    response = client.get(f"{JOBS}/{job_id}/report")
    assert response.status_code == 200, response.text
    return response


def data_of(html: str) -> dict[str, Any]:
    found = re.search(r'id="report-data">(.*?)</script>', html)
    assert found is not None
    return dict(json.loads(found[1]))


def lengthen(world: World, job_id: str) -> None:
    """Repeat the newest epoch and decision of a job many times."""
    with world.database.write() as session:
        epoch = world.history.epochs(job_id)[-1]
        decision = world.history.newest_decision(job_id)
        assert decision is not None
        same = {"job_id": job_id, "attempt": 1, "generation": 1, "time": 1.0}
        for number in range(epoch.epoch + 1, MANY):
            record = {**epoch.record, "epoch": number, "step": 100 * number}
            session.add(EpochRow(**same, epoch=number, record=record))
            for step in (100 * number - 50, 100 * number):
                document = {**decision.decision, "epoch": number, "step": step}
                session.add(DecisionRow(**same, epoch=number, step=step, decision=document))


def test_a_report_has_the_history_and_a_policy_of_its_own(client: TestClient, world: World) -> None:
    job_id = world.submit(name="first/run")
    world.train(job_id)
    override = world.override(job_id, level="low", reason="compare")
    world.say(job_id, "</pre><b>not bold</b>")
    world.finish(job_id)
    response = get_report(client, job_id)
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["content-disposition"] == 'inline; filename="first-run.html"'
    assert response.headers["content-encoding"] == "gzip"
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.endswith("; frame-ancestors 'none'")
    data = data_of(response.text)
    assert [row["epoch"] for row in data["epochs"]] == [0, 1, 2, 3]
    assert [row["id"] for row in data["overrides"]] == [override]
    assert "&lt;/pre&gt;&lt;b&gt;not bold&lt;/b&gt;" in response.text
    assert "<b>not bold" not in response.text


def test_a_long_history_is_thinned_from_its_first_to_its_last_epoch(
    client: TestClient, world: World
) -> None:
    job_id = world.submit()
    world.finish(job_id)
    lengthen(world, job_id)
    html = get_report(client, job_id).text
    data = data_of(html)
    shown = [row["epoch"] for row in data["epochs"]]
    assert (len(shown), shown[0], shown[-1]) == (200, 0, MANY - 1)
    assert f"200 of {MANY} epochs are shown" in html
    in_force = {row["decision"]["epoch"]: row["decision"]["step"] for row in data["decisions"]}
    assert in_force[MANY - 1] == 100 * (MANY - 1)
    assert len(data["decisions"]) <= len(shown)


def read_decisions(world: World, job_id: str, *, epochs: int, decisions: int) -> list[int]:
    """Return the steps of the decisions that a report with these limits shows."""
    share = HistoryShare(epochs=epochs, decisions=decisions)
    limits = ReportLimits(history=share, items=10)
    rows = read_report_rows(world.database, job_id, limits, event_types=("status",))
    assert rows.num_events > 0
    return [row.step for row in rows.history.decisions]


def test_decisions_are_bounded_and_the_newest_ones_are_shown(world: World) -> None:
    job_id = world.submit()
    world.finish(job_id)
    lengthen(world, job_id)
    steps = [step for n in range(MANY - 100, MANY) for step in (100 * n - 50, 100 * n)]
    with world.database.write() as session:
        newest = session.query(EpochRow).where(EpochRow.job_id == job_id)
        newest.where(EpochRow.epoch >= MANY - 100).delete()
    shown = read_decisions(world, job_id, epochs=20, decisions=30)
    assert len(shown) <= 30
    assert shown[-10:] == steps[-10:]
    with world.database.write() as session:
        session.query(EpochRow).where(EpochRow.job_id == job_id).delete()
    assert read_decisions(world, job_id, epochs=20, decisions=30) == steps[-30:]


def test_more_reports_than_wait_are_refused(
    client: TestClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = world.submit()
    end = threading.Event()

    def build(*_: Any) -> Any:
        end.wait()
        return ReportPage(pieces=(b"built",), policy="default-src 'none'")

    monkeypatch.setattr(report_route, "build_report", build)
    count = MAX_WAITING_REPORTS + 2
    with ThreadPoolExecutor(count) as pool:
        path = f"{JOBS}/{job_id}/report"
        waiting = [pool.submit(client.get, path) for _ in range(count)]
        try:
            refused = next(as_completed(waiting)).result()
        finally:
            end.set()
        statuses = sorted(answer.result().status_code for answer in waiting)
    assert statuses == [200] * (count - 1) + [503]
    assert "one report is being built and 8 wait; try again in a minute" in refused.text


def test_a_job_without_epochs_and_a_guest_run_have_reports(
    client: TestClient, world: World
) -> None:
    queued = world.submit(workers={"min": 500, "max": 500}, training={"global_batch": 8000})
    world.turn()
    page = get_report(client, queued)
    assert "No epoch is finished" in page.text
    assert "<script" not in page.text
    guest = world.runtime.enlist("mine", spec={"training": {"epochs": 3}})
    world.turn_until(lambda: bool(world.jobs.get(guest)) and len(world.epochs(guest)) == 3)
    assert len(data_of(get_report(client, guest).text)["epochs"]) == 3


def test_a_report_is_for_those_who_may_see_the_job(team: Team) -> None:
    ada, bob = team.user("ada"), team.user("bob")
    path = f"{JOBS}/{team.submit(ada)}/report"
    assert team.call(ada, "GET", path).status_code == 200
    hidden = team.call(bob, "GET", path)
    assert (hidden.status_code, hidden.json()["code"]) == (404, "not_found")
    writer = team.token(ada, scopes=["submit"])
    assert team.call(writer, "GET", path).status_code == 403
    assert team.call(ada, "GET", path, params={"format": "pdf"}).status_code == 422
