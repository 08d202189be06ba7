"""Overrides, from the request to every rank's acknowledgement and to their cancellation."""

from __future__ import annotations

from fastapi.testclient import TestClient

from accordion_workers.spec.types import MAX_SAMPLES
from tests.api.fake_job import Saved
from tests.api.world import World

LONG = {"training": {"epochs": 30}}


def test_an_override_is_applied_once_every_rank_runs_its_plan(world: World) -> None:
    job_id = world.submit(**LONG)
    world.turn_until(lambda: len(world.epochs(job_id)) == 6)
    override_id = world.override(job_id, level="low", until=20)
    assert world.override_row(job_id, override_id).state == "PENDING"
    world.turn_until(lambda: world.override_row(job_id, override_id).state == "APPLIED")
    row = world.override_row(job_id, override_id)
    acks = world.overrides.acks(job_id)[override_id]
    assert [ack.rank for ack in acks] == [0, 1]
    assert len({ack.digest for ack in acks}) == 1
    assert (row.world_size, row.epoch) == (2, 7)


def test_an_override_keeps_its_place_in_history_when_another_group_takes_over(world: World) -> None:
    job_id = world.submit(**LONG)
    world.turn_until(lambda: len(world.epochs(job_id)) == 6)
    override_id = world.override(job_id, level="low")
    world.turn_until(lambda: len(world.epochs(job_id)) == 9)
    before = world.override_row(job_id, override_id)
    world.runtime.break_group(job_id)
    world.turn_until(lambda: len(world.epochs(job_id)) == 12)
    after = world.override_row(job_id, override_id)
    assert world.job(job_id).tally["recoveries"]
    assert (before.state, after.state) == ("APPLIED", "APPLIED")
    assert (before.epoch, before.step, before.applied_at) == (
        after.epoch,
        after.step,
        after.applied_at,
    )


def test_the_epochs_show_the_level_while_the_override_holds_and_the_policys_after_it(
    world: World,
) -> None:
    job_id = world.submit(**LONG)
    world.turn_until(lambda: len(world.epochs(job_id)) == 6)
    override_id = world.override(job_id, level="low", until=15)
    world.finish(job_id)
    levels = [row.record["level_by_layer"]["fc1.weight"] for row in world.history.epochs(job_id)]
    start = world.override_row(job_id, override_id).epoch or 0
    assert set(levels[start:15]) == {"low"}
    assert levels[15] == levels[start - 1] == "high"
    assert world.override_row(job_id, override_id).state == "EXPIRED"


def test_a_rank_that_does_not_switch_leaves_the_override_delivered_and_is_named(
    world: World,
) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    world.runtime.mute = {1}
    override_id = world.override(job_id)
    world.turn(4)
    row = world.override_row(job_id, override_id)
    assert row.state == "DELIVERED"
    assert "not switched yet: rank 1 (of 2 workers)" in row.message


def test_an_override_in_force_is_acknowledged_again_by_a_new_worker_group(world: World) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    override_id = world.override(job_id)
    world.turn_until(lambda: world.override_row(job_id, override_id).state == "APPLIED")
    world.runtime.break_group(job_id)
    world.turn(4)
    states = [event.data["state"] for event in world.events(job_id, "override")]
    assert states == ["PENDING", "DELIVERED", "APPLIED", "DELIVERED", "APPLIED"]
    assert world.job(job_id).world_size == world.override_row(job_id, override_id).world_size == 2


def test_an_override_survives_the_death_of_the_actor(world: World) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    world.override(job_id)
    world.turn(2)
    world.runtime.forget(job_id)
    world.turn(2)
    assert world.runtime.jobs[job_id].orders.version == world.job(job_id).orders_version


def test_an_override_is_superseded_by_a_newer_one_of_all_its_layers(world: World) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    older = world.override(job_id, layers=["fc1*"])
    newer = world.override(job_id, level="high")
    world.turn_until(lambda: world.override_row(job_id, newer).state == "APPLIED")
    row = world.override_row(job_id, older)
    assert (row.state, row.message) == (
        "SUPERSEDED",
        "all its layers are held by newer override #2",
    )


def test_a_level_that_the_workers_refuse_is_rejected_with_their_reason(world: World) -> None:
    job_id = world.submit(**LONG)
    override_id = world.override(job_id, layers=["nothing*"])
    world.turn_until(lambda: world.override_row(job_id, override_id).state == "REJECTED")
    assert "nothing*" in world.override_row(job_id, override_id).message


