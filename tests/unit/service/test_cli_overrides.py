"""`override` and `hand-back` on the command line."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from accordion_client import Client
from accordion_client.commands.overrides import parse_level
from accordion_service.errors import SettingsError
from accordion_service.schemas.overrides import OverrideRequest
from tests.api.conftest import Live
from tests.unit.service.conftest import Accordion


def test_an_override_waits_until_every_rank_has_switched(
    accordion: Accordion, running: str
) -> None:
    said = accordion("override", running, "--level", "high", "--layers", "fc1*", "--wait", "--json")
    made = said.json()
    assert said.code == 0
    assert (made["state"], made["acks"], made["world_size"], made["layers"]) == (
        "APPLIED",
        2,
        2,
        ["fc1*"],
    )


FOUR = (
    ({"level": "low"}, ("*",)),
    ({"level": {"rank": 2}}, ("fc2*",)),
    ({"level": "low"}, ("fc2*",)),
    ({"level": {"rank": 3}}, ("fc3*",)),
)
"""Overrides of one job: #3 supersedes #2, and #4 takes some layers of #1."""


@pytest.fixture
def overridden(service: Live, running: str) -> str:
    """Id of a running job with the four overrides."""
    with Client(service.url) as client:
        override_four_times(client, running)
    return running


@pytest.fixture(scope="module")
def untouched(service: Live) -> Iterator[str]:
    """Id of a running job with the four overrides, for tests that change none of them."""
    spec = {"name": "untouched", "task": {"name": "digits-mlp"}, "training": {"epochs": 30000}}
    with Client(service.url) as client:
        job_id = client.submit(spec).id
        override_four_times(client, job_id)
        yield job_id
        client.cancel(job_id)


def override_four_times(client: Client, job_id: str) -> None:
    for level, layers in FOUR:
        client.override(job_id, OverrideRequest(**level, layers=list(layers)))
        limit = time.monotonic() + 30
        while client.overrides(job_id).items[-1].state != "APPLIED":
            assert time.monotonic() < limit, client.overrides(job_id).items[-1]
            time.sleep(0.02)


def test_overrides_are_cancelled_by_their_numbers(accordion: Accordion, overridden: str) -> None:
    said = accordion("hand-back", overridden, "4", "#3", "4", "--reason", "all is well")
    told = [
        "override #2: rank=2 for fc2*: CANCELLED (all its layers are held by newer override #3;"
        " cancelled with #3 by admin)",
        "override #3: low for fc2*: CANCELLED (cancelled by admin: all is well)",
        "override #4: rank=3 for fc3*: CANCELLED (cancelled by admin: all is well)",
    ]
    assert (said.code, said.out.splitlines()) == (0, told)


def test_all_active_overrides_are_cancelled_at_once(accordion: Accordion, overridden: str) -> None:
    items = accordion("hand-back", overridden, "--json").json()["items"]
    assert [(row["number"], row["state"]) for row in items] == [
        (n, "CANCELLED") for n in (1, 2, 3, 4)
    ]
    again = accordion("hand-back", overridden)
    assert (again.code, "has no active override" in again.out) == (0, True)


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        ("7", "has no override #7; its overrides are #1, #2, #3, #4"),
        ("x", "has no override #x; its overrides are #1, #2, #3, #4"),
        ("2", "override #2 is SUPERSEDED already: all its layers are held by newer override #3"),
    ],
)
def test_no_override_is_cancelled_if_one_cannot_be(
    accordion: Accordion, untouched: str, number: str, sentence: str
) -> None:
    said = accordion("hand-back", untouched, "1", number)
    assert (said.code, said.out, sentence in said.err) == (2, "", True)
    states = [row["state"] for row in accordion("show", untouched, "--json").json()["overrides"]]
    assert states == ["APPLIED", "SUPERSEDED", "APPLIED", "APPLIED"]


def test_show_names_overrides_by_their_numbers(accordion: Accordion, untouched: str) -> None:
    shown = accordion("show", untouched).out
    assert re.search(r"fc3.weight .* override #4\n", shown)
    assert "override #4 by admin holds 1 of 3 layers" in shown
    assert "#1: low for *: APPLIED" in shown
    below = "\n".join(
        line for line in shown.splitlines()[1:] if not line.startswith(("ray", "storage"))
    )
    assert re.search(r"[0-9a-f]{8}-[0-9a-f]{4}", below) is None


