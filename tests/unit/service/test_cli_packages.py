"""`accordion submit`, `watch` and `show` of jobs with packages."""

from __future__ import annotations

from pathlib import Path

from accordion_service.schemas.format import format_packages
from tests.unit.service.conftest import Accordion

PIP = "pip: [einops==0.8.0, acc-beta==1.2]\n"
SHOWN = "einops 0.8.0, acc-beta 1.2 (86.4 kB, resolved in 2 s)"


def test_a_job_shows_what_its_packages_resolved_to(accordion: Accordion, spec: Path) -> None:
    spec.write_text(spec.read_text() + PIP)
    watched = accordion("submit", spec, "--follow")
    assert watched.code == 0
    assert f"packages: {SHOWN}" in watched.out
    [line] = [line for line in accordion("list", "--json").json()["items"] if line["packages"]]
    shown = " ".join(accordion("show", line["id"]).out.split())
    assert f"packages {SHOWN}" in shown
    found = accordion("show", line["id"], "--json").json()["job"]["packages"]
    assert [one["name"] for one in found["packages"]] == ["einops", "acc-beta"]


def test_an_option_of_pip_is_a_usage_error(accordion: Accordion, spec: Path) -> None:
    said = accordion("submit", spec, "--set", "pip=[--index-url=https://a.example]")
    assert said.code == 2
    assert "--index-url is an option of pip" in said.err


def test_packages_that_the_workers_have_are_not_listed() -> None:
    found = {"packages": [], "size_bytes": 0, "seconds": 1.0}
    assert format_packages(found) == "none, because the workers have all that pip names"
