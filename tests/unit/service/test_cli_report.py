"""`accordion report` and `accordion compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from accordion_client import Client
from tests.api.conftest import Live
from tests.unit.service.conftest import SPEC, Accordion


@pytest.fixture(scope="module")
def pair(service: Live) -> tuple[str, str]:
    """Names of two jobs that have ended, and differ in the learning rate."""
    with Client(service.url) as client:
        for name, rate in (("one", 0.1), ("two", 0.2)):
            training = {"epochs": 3, "optimizer": {"name": "sgd", "lr": rate}}
            spec = {"name": name, "task": {"name": "digits-mlp"}, "training": training}
            assert list(client.events(client.submit(spec).id))
    return "one", "two"


def flat(text: str) -> str:
    """Text of an error in a box, in one line."""
    return " ".join(text.replace("│", " ").split())


def test_a_report_is_written_beside_the_caller(
    accordion: Accordion, pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = accordion("report", "one")
    assert (said.code, said.out.startswith("wrote one.html (")) == (0, True)
    assert "<title>one · report · Accordion</title>" in Path("one.html").read_text()
    again = accordion("report", "one")
    assert again.code == 2
    assert "one.html exists; give another file with --to, or --force" in flat(again.err)
    assert accordion("report", "one", "--force").code == 0
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["one.html"]


def test_a_place_that_takes_no_file_is_named(
    accordion: Accordion, pair: tuple[str, str], tmp_path: Path
) -> None:
    said = accordion("report", "one", "--to", tmp_path)
    assert (said.code, "is a directory; give a file with --to" in flat(said.err)) == (2, True)
    said = accordion("report", "one", "--to", tmp_path / "none" / "a.html")
    assert (said.code, "give another file with --to" in said.err) == (2, True)
    said = accordion("report", "nobody", "--to", tmp_path / "a.html")
    assert (said.code, "there is no job 'nobody'" in said.err) == (2, True)


def test_two_jobs_are_compared(accordion: Accordion, pair: tuple[str, str]) -> None:
    said = accordion("compare", *pair, "--metric", "accuracy", "--reaches", "0.3")
    assert said.code == 0
    rows = {line.split("  ")[0]: line.split() for line in said.out.splitlines()}
    assert rows["training.optimizer.lr"] == ["training.optimizer.lr", "0.1", "0.2"]
    assert rows["epochs"] == ["epochs", "3", "3"]
    assert "in epoch 1, after" in said.out
    document = accordion("compare", *pair, "--json").json()
    assert [job["name"] for job in document["jobs"]] == ["one", "two"]
    assert document["spec"] == {"training.optimizer.lr": [0.1, 0.2]}


def test_a_simulation_is_compared_with_a_job(
    accordion: Accordion, pair: tuple[str, str], tmp_path: Path
) -> None:
    file, out = tmp_path / "job.yaml", tmp_path / "runs"
    file.write_text("task: {name: digits-mlp, options: {hidden: 16}}\ntraining: {epochs: 1}\n")
    assert accordion("simulate", file, "--workers", "1", "--out", out).code == 0
    document = accordion("compare", out, pair[0], "--json").json()
    assert [job["name"] for job in document["jobs"]] == ["runs/seed-0", "one"]


@pytest.fixture
def runs(accordion: Accordion, tmp_path: Path) -> Path:
    """Folder of a simulation with two seeds."""
    file, out = tmp_path / "job.yaml", tmp_path / "runs"
    file.write_text("task: {name: digits-mlp, options: {hidden: 16}}\ntraining: {epochs: 2}\n")
    given = ("--workers", "2", "--seeds", "0,1", "--out", out)
    assert accordion("simulate", file, *given).code == 0
    return out


def read_data(file: Path) -> dict[str, Any]:
    text = file.read_text().split('id="report-data">')[1]
    return dict(json.loads(text.split("</script>")[0]))


def test_simulations_and_jobs_are_reported_side_by_side(
    accordion: Accordion, pair: tuple[str, str], runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs.parent)
    assert accordion("report", "runs", "one").out.startswith("wrote runs-one.html (")
    simulated, job = read_data(Path("runs-one.html"))["groups"]
    assert (simulated["name"], job["name"]) == ("runs", "one")
    assert simulated["epochs"][-1]["loss_half"] > 0
    assert len(job["epochs"]) == 3
    assert accordion("report", *pair, "--to", "pair.html").code == 0
    assert [one["name"] for one in read_data(Path("pair.html"))["groups"]] == list(pair)
    said = accordion("report", "runs", "runs/seed-0", "--to", "twice.html")
    assert (said.code, "is given 2 times" in flat(said.err)) == (2, True)
    assert not Path("twice.html").exists()


def test_one_simulated_run_has_the_report_of_a_job(
    alone: Accordion, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs.parent)
    monkeypatch.delenv("ACCORDION_URL")
    (runs / "seed-1" / "output.log").write_text("a line of the task\n")
    assert alone("report", "runs/seed-1").out.startswith("wrote seed-1.html (")
    html, data = Path("seed-1.html").read_text(), read_data(Path("seed-1.html"))
    assert [row["epoch"] for row in data["epochs"]] == [0, 1]
    assert data["decisions"]
    assert data["layers"]
    for said in (
        "Simulation <code>runs/seed-1</code>, 2 simulated workers",
        "the workers took turns, not of a cluster, and bytes are",
        "Bytes by method",
        "(control)",
        "a line of the task",
    ):
        assert said in html
    said = alone("report", "runs", "nobody", "--to", "none.html")
    assert said.code == 3
    assert not Path("none.html").exists()


def test_jobs_that_cannot_be_compared_are_named(
    accordion: Accordion, pair: tuple[str, str], tmp_path: Path
) -> None:
    for arguments, why in (
        (("one",), "there is one job, one; give two or more"),
        (("one", "nobody"), "there is no job 'nobody'"),
        (("one", "one"), "is given 2 times; give different jobs"),
        ((*pair, "--metric", "recall"), "metric is 'recall', and the epochs of these jobs have"),
        ((*pair, "--reaches", "nan"), "--reaches is nan; give a finite number"),
    ):
        said = accordion("compare", *arguments)
        assert (said.code, why in flat(said.err)) == (2, True), said.err
    spec = tmp_path / "job.yaml"
    spec.write_text(SPEC.replace("NAME", "waits") + "workers: {min: 400, max: 400}\n")
    wide = ("--set", "training.global_batch=6400")
    waiting = accordion("submit", spec, *wide, "--json").json()["id"]
    said = accordion("compare", "one", "waits")
    accordion("cancel", waiting)
    assert (said.code, "has finished no epoch; wait for its first epoch" in flat(said.err)) == (
        2,
        True,
    )
