"""The job routes: submit, list, look, cancel."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi.testclient import TestClient

from tests.api.world import DIGITS, World

JOBS = "/api/v1/jobs"


def test_a_submitted_job_is_stored_and_says_where(client: TestClient) -> None:
    answer = client.post(JOBS, json=DIGITS)
    assert answer.status_code == 201
    assert answer.headers["location"] == f"{JOBS}/{answer.json()['id']}"
    shown = client.get(answer.headers["location"])
    assert shown.json() == answer.json()
    assert shown.headers["etag"] == answer.headers["etag"] == '"1"'


def test_conditions_on_labels_decide_in_the_queue_and_in_a_dry_run(
    client: TestClient, world: World
) -> None:
    world.turn()

    def ask(condition: str) -> list[str]:
        """What a dry run says, and then the queue."""
        spec = {**DIGITS, "workers": {"min": 1, "max": 1, "node_labels": {"zone": condition}}}
        planned = client.post(JOBS, params={"dry_run": True}, json=spec).json()
        job_id = client.post(JOBS, json=spec).json()["id"]
        world.turn()
        return [planned["message"], client.get(f"{JOBS}/{job_id}").json()["message"]]

    assert ask("!in(a, b)")[0] == "starts with 1 worker"
    for message in ask("in(a, b)"):
        assert "no node has zone in (a, b): submit a job with other workers.node_labels" in message


def test_a_dry_run_answers_with_the_defaulted_spec_and_stores_nothing(
    client: TestClient, world: World
) -> None:
    world.turn()
    answer = client.post(
        JOBS,
        params={"dry_run": True},
        json={**DIGITS, "workers": {"min": 9, "max": 9}, "training": {"micro_batch": 4}},
    )
    assert answer.status_code == 200
    assert answer.json()["would_wait"]
    assert "holds at most 4" in answer.json()["message"]
    assert answer.json()["spec"]["compression"]["low"] == {
        "rank": 4,
        "factors": "both",
        "refresh_every": 0,
    }
    assert client.get(JOBS).json()["items"] == []


def test_the_same_key_and_body_answer_with_the_same_job(client: TestClient) -> None:
    first = client.post(JOBS, json=DIGITS, headers={"Idempotency-Key": "a"})
    again = client.post(JOBS, json=DIGITS, headers={"Idempotency-Key": "a"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]


def test_the_same_key_with_another_body_is_refused(client: TestClient) -> None:
    client.post(JOBS, json=DIGITS, headers={"Idempotency-Key": "a"})
    answer = client.post(JOBS, json={**DIGITS, "priority": 1}, headers={"Idempotency-Key": "a"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "header/idempotency-key"


def test_ten_requests_at_once_with_one_key_make_one_job(client: TestClient) -> None:
    with ThreadPoolExecutor(10) as pool:
        answers = list(
            pool.map(
                lambda _: client.post(JOBS, json=DIGITS, headers={"Idempotency-Key": "a"}),
                range(10),
            )
        )
    assert sorted(answer.status_code for answer in answers) == [200] * 9 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1


def test_pages_of_the_list_hold_every_job_once(client: TestClient, world: World) -> None:
    ids = []
    for _ in range(7):
        ids.append(world.submit())
        world.clock.now += 0.001
    seen, cursor = [], None
    while page := client.get(
        JOBS, params={"limit": 3} | ({"cursor": cursor} if cursor else {})
    ).json():
        seen += [job["id"] for job in page["items"]]
        if not (cursor := page["next_cursor"]):
            break
    assert seen == ids[::-1]


def test_the_list_is_filtered_by_status_name_and_labels(client: TestClient, world: World) -> None:
    red = world.submit(name="red", labels={"team": "a/b"})
    blue = world.submit(name="blue", labels={"team": "c"})
    world.cancel(blue)

    def listed(**query: object) -> list[str]:
        return [job["id"] for job in client.get(JOBS, params=query).json()["items"]]

    assert listed(name="red") == listed(label="team:a/b") == listed(status="QUEUED") == [red]
    assert listed(status=["QUEUED", "CANCELLED"]) == [blue, red]
    assert listed(label=["team:c", "team:a/b"]) == []


def test_etag_changes_with_a_request_but_not_with_progress(
    client: TestClient, world: World
) -> None:
    job_id = world.submit()
    before = client.get(f"{JOBS}/{job_id}").headers["etag"]
    world.turn(4)
    assert client.get(f"{JOBS}/{job_id}").headers["etag"] == before
    world.override(job_id)
    assert client.get(f"{JOBS}/{job_id}").headers["etag"] != before


def test_a_write_with_an_old_etag_is_refused_and_changes_nothing(
    client: TestClient, world: World
) -> None:
    job_id = world.submit()
    world.override(job_id)
    answer = client.post(f"{JOBS}/{job_id}/cancel", headers={"If-Match": '"1"'})
    assert answer.status_code == 412
    assert 'the job is at "2"' in answer.json()["detail"]
    assert world.job(job_id).status == "QUEUED"


def test_cancelling_twice_is_harmless(client: TestClient, world: World) -> None:
    job_id = world.submit()
    answers = [client.post(f"{JOBS}/{job_id}/cancel") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[1].json()["status"] == "CANCELLED"


def test_a_running_job_shows_progress_with_its_eta(client: TestClient, world: World) -> None:
    job_id = world.submit(training={"epochs": 30})
    world.turn_until(lambda: len(world.epochs(job_id)) == 2)
    view = client.get(f"{JOBS}/{job_id}").json()
    assert (view["world_size"], view["progress"]["epochs"], view["progress"]["steps"]) == (
        2,
        30,
        30 * 23,
    )
    assert view["progress"]["eta_s"] > 0
    assert view["metrics"].keys() == {"loss", "accuracy"}


def test_history_is_there_after_a_restart_of_the_api(client: TestClient, world: World) -> None:
    job_id = world.submit()
    world.finish(job_id)
    for part, count in {"epochs": 4, "decisions": 4, "attempts": 1, "checkpoints": 4}.items():
        items = client.get(f"{JOBS}/{job_id}/{part}").json()["items"]
        assert len(items) == count, part


def test_the_queue_says_who_is_next_and_why_each_waits(client: TestClient, world: World) -> None:
    running = world.submit(workers={"min": 4, "max": 4})
    world.train(running)
    low = world.submit(priority=10)
    high = world.submit(priority=90, workers={"min": 2, "max": 2})
    world.turn()
    entries = client.get("/api/v1/queue").json()["items"]
    assert [entry["id"] for entry in entries] == [high, low]
    assert entries[0]["reason"] == "WAITING_FOR_ROOM"
    assert entries[1]["message"].startswith(f"waits behind job {high}")
    assert client.get(f"{JOBS}/{low}").json()["message"] == entries[1]["message"]
    assert [job["message"] for job in client.get(JOBS, params={"id": low}).json()["items"]] == [
        entries[1]["message"]
    ]


def test_the_cluster_shows_what_our_jobs_reserve(client: TestClient, world: World) -> None:
    world.train(world.submit())
    view = client.get("/api/v1/cluster").json()
    assert (view["reachable"], view["cpus"], view["cpus_reserved"]) == (True, 4.0, 2.0)


def test_everything_a_spec_can_name_is_listed_with_its_options(client: TestClient) -> None:
    names = {
        what: [item["name"] for item in client.get(f"/api/v1/{what}").json()["items"]]
        for what in ("tasks", "methods", "policies")
    }
    assert "digits-mlp" in names["tasks"]
    assert "powersgd" in names["methods"]
    assert "two_level" in names["policies"]


def walk(client: TestClient, path: str, **params: Any) -> list[Any]:
    """Items of all pages."""
    items, cursor = [], {}
    while True:
        page = client.get(path, params={**params, **cursor}).json()
        assert len(page["items"]) <= params["limit"]
        items += page["items"]
        if page["next_cursor"] is None:
            assert page["total"] == len(items)
            return items
        cursor = {"cursor": page["next_cursor"]}


def test_epochs_and_decisions_come_in_pages_in_both_directions(
    client: TestClient, world: World
) -> None:
    job_id = world.submit(training={"epochs": 7})
    world.finish(job_id)
    for part in ("epochs", "decisions"):
        path = f"{JOBS}/{job_id}/{part}"
        whole = client.get(path).json()["items"]
        assert len(whole) == 7
        assert walk(client, path, limit=3) == whole
        assert walk(client, path, limit=3, order="newest") == whole[::-1]


def test_a_cursor_of_another_history_is_refused(client: TestClient, world: World) -> None:
    job_id = world.submit()
    world.finish(job_id)
    cursor = client.get(f"{JOBS}/{job_id}/epochs", params={"limit": 1}).json()["next_cursor"]
    for part, order, used in (
        ("epochs", "newest", cursor),
        ("decisions", "oldest", cursor),
        ("epochs", "oldest", "x"),
    ):
        answer = client.get(f"{JOBS}/{job_id}/{part}", params={"order": order, "cursor": used})
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "query/cursor")
