"""What runs a job in Ray, and guest runs, which register themselves and are never started here."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from accordion_service.domain.jobs.statuses import Status
from tests.api.world import TURN_S, World

LOST_S = 2.0


def turns_of(seconds: float) -> int:
    return int(seconds / TURN_S) + 4


def train(world: World, name: str = "digits", **changes: Any) -> str:
    """A guest run registers itself and trains; return its job id."""
    job_id = world.runtime.enlist(name, **changes)
    world.turn_until(lambda: world.jobs.get(job_id) is not None)
    world.train(job_id, workers=2)
    return job_id


@pytest.fixture
def strict(world: World) -> World:
    """A service that soon takes silent guest runs for lost."""
    world.scheduler.release()
    world.settings = world.settings.model_copy(
        update={"guest_lost_s": LOST_S, "guest_closed_s": 2 * LOST_S}
    )
    world.scheduler = world.new_scheduler()
    return world


def silence(world: World, job_id: str) -> None:
    """Turn until the run has been silent for long enough to be lost."""
    stop(world, job_id)
    world.turn(turns_of(LOST_S))


def stop(world: World, job_id: str) -> None:
    """The run's script is gone: it trains no more, and does not enlist."""
    world.runtime.stuck.add(job_id)
    world.runtime.silent.add(job_id)


def go_on(world: World, job_id: str) -> None:
    """The run's script is there again."""
    world.runtime.stuck.discard(job_id)
    world.runtime.silent.discard(job_id)


def test_guest_is_listed_with_its_kind_epochs_and_decisions(
    world: World, client: TestClient
) -> None:
    job_id = world.runtime.enlist("mine")
    world.turn_until(lambda: len(world.epochs(job_id)) == 3)
    [listed] = client.get("/api/v1/jobs").json()["items"]
    assert (listed["id"], listed["name"], listed["kind"], listed["status"]) == (
        job_id,
        "mine",
        "guest",
        "RUNNING",
    )
    assert listed["ray_run"] == {
        "engine": "ray-train",
        "train_run": "mine-run",
        "ray_job_id": "01000000",
    }
    assert client.get(f"/api/v1/jobs/{job_id}/decisions").json()["total"] >= 1
    world.submit()
    assert client.get("/api/v1/jobs?limit=1").json()["items"][0]["kind"] == "job"


def test_guest_shows_no_figures_that_are_not_known(world: World, client: TestClient) -> None:
    job_id = world.runtime.enlist()
    world.turn_until(lambda: len(world.epochs(job_id)) == 1)
    job = client.get(f"/api/v1/jobs/{job_id}").json()
    unknown = ("epochs", "steps", "eta_s", "samples_per_s")
    assert {name: job["progress"][name] for name in unknown} == dict.fromkeys(unknown)
    assert set(job["spec"]) == {"task", "workers"}


def test_guest_is_never_placed_and_starts_no_supervisor(world: World) -> None:
    job_id = world.runtime.enlist()
    world.turn_until(lambda: len(world.epochs(job_id)) == 2)
    assert (world.job(job_id).workers, world.queue.allocated(), world.runtime.started) == (
        0,
        [],
        [],
    )


def test_guest_that_reports_its_end_is_over_and_forgotten_after_a_while(strict: World) -> None:
    job_id = train(strict, spec={"training": {"epochs": 2}})
    job = strict.finish(job_id)
    assert (job.status, job.message) == (Status.SUCCEEDED, "its script ended")
    assert strict.epochs(job_id) == [0, 1]
    strict.turn(4)
    assert strict.runtime.forgotten == []
    assert strict.runtime.jobs[job_id].waiting == []
    strict.turn(turns_of(LOST_S))
    assert (strict.runtime.forgotten, strict.runtime.removed) == ([job_id], [])


def test_silent_guest_is_lost_and_runs_again_when_it_reports(strict: World) -> None:
    job_id = train(strict)
    silence(strict, job_id)
    assert (strict.job(job_id).status, strict.job(job_id).world_size) == (Status.LOST, 0)
    assert "2 s (ACCORDION_GUEST_LOST_S)" in strict.job(job_id).message
    go_on(strict, job_id)
    strict.train(job_id)
    assert (strict.job(job_id).world_size, strict.job(job_id).message) == (2, "2 workers train")