def test_policy_decides_again_after_an_override_is_deleted(
    world: World, client: TestClient
) -> None:
    job_id = world.submit(**LONG)
    world.turn_until(lambda: len(world.epochs(job_id)) == 6)
    override_id = world.override(job_id, level="low")
    world.turn_until(lambda: world.override_row(job_id, override_id).state == "APPLIED")
    path = f"/api/v1/jobs/{job_id}/overrides/{override_id}"
    assert client.delete(path).json()["state"] == "CANCELLED"
    assert client.delete(path).status_code == 200
    world.turn(3)
    said_by = {
        layer["said_by"] for layer in client.get(f"/api/v1/jobs/{job_id}/schedule").json()["layers"]
    }
    assert said_by == {"policy"}


def test_the_schedule_says_who_decided_each_layer(world: World, client: TestClient) -> None:
    job_id = world.submit(**LONG)
    world.turn_until(lambda: len(world.epochs(job_id)) == 6)
    override_id = world.override(job_id, level={"rank": 2}, layers=["fc1*"])
    world.turn_until(lambda: world.override_row(job_id, override_id).state == "APPLIED")
    layers = {
        layer["layer"]: layer
        for layer in client.get(f"/api/v1/jobs/{job_id}/schedule").json()["layers"]
    }
    assert layers["fc1.weight"]["said_by"] == override_id
    assert layers["fc1.weight"]["options"] == {"rank": 2, "factors": "both", "refresh_every": 0}
    assert layers["fc1.weight"]["policy_level"] == layers["fc2.weight"]["level"] == "high"


def test_the_schedule_and_the_decisions_show_the_warm_up(world: World, client: TestClient) -> None:
    warm_up = {"compression": {"warm_up": {"steps": 1_000_000, "level": "half"}}}
    job_id = world.submit(**LONG, **warm_up)
    world.turn_until(lambda: len(world.epochs(job_id)) == 6)
    layers = client.get(f"/api/v1/jobs/{job_id}/schedule").json()["layers"]
    assert {layer["level"] for layer in layers} == {"half"}
    decision = client.get(f"/api/v1/jobs/{job_id}/decisions").json()["items"][0]["decision"]
    assert "the warm-up holds all layers at half until step 1000000" in decision["reason"]


def test_the_api_shows_the_acknowledgements(world: World, client: TestClient) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    path = f"/api/v1/jobs/{job_id}/overrides"
    assert client.post(path, json={"level": "low", "reason": "a look"}).status_code == 202
    world.turn(3)
    [view] = client.get(path).json()["items"]
    assert (view["state"], view["acks"], view["world_size"]) == ("APPLIED", 2, 2)
    assert [ack["rank"] for ack in view["ack_list"]] == [0, 1]


def _superseded_from_5(world: World) -> tuple[str, str, str]:
    """A job in epoch 6 with an older override, superseded by one from epoch 5."""
    job_id = world.submit(training={"epochs": 20})
    world.train(job_id)
    older, newer = (
        world.override(job_id, level="high"),
        world.override(job_id, level="low", apply_at=5),
    )
    world.turn_until(lambda: world.epochs(job_id)[-1:] == [5])
    assert world.override_row(job_id, older).state == "SUPERSEDED"
    return job_id, older, newer


def test_work_that_is_rolled_back_before_the_newer_override_runs_under_the_older(
    world: World,
) -> None:
    job_id, older, newer = _superseded_from_5(world)
    world.runtime.jobs[job_id].saved = Saved()
    world.runtime.forget(job_id)
    world.runtime.break_group(job_id)
    world.turn_until(lambda: world.epochs(job_id)[-1:] == [3])
    world.turn_until(lambda: world.epochs(job_id)[-1:] == [6])
    levels = [row.record["level_by_layer"]["fc1.weight"] for row in world.history.epochs(job_id)]
    assert (set(levels[2:5]), set(levels[5:])) == ({"high"}, {"low"})
    assert [world.override_row(job_id, name).state for name in (older, newer)] == [
        "SUPERSEDED",
        "APPLIED",
    ]


def test_layers_of_a_cancelled_newer_override_return_to_the_policy_not_the_older_one(
    world: World,
) -> None:
    job_id, older, newer = _superseded_from_5(world)
    world.cancel_override(job_id, newer)
    world.turn(3)
    states = [world.override_row(job_id, name).state for name in (older, newer)]
    assert states == ["CANCELLED", "CANCELLED"]
    held = "all its layers are held by newer override #2"
    assert world.override_row(job_id, older).message == f"{held}; cancelled with #2 by admin"
    assert world.runtime.jobs[job_id].orders.overrides == ()