def test_user_overrides_the_batch_of_a_job_with_batch_levels(
    accordion: Accordion, spec: Path
) -> None:
    levels = ["--set", "batch={high: 512}", "--set", "training={epochs: 30000}"]
    job_id = accordion("submit", spec, *levels, "--json").json()["id"]
    try:
        said = accordion("override", job_id, "--batch", "256", "--wait")
        assert (said.code, "256 for the batch: APPLIED in epoch" in said.out) == (0, True)
        assert "256 samples a step" in accordion("show", job_id).out
    finally:
        accordion("cancel", job_id)


def test_user_overrides_the_local_steps_of_a_job_that_has_them(
    accordion: Accordion, spec: Path
) -> None:
    ladder = ["--set", "local_steps={low: 4, high: 16}", "--set", "compression={method: half}"]
    job_id = accordion("submit", spec, *ladder, "--set", "training={epochs: 30000}", "--json")
    job_id = job_id.json()["id"]
    try:
        refused = accordion("override", job_id, "--local-steps", "17")
        assert refused.code == 2
        assert refused.err.startswith("accordion: level is 17 local steps; rounds of this job have")
        said = accordion("override", job_id, "--local-steps", "9", "--wait")
        assert (said.code, "9 for local steps: APPLIED in epoch" in said.out) == (0, True)
        [row] = [line for line in accordion("show", job_id).out.splitlines() if "a round" in line]
        assert re.split(r" {2,}", row.strip()) == [
            "rounds",
            "9 local steps a round",
            "4",
            "override #1",
        ]
        shown = accordion("show", job_id).out.splitlines()
        [heads] = [line for line in shown if line.startswith("EPOCH ")]
        place = heads.index("LOCAL STEPS")
        assert shown[-1][place : place + len("LOCAL STEPS")].strip() == "9"
    finally:
        accordion("cancel", job_id)


def test_an_override_has_one_target(accordion: Accordion) -> None:
    said = accordion("override", "x", "--batch", "low", "--local-steps", "low")
    assert (said.code, "for the global batch, --local-steps, --lr" in said.err) == (2, True)


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--lr", "nan", "lr is 'nan'; give a number above 0, up to 100"),
        ("--lr", "-0.1", "lr is '-0.1'; give a number above 0, up to 100"),
        ("--clip-norm", "1e300", "--clip-norm is 1e+300; give a number from 0 to 1000000000000;"),
        ("--level", "-1", "unknown level '-1'; known are low (0), high (1)"),
    ],
)
def test_a_number_that_is_no_level_is_told_with_its_option(
    accordion: Accordion, untouched: str, option: str, value: str, sentence: str
) -> None:
    said = accordion("override", untouched, f"{option}={value}")
    assert said.code == 2
    assert sentence in said.err


def test_user_overrides_the_optimizer(accordion: Accordion, spec: Path) -> None:
    limits = "training={epochs: 30000, override_ranges: {lr: [0.01, 0.4]}}"
    job_id = accordion("submit", spec, "--set", limits, "--json").json()["id"]
    try:
        refused = accordion("override", job_id, "--lr", "0.5")
        assert refused.code == 2
        assert "lr is 0.5; give a number from 0.01 to 0.4" in refused.err
        said = accordion("override", job_id, "--lr", "factor=0.5", "--wait")
        assert (said.code, "factor=0.5 for the learning rate: APPLIED in" in said.out) == (0, True)
        assert accordion("override", job_id, "--clip-norm", "2.5", "--wait").code == 0
        shown = accordion("show", job_id).out.splitlines()
        rows = [re.split(r" {2,}", line.strip()) for line in shown]
        assert ["lr factor", "0.5", "override #1"] in rows
        assert ["clip norm", "2.5", "override #2"] in rows
    finally:
        accordion("cancel", job_id)


