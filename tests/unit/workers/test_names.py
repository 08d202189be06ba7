"""Names of actors, which tell whose they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion_workers.common.names import (
    SupervisorName,
    actor_name,
    find_actor_name,
    installation_of,
    parse_supervisor_name,
    supervisor_name,
)

IDS = st.sampled_from(["", "0", "0123456789ab"])


@given(IDS, st.from_regex(r"[A-Za-z0-9._-]+", fullmatch=True), st.integers(1, 10**6))
def test_supervisor_name_tells_installation_job_and_attempt(
    installation: str, job_id: str, attempt: int
) -> None:
    name = SupervisorName(installation, job_id, attempt)
    assert parse_supervisor_name(supervisor_name(name)) == name


@pytest.mark.parametrize(
    "name",
    ["accordion-v2", "accordion-v2-ab", "job-7", "job-7.", "job-7.x", "7.1", "", "x-job-7.1"],
)
def test_other_names_are_no_supervisors(name: str) -> None:
    assert parse_supervisor_name(name) is None


def test_every_installation_has_an_actor_of_its_own() -> None:
    assert len({actor_name(installation) for installation in ("", "ab", "cd")}) == 3


@pytest.mark.parametrize("name", ["accordion-v1-ab", "accordion-v2-ab", "accordion-v10-ab"])
def test_actors_of_every_release_tell_their_installation(name: str) -> None:
    assert installation_of(name) == "ab"
    assert find_actor_name("ab", ["job-1.1", "accordion-v9-cd", name]) == name


def test_actor_of_this_release_is_preferred_then_the_newest() -> None:
    here, older = actor_name("ab"), ["accordion-v9-ab", "accordion-v10-ab"]
    assert find_actor_name("ab", [*older, here]) == here
    assert find_actor_name("ab", older) == "accordion-v10-ab"
    assert find_actor_name("ab", ["accordion-v1-cd"]) == here
