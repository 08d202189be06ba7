"""What the command line says of itself, and of values that it does not take."""

from __future__ import annotations

from importlib.metadata import version

from tests.unit.service.conftest import Accordion


def test_the_version_is_that_of_the_package(alone: Accordion) -> None:
    said = alone("--version")
    assert (said.code, said.out) == (0, f"accordion {version('accordion-train')}\n")
    assert "--version" in alone("--help").out