def test_the_reason_of_a_cancellation_and_all_that_it_cancels_are_audited(
    client: TestClient, world: World
) -> None:
    job_id, _, newer = _superseded_from_5(world)
    place = f"/api/v1/jobs/{job_id}/overrides/{newer}"
    gone = client.delete(place, params={"reason": "the loss\nis fine"})
    assert gone.json()["message"] == "cancelled by admin: the loss is fine"
    rows = client.get("/api/v1/audit", params={"action": "override.cancelled"}).json()["items"]
    cancelled = [(row["before"]["number"], row["after"]) for row in rows]
    reason = {"reason": "the loss\nis fine"}
    assert sorted(cancelled) == [(1, reason), (2, reason)]
    assert client.delete(place, params={"reason": "x" * 1001}).status_code == 422
    assert client.delete(place, params={"why": "x"}).status_code == 422


LEVELS = {"batch": {"high": 512}, **LONG}
BATCH = {"target": "batch", "level": "high", "until": 20, "reason": "the link is slow today"}


def test_an_override_of_the_batch_is_applied_once_every_rank_runs_it(
    world: World, client: TestClient
) -> None:
    job_id = world.submit(**LEVELS)
    world.train(job_id)
    made = client.post(f"/api/v1/jobs/{job_id}/overrides", json=BATCH).json()
    world.turn_until(lambda: world.override_row(job_id, made["id"]).state == "APPLIED")
    [view] = client.get(f"/api/v1/jobs/{job_id}/overrides").json()["items"]
    assert (view["target"], view["level"], view["acks"]) == ("batch", "high", 2)
    batch = client.get(f"/api/v1/jobs/{job_id}/schedule").json()["batch"]
    said = {"level": "high", "global_batch": 512, "policy_level": "low", "said_by": made["id"]}
    assert batch == {"low": 64, "high": 512, "min": 17, "max": MAX_SAMPLES, **said}
    world.turn(2)
    assert world.history.epochs(job_id)[-1].record["global_batch"] == 512


def test_the_schedule_says_which_batches_an_override_can_set(
    world: World, client: TestClient
) -> None:
    job_id = world.submit(**LEVELS)
    path = f"/api/v1/jobs/{job_id}"

    def smallest() -> int:
        return int(client.get(f"{path}/schedule").json()["batch"]["min"])

    def override(size: int) -> int:
        body = {"target": "batch", "level": size}
        return client.post(f"{path}/overrides", json=body).status_code

    assert [override(smallest() - 1), override(smallest())] == [422, 202]
    before = smallest()
    client.post(f"{path}/resize", json={"min": 1, "max": 4})
    assert smallest() > before
    assert [override(smallest() - 1), override(smallest())] == [422, 202]


def test_a_batch_override_is_superseded_by_the_next_one_and_by_no_layer_override(
    world: World,
) -> None:
    job_id = world.submit(**LEVELS)
    world.train(job_id)
    older = world.override(job_id, **BATCH)
    layers = world.override(job_id, level="high")
    world.turn_until(lambda: world.override_row(job_id, layers).state == "APPLIED")
    assert world.override_row(job_id, older).state == "APPLIED"
    newer = world.override(job_id, target="batch", level=128)
    world.turn_until(lambda: world.override_row(job_id, newer).state == "APPLIED")
    assert [world.override_row(job_id, name).state for name in (older, layers)] == [
        "SUPERSEDED",
        "APPLIED",
    ]
    assert world.override_row(job_id, older).message == "the batch is held by newer override #3"


def test_the_policy_decides_the_batch_again_after_its_override_is_cancelled(
    world: World, client: TestClient
) -> None:
    job_id = world.submit(**LEVELS)
    world.train(job_id)
    older, newer = (world.override(job_id, target="batch", level=size) for size in (128, 256))
    world.turn_until(lambda: world.override_row(job_id, newer).state == "APPLIED")
    client.delete(f"/api/v1/jobs/{job_id}/overrides/{newer}")
    world.turn(3)
    assert [world.override_row(job_id, name).state for name in (older, newer)] == [
        "CANCELLED",
        "CANCELLED",
    ]
    assert client.get(f"/api/v1/jobs/{job_id}/schedule").json()["batch"]["said_by"] == "policy"


def test_a_job_without_batch_levels_has_no_batch_in_its_schedule(
    world: World, client: TestClient
) -> None:
    job_id = world.submit(**LONG)
    assert client.get(f"/api/v1/jobs/{job_id}/schedule").json()["batch"] is None
