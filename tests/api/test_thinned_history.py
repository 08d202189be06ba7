"""Whole histories in bounded answers, as the charts of a job's page read them."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from accordion_service.store.tables.models import JobRow
from accordion_workers.spec.public_records import Bytes
from tests.api.team import JOBS
from tests.api.test_reports import MANY, lengthen
from tests.api.test_streams import frames
from tests.api.world import World


def get_history(client: TestClient, job_id: str, points: int) -> dict[str, Any]:
    answer = client.get(f"{JOBS}/{job_id}/history", params={"points": points})
    assert answer.status_code == 200
    return dict(answer.json())


def test_the_history_of_a_short_job_has_all_that_its_epochs_have(
    client: TestClient, world: World
) -> None:
    job = world.finish(world.submit())
    epochs = client.get(f"{JOBS}/{job.id}/epochs").json()["items"]
    found = get_history(client, job.id, 400)
    columns, names = found["epochs"], found["names"]
    for at, row in enumerate(epochs):
        for name in ("epoch", "step", "attempt", "generation", "world_size", "loss", "lr"):
            assert columns[name][at] == row[name]
        row["bytes"] = Bytes(**row["bytes"]).totals()  # charts do not draw bytes by method
        for name in ("metrics", "seconds_by_phase", "bytes"):
            assert {key: values[at] for key, values in columns[name].items()} == row[name]
        for name in ("regime_by_layer", "level_by_layer"):
            coded = {layer: names[codes[at]] for layer, codes in columns[name].items()}
            assert coded == row[name]


def test_the_history_of_a_short_job_has_its_decisions_and_overrides(
    client: TestClient, world: World
) -> None:
    job_id = world.submit()
    world.train(job_id)
    override = world.override(job_id, level="low")
    world.finish(job_id)
    decisions = client.get(f"{JOBS}/{job_id}/decisions").json()["items"]
    found = get_history(client, job_id, 400)
    columns = found["decisions"]
    assert columns["step"] == [row["decision"]["step"] for row in decisions]
    for layer, changes in columns["change_by_layer"].items():
        exact = [row["decision"]["change_by_layer"].get(layer) for row in decisions]
        assert changes == [one if one is None else float(f"{one:.4g}") for one in exact]
    codes = next(iter(columns["override_by_layer"].values()))
    assert next(found["names"][code] for code in codes if code is not None) == override


def test_a_history_is_bounded_and_keeps_its_ends(client: TestClient, world: World) -> None:
    job = world.finish(world.submit())
    lengthen(world, job.id)
    found = get_history(client, job.id, 40)
    epochs, decisions = found["epochs"]["epoch"], found["decisions"]["epoch"]
    assert (len(epochs), epochs[0], epochs[-1]) == (40, 0, MANY - 1)
    assert (found["num_epochs"], len(decisions) <= 40) == (MANY, True)
    assert decisions[-1] == MANY - 1
    with world.database.write() as session:
        row = session.get(JobRow, job.id)
        assert row is not None
        assert row.layers
        row.layers = [{**row.layers[0], "name": f"layer{n}"} for n in range(5000)]
    assert len(get_history(client, job.id, 400)["epochs"]["epoch"]) == 20


@pytest.mark.parametrize("headers", [{}, {"Last-Event-ID": "1"}])
def test_brief_events_of_the_past_come_without_values_by_layer(
    client: TestClient, world: World, headers: dict[str, str]
) -> None:
    job = world.finish(world.submit())

    def read(query: str) -> list[dict[str, str]]:
        text = client.get(f"{JOBS}/{job.id}/events{query}", headers=headers).text
        return [one for one in frames(iter(text.split("\n"))) if one["event"] != "progress"]

    whole, brief = read(""), read("?brief=true")
    assert [one["id"] for one in brief] == [one["id"] for one in whole]
    assert "_by_layer" in "".join(one["data"] for one in whole)
    assert "_by_layer" not in "".join(one["data"] for one in brief)
    epochs = [one for one in whole if one["event"] == "epoch"]
    assert epochs
    assert len("".join(one["data"] for one in brief)) < len("".join(one["data"] for one in whole))
