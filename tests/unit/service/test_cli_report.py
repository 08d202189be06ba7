"""`accordion report` and `accordion compare`."""

from __future__ import annotations

from pathlib import Path

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


def test_jobs_that_cannot_be_compared_are_named(
    accordion: Accordion, pair: tuple[str, str], tmp_path: Path
) -> None:
    for arguments, why in (
        (("one",), "there is one job, one; give two or more"),
        (("one", "nobody"), "there is no job 'nobody'"),
        (("one", "one"), "is given 2 times; give different jobs"),
        ((*pair, "--metric", "recall"), "metric is 'recall', and the epochs of these jobs have"),
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