def test_silence_while_the_scheduler_or_the_cluster_is_away_does_not_count(strict: World) -> None:
    job_id = train(strict)
    stop(strict, job_id)
    strict.clock.now += 10 * LOST_S
    strict.turn(4)
    strict.runtime.down = True
    strict.turn(turns_of(LOST_S))
    strict.runtime.down = False
    strict.turn(4)
    strict.kill_scheduler()
    strict.turn(4)
    assert strict.job(job_id).status == Status.RUNNING


def test_guest_that_stays_lost_fails_in_the_end(strict: World) -> None:
    job_id = train(strict)
    silence(strict, job_id)
    strict.turn(turns_of(2 * LOST_S))
    job = strict.job(job_id)
    assert (job.status, job.reason) == (Status.FAILED, "LOST")
    assert "4 s (ACCORDION_GUEST_CLOSED_S)" in job.message
    assert strict.events(job_id)[-1].type == "end"


def test_guest_stays_lost_for_no_longer_where_the_scheduler_is_restarted(strict: World) -> None:
    job_id = train(strict)
    silence(strict, job_id)
    strict.turn(turns_of(LOST_S / 2))
    strict.scheduler.release()
    strict.scheduler = strict.new_scheduler()
    strict.turn(turns_of(LOST_S))
    assert strict.job(job_id).status == Status.FAILED


def test_guest_that_lives_again_is_not_closed_by_a_scheduler_that_was_away(strict: World) -> None:
    job_id = train(strict)
    silence(strict, job_id)
    strict.scheduler.release()
    strict.clock.now += 10 * LOST_S
    strict.runtime.silent.discard(job_id)
    strict.scheduler = strict.new_scheduler()
    strict.turn(turns_of(LOST_S))
    assert strict.job(job_id).status == Status.RUNNING


def test_guest_that_is_alive_without_steps_is_shown_so_and_not_lost(strict: World) -> None:
    job_id = train(strict)
    strict.runtime.stuck.add(job_id)
    strict.turn(turns_of(3 * LOST_S))
    job = strict.job(job_id)
    assert (job.status, job.reason, job.world_size) == (Status.RUNNING, "NO_STEPS", 2)
    assert job.message.startswith("no step since 2027-01-15 08:00:")
    go_on(strict, job_id)
    strict.turn_until(lambda: strict.job(job_id).reason == "TRAINING")
    assert strict.job(job_id).message == "2 workers train"


def test_guest_whose_first_step_takes_long_is_not_lost(strict: World) -> None:
    job_id = strict.runtime.enlist()
    strict.runtime.stuck.add(job_id)
    strict.turn(turns_of(3 * LOST_S))
    assert (strict.job(job_id).status, strict.job(job_id).reason) == (Status.RUNNING, "NO_STEPS")


def test_lost_guest_that_is_alive_again_runs_before_its_next_step(strict: World) -> None:
    job_id = train(strict)
    silence(strict, job_id)
    strict.runtime.silent.clear()
    strict.turn(2)
    assert (strict.job(job_id).status, strict.job(job_id).deadline) == (Status.RUNNING, None)


def test_lost_guest_can_be_cancelled_and_frees_its_name(strict: World, client: TestClient) -> None:
    job_id = train(strict, "mine")
    override_id = strict.override(job_id, level="low", apply_at=100)
    silence(strict, job_id)
    assert client.post(f"/api/v1/jobs/{job_id}/cancel").json()["status"] == "CANCELLED"
    assert strict.job(job_id).message == "cancelled while it was lost"
    assert strict.override_row(job_id, override_id).state == "EXPIRED"
    assert strict.events(job_id)[-1].type == "end"
    again = train(strict, "mine")
    assert strict.job(again).name == "mine"
    go_on(strict, job_id)
    strict.turn(turns_of(LOST_S))
    assert strict.job(job_id).status == Status.CANCELLED


def test_guest_that_recovers_goes_on_in_its_next_generation(world: World) -> None:
    job_id = world.runtime.enlist()
    world.turn_until(lambda: len(world.epochs(job_id)) == 2)
    world.runtime.break_group(job_id)
    world.reach(job_id, Status.RECOVERING)
    world.train(job_id)
    world.turn_until(lambda: len(world.epochs(job_id)) == 4)
    assert (world.job(job_id).attempt, world.job(job_id).cursor_generation) == (1, 2)


