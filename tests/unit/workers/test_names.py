"""Names of actors, which tell whose they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.names import SupervisorName, actor_name, parse_supervisor_name, supervisor_name

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