def test_a_job_without_local_steps_shows_no_rounds(accordion: Accordion, untouched: str) -> None:
    shown = accordion("show", untouched).out
    assert "a round" not in shown
    assert "LOCAL STEPS" not in shown


def test_an_override_that_is_not_applied_gives_exit_code_1(
    accordion: Accordion, running: str, service: Live
) -> None:
    service.runtime.mute.add(1)
    until = accordion("show", running, "--json").json()["job"]["progress"]["epoch"] + 40
    try:
        said = accordion("override", running, "--level", "rank=2", "--until", until, "--wait")
    finally:
        service.runtime.mute.clear()
    assert said.code == 1
    assert "EXPIRED" in said.out


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--apply-at", "tomorrow", "give next_step, next_epoch or an epoch from 0"),
        ("--until", "30001", "the job has 30000 epochs; give at most 30000, or leave it out"),
    ],
)
def test_a_time_that_no_override_can_have_is_refused_with_those_it_can(
    accordion: Accordion, untouched: str, option: str, value: str, sentence: str
) -> None:
    said = accordion("override", untouched, "--level", "low", option, value)
    assert (said.code, said.err.count(value), sentence in said.err) == (2, 1, True), said.err


def test_an_option_of_a_level_is_given_once() -> None:
    for text in ("rank=2,rank=4", '{"rank": 2, "rank": 4}'):
        with pytest.raises(SettingsError, match="gives 'rank' more than once"):
            parse_level(text)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("low", "low"),
        ("2", 2),
        ("rank=2", {"rank": 2}),
        ('{"rank": 2}', {"rank": 2}),
        ("method=topk,density=0.1", {"method": "topk", "density": 0.1}),
        ("9" * 5000, "9" * 5000),  # no level, as the service says
    ],
)
def test_level_is_a_name_an_index_or_options(text: str, level: object) -> None:
    assert parse_level(text) == level


@pytest.mark.parametrize("text", ["=3", "rank=", "rank=2,", "method=topk,density"])
def test_an_option_without_a_name_or_a_value_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=f"the level is '{text}'; give options a value"):
        parse_level(text)


def test_a_level_that_is_no_json_is_refused_with_the_way_out() -> None:
    with pytest.raises(
        SettingsError, match=r"--level is '\{rank: 2\}', which is not JSON: .*; write it as rank=2"
    ):
        parse_level("{rank: 2}")


def test_waiting_for_an_override_of_a_paused_job_says_so(
    accordion: Accordion, running: str, service: Live
) -> None:
    accordion("pause", running)
    with Client(service.url) as client:
        next(
            event
            for event in client.events(running)
            if getattr(event, "data", {}).get("status") == "PAUSED"
        )
        canceller = threading.Thread(target=cancel_once_overridden, args=(client, running))
        canceller.start()
        said = accordion("override", running, "--level", "low", "--wait")
        canceller.join()
    assert (said.code, "EXPIRED (the job ended)" in said.out) == (1, True)
    assert re.search(
        "waiting until every rank has applied override #1; '.*' is paused; continue it with",
        said.err,
    )


def test_override_of_a_job_that_waits_in_the_queue_tells_that_it_does_not_train_yet(
    accordion: Accordion, service: Live
) -> None:
    with Client(service.url) as client:
        spec = {"name": "large", "task": {"name": "digits-mlp"}, "workers": {"cpus": 999}}
        queued = client.submit(spec).id
        canceller = threading.Thread(target=cancel_once_overridden, args=(client, queued))
        canceller.start()
        said = accordion("override", queued, "--level", "low", "--wait")
        canceller.join()
    assert "override #1; 'large' is QUEUED and does not train yet" in said.err


def cancel_once_overridden(client: Client, job_id: str) -> None:
    while not client.overrides(job_id).items:
        time.sleep(0.05)
    client.cancel(job_id)


def test_show_tells_the_warm_up_beside_the_levels(accordion: Accordion, spec: Path) -> None:
    warm_up = "compression.warm_up={steps: 50, level: half}"
    job_id = accordion("submit", spec, "--set", warm_up, "--json").json()["id"]
    assert "(half in the first 50 steps), policy" in accordion("show", job_id).out
