"""`accordion clone`, `change`, and the filters of `list`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest

from tests.unit.service.conftest import Accordion, job_name

STEP = {"hidden": 512, "min_step_s": 1.0}


def set_all(changes: Sequence[str]) -> list[str]:
    return [text for change in changes for text in ("--set", change)]


@pytest.fixture
def job_id(accordion: Accordion, spec: Path) -> str:
    """A job that is over within a second."""
    found: str = accordion("submit", spec, "--json").json()["id"]
    return found


@pytest.fixture
def labeled(accordion: Accordion, spec: Path) -> Iterator[str]:
    """A job that has values of its own in several mappings."""
    given = (
        "workers.node_labels={zone: a}",
        "labels={team: vision}",
        "task.options={hidden: 16}",
        "compression={method: powersgd, high: {rank: 4}}",
    )
    found: str = accordion("submit", spec, *set_all(given), "--json").json()["id"]
    accordion("change", found, "--label", "later:d")
    yield found
    accordion("cancel", found)


def test_a_job_is_cloned_with_changes(accordion: Accordion, job_id: str) -> None:
    made = accordion("clone", job_id, "--set", "training.epochs=2", "--json").json()
    assert (made["cloned_from"], made["spec"]["training"]["epochs"]) == (job_id, 2)
    said = accordion("clone", job_id)
    assert (said.code, f"a clone of {job_id}" in said.out) == (0, True)


def test_a_dry_run_of_a_clone_shows_its_spec_and_stores_nothing(
    accordion: Accordion, job_id: str
) -> None:
    before = len(accordion("list", "--json").json()["items"])
    said = accordion("clone", job_id, "--set", "training.epochs=77", "--dry-run")
    assert (said.code, "epochs: 77" in said.out, "# would " in said.out) == (0, True, True)
    made = accordion("clone", job_id, "--set", "workers.cpus=999", "--dry-run", "--json")
    assert made.json()["would_wait"]
    assert len(accordion("list", "--json").json()["items"]) == before


def test_a_clone_that_will_wait_says_so(accordion: Accordion, job_id: str) -> None:
    said = accordion("clone", job_id, "--set", "workers.cpus=999")
    assert (said.code, "waits: " in said.err) == (0, True)
    accordion("cancel", said.out.partition(" as ")[2].partition(",")[0])


@pytest.mark.parametrize(
    ("changes", "path", "value"),
    [
        (["workers.node_labels={}"], "workers.node_labels", {}),
        (["workers.node_labels={x: y}"], "workers.node_labels", {"x": "y"}),
        (["labels={x: y}", "labels.z=w"], "labels", {"x": "y", "z": "w"}),
        (["labels={x: y}", "labels=null"], "labels", {}),
        (["labels={}"], "labels", {}),
        (["labels.x=y"], "labels", {"team": "vision", "later": "d", "x": "y"}),
        (["task={name: digits-mlp}", "task.options.min_step_s=1"], "task.options", STEP),
        (["task={name: digits-mlp, options: {min_step_s: 1}}"], "task.options", STEP),
        (["compression.high={}"], "compression.high.rank", 1),
        (["compression=null"], "compression.method", "powersgd"),
    ],
)
def test_a_mapping_replaces_all_of_what_the_cloned_job_has_there(
    accordion: Accordion, labeled: str, changes: list[str], path: str, value: object
) -> None:
    said = accordion("clone", labeled, *set_all(changes), "--json")
    assert said.code == 0, said.err
    made = said.json()
    accordion("cancel", made["id"])
    assert reduce(getitem, path.split("."), made["spec"]) == value


def test_the_job_whose_model_is_taken_may_be_named(
    accordion: Accordion, job_id: str, spec: Path, request: pytest.FixtureRequest
) -> None:
    assert accordion("watch", job_id).code == 0
    start = ("--set", f"warm_start.job={job_name(request)}", "--set", "name=later", "--json")
    for arguments in (("submit", spec), ("clone", job_id), ("submit", spec, "--dry-run")):
        said = accordion(*arguments, *start)
        assert said.code == 0, said.err
        assert said.json()["spec"]["warm_start"]["job"] == job_id
    said = accordion("submit", spec, "--set", "warm_start.job=nothing")
    assert (said.code, "there is no job 'nothing'" in said.err) == (2, True)


def test_the_job_whose_model_is_taken_may_have_a_name_as_long_as_an_id(
    accordion: Accordion, job_id: str, spec: Path
) -> None:
    name = f"model-{job_id[-30:]}"
    assert len(name) == len(job_id)
    accordion("change", job_id, "--name", name)
    assert accordion("watch", job_id).code == 0
    said = accordion("submit", spec, "--set", f"warm_start.job={name}", "--dry-run", "--json")
    assert said.code == 0, said.err
    assert said.json()["spec"]["warm_start"]["job"] == job_id


def test_a_clone_with_a_wrong_spec_names_the_field(accordion: Accordion, job_id: str) -> None:
    said = accordion("clone", job_id, "--set", "training.epochs=0")
    assert (said.code, "spec.training.epochs" in said.err) == (2, True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("training.epoch=2", "spec.training.epoch: unknown key 'epoch'; did you mean 'epochs'?"),
        ("wokers.min=2", "spec.wokers: unknown key 'wokers'; did you mean 'workers'?"),
    ],
)
def test_a_clone_with_an_unknown_key_names_the_one_that_was_meant(
    accordion: Accordion, job_id: str, change: str, sentence: str
) -> None:
    said = accordion("clone", job_id, "--set", change)
    assert (said.code, sentence in said.err) == (2, True)


def test_name_priority_and_labels_are_changed(accordion: Accordion, job_id: str) -> None:
    options = ("--name", f"new-{job_id[-6:]}", "--priority", "7", "--label", "team:a")
    assert "has priority 7, team:a" in accordion("change", job_id, *options).out
    changed = accordion("change", job_id, "--label", "team:", "--label", "stage:b", "--json").json()
    assert (changed["labels"], changed["priority"]) == ({"stage": "b"}, 7)


def test_a_change_of_nothing_is_refused(accordion: Accordion, job_id: str) -> None:
    said = accordion("change", job_id)
    assert (said.code, "nothing to change" in said.err) == (2, True)


def test_a_label_of_another_form_is_refused(accordion: Accordion, job_id: str) -> None:
    said = accordion("change", job_id, "--label", "team")
    assert said.code == 2
    assert "not of the form key:value, or key: to remove the label" in said.err


def test_the_list_is_filtered_by_the_start_of_the_name_and_by_owner(
    accordion: Accordion, job_id: str
) -> None:
    name = f"kept-{job_id[-12:]}"
    accordion("change", job_id, "--name", name)

    def listed(*options: str) -> list[str]:
        return [job["id"] for job in accordion("list", *options, "--json").json()["items"]]

    assert listed("--name", name[:-1]) == [job_id]
    assert listed("--name", name, "--owner", "admin") == [job_id]
    assert listed("--name", name, "--owner", "ada") == []