def test_guest_whose_script_is_started_again_shows_its_new_ray_job(world: World) -> None:
    job_id = train(world)
    guest = world.runtime.enlisted[job_id]
    world.runtime.enlisted[job_id] = guest.model_copy(
        update={"generation": 2, "ray_job_id": "02000000"}
    )
    world.turn_until(lambda: (world.job(job_id).ray_run or {})["ray_job_id"] == "02000000")


def test_guest_with_the_name_of_an_unfinished_job_gets_part_of_its_id(world: World) -> None:
    world.submit(name="digits")
    first = world.runtime.enlist("digits")
    world.turn(2)
    assert world.job(first).name == f"digits-{first[-6:]}"


def test_guests_of_one_name_are_both_shown(world: World) -> None:
    ids = {world.runtime.enlist("mine"), world.runtime.enlist("mine")}
    world.turn(2)
    names = {world.job(job_id).name for job_id in ids}
    assert len(names) == 2
    assert {name[:4] for name in names} == {"mine"}


def test_override_of_a_guest_is_acknowledged_by_every_rank(world: World) -> None:
    job_id = train(world)
    override_id = world.override(job_id, level="low", apply_at=100)
    world.turn_until(lambda: world.override_row(job_id, override_id).state == "DELIVERED")
    override_id = world.override(job_id, level={"method": "none"}, layers=["fc1*"])
    world.turn_until(lambda: world.override_row(job_id, override_id).state == "APPLIED")
    assert [ack.rank for ack in world.overrides.acks(job_id)[override_id]] == [0, 1]


@pytest.mark.parametrize(
    ("wish", "pointer", "sentence"),
    [
        (
            {"level": "low", "layers": ["head*"]},
            "/layers/0",
            "no layer matches 'head*'; layers are fc1.weight",
        ),
        (
            {"level": "high", "target": "batch"},
            "/target",
            "its batch belongs to its script; change the script",
        ),
        (
            {"level": "high", "target": "local_steps"},
            "/target",
            "whose workers exchange in every step; submit a job with local_steps",
        ),
        (
            {"level": 0.1, "target": "lr"},
            "/target",
            "this is a guest run, whose script sets its optimizer; change the script",
        ),
    ],
)
def test_override_that_a_guest_cannot_take_is_refused(
    world: World, client, wish, pointer, sentence
) -> None:
    job_id = train(world)
    answer = client.post(f"/api/v1/jobs/{job_id}/overrides", json=wish)
    [error] = answer.json()["errors"]
    assert (answer.status_code, error["pointer"]) == (422, pointer)
    assert sentence in error["detail"]


@pytest.mark.parametrize("what", ["resize", "pause", "resume", "cancel"])
def test_guest_is_neither_resized_paused_nor_cancelled_here(
    world: World, client: TestClient, what: str
) -> None:
    job_id = train(world, "mine")
    body = {"json": {"min": 1, "max": 1}} if what == "resize" else {}
    answer = client.post(f"/api/v1/jobs/{job_id}/{what}", **body)
    assert answer.status_code == 409
    assert "is a guest run and cannot be" in answer.json()["detail"]
    assert (
        "(Ray Train run mine-run) runs it; change or stop the script where it was started"
        in answer.json()["detail"]
    )
    assert world.job(job_id).status == Status.RUNNING


def test_job_with_the_task_of_guests_is_refused(client: TestClient) -> None:
    answer = client.post("/api/v1/jobs", json={"task": {"name": "guest"}})
    [error] = answer.json()["errors"]
    assert (answer.status_code, error["pointer"]) == (422, "/task/name")
    assert "call accordion_ray.attach in a Ray Train script" in error["detail"]


@pytest.mark.parametrize(("engine", "has_run"), [("ray-train", True), ("actors", False)])
def test_job_shows_the_engine_that_its_workers_reported(
    world: World, client, engine: str, has_run: bool
) -> None:
    world.runtime.dashboard = "http://127.0.0.1:8265"
    world.train(job_id := world.submit(name="digits", workers={"engine": engine}))
    run = client.get(f"/api/v1/jobs/{job_id}").json()["ray_run"]
    assert run == {
        "engine": engine,
        "train_run": f"digits-{job_id}.1" if has_run else None,
        "ray_job_id": None,
    }
    assert client.get("/api/v1/cluster").json()["dashboard_url"] == "http://127.0.0.1:8265"
    assert "http://127.0.0.1:8265/#/actors" in client.get(f"/jobs/{job_id}").text
