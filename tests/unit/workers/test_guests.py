"""Guest runs in the Accordion actor, as a plain class with a clock of the test's own."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from accordion_workers.common.names import actor_name, installation_of
from accordion_workers.hub.accordion_actor import GUEST_SILENCE_S, AccordionActor
from accordion_workers.hub.actor_messages import Fenced, FencingToken, PostResponse
from accordion_workers.records.contract import (
    GUEST_ATTEMPT,
    GUEST_PROTOCOL,
    Cursor,
    EndRecord,
    Guest,
    JobSpec,
    Record,
)

SPEC = JobSpec.model_validate(
    {"name": "digits", "task": {"name": "guest"}, "workers": {"min": 8, "max": 8}}
)


class Clock:
    """The actor's clock."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def actor(clock: Clock) -> AccordionActor:
    return AccordionActor(clock)


def guest(job_id: str = "a", *, generation: int = 1, name: str = "digits") -> Guest:
    return Guest(
        job_id=job_id,
        name=name,
        generation=generation,
        train_run="r",
        ray_job_id="01000000",
        spec=SPEC,
    )


def enlist(actor: AccordionActor, run: Guest) -> Any:
    return asyncio.run(actor.enlist(run))


def post_end(actor: AccordionActor, run: Guest) -> None:
    end = EndRecord(status="SUCCEEDED", reason="COMPLETED")
    record = Record(attempt=GUEST_ATTEMPT, generation=run.generation, seq=0, time=0.0, payload=end)
    asyncio.run(actor.post(run.job_id, FencingToken(GUEST_ATTEMPT, run.generation), [record]))


def test_guests_are_listed_until_they_are_forgotten(actor: AccordionActor) -> None:
    runs = guest("a", name="one"), guest("b", name="two")
    assert all(isinstance(enlist(actor, run), PostResponse) for run in (*runs, runs[0]))
    assert asyncio.run(actor.guests()) == runs
    asyncio.run(actor.forget("a"))
    assert asyncio.run(actor.guests()) == runs[1:]


def test_the_younger_of_two_guests_of_a_name_is_told_of_the_older(actor: AccordionActor) -> None:
    assert enlist(actor, guest("b")).namesake is None
    assert enlist(actor, guest("a")).namesake is None
    assert enlist(actor, guest("b")).namesake == "a"
    assert asyncio.run(actor.guests()) == (guest("b"), guest("a"))


def test_a_silent_guest_is_no_namesake(actor: AccordionActor, clock: Clock) -> None:
    enlist(actor, guest("a"))
    clock.now = GUEST_SILENCE_S - 1
    assert enlist(actor, guest("b")).namesake == "a"
    clock.now = GUEST_SILENCE_S
    assert enlist(actor, guest("b")).namesake is None


def test_a_guest_that_has_ended_is_no_namesake_until_it_goes_on(actor: AccordionActor) -> None:
    enlist(actor, guest("a"))
    post_end(actor, guest("a"))
    assert enlist(actor, guest("b")).namesake is None
    enlist(actor, guest("a", generation=2))
    assert enlist(actor, guest("b")).namesake == "a"


def test_a_guest_that_makes_no_steps_is_not_silent(actor: AccordionActor, clock: Clock) -> None:
    enlist(actor, guest("a"))
    clock.now = 90.0
    enlist(actor, guest("a"))
    clock.now = 100.0
    assert asyncio.run(actor.drain("a", Cursor())).silent_s == 10.0


def test_a_job_of_the_service_has_no_silence(actor: AccordionActor) -> None:
    asyncio.run(actor.log("a", [], 1))
    assert asyncio.run(actor.drain("a", Cursor())).silent_s is None


def test_the_actor_tells_its_version_in_plain_values(actor: AccordionActor) -> None:
    protocol, version = asyncio.run(actor.guest_protocol())
    assert protocol == GUEST_PROTOCOL
    assert version


def test_an_older_generation_of_a_guest_is_refused(actor: AccordionActor) -> None:
    enlist(actor, guest(generation=2))
    assert enlist(actor, guest(generation=1)) == Fenced(newest=FencingToken(GUEST_ATTEMPT, 2))
    assert asyncio.run(actor.guests()) == (guest(generation=2),)


def test_the_spec_of_a_guest_keeps_what_is_known_on_its_way() -> None:
    there = pickle.loads(pickle.dumps(guest()))
    known = {"name": "digits", "task": {"name": "guest"}, "workers": {"min": 8, "max": 8}}
    assert there.spec.model_dump(exclude_unset=True) == known


def test_a_job_that_is_no_guest_must_still_have_a_share_for_every_worker() -> None:
    with pytest.raises(ValidationError, match="lower micro_batch or workers"):
        JobSpec.model_validate({"task": {"name": "synthetic"}, "workers": {"min": 8, "max": 8}})


@pytest.mark.parametrize("installation", ["", "0123456789ab"])
def test_the_name_of_an_actor_tells_its_installation(installation: str) -> None:
    assert installation_of(actor_name(installation)) == installation
    assert installation_of("job-1.2") is None
