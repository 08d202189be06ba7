"""Errors of overrides become answers that point to the field of the request."""

from __future__ import annotations

import pytest

from accordion.base.errors import OverrideError
from accordion.config import Config
from accordion.decide.override_levels import resolve_level
from accordion_service.domain.overrides.validity import check_effect, invalid_fields
from accordion_service.errors import Invalid


@pytest.mark.parametrize(("field", "pointer"), [("layers/1", "/layers/1"), ("", "")])
def test_a_refused_override_points_to_its_field(field: str, pointer: str) -> None:
    with pytest.raises(Invalid, match="no layer matches") as refused, invalid_fields():
        raise OverrideError("no layer matches 'conv*'", field)
    assert refused.value.pointer == pointer


@pytest.mark.parametrize("level", ["low", "high", {"method": "none"}])
def test_an_override_of_a_job_that_never_compresses_is_refused_with_the_way_out(
    level: str | dict[str, str],
) -> None:
    config = Config(method="none")
    with pytest.raises(OverrideError, match="changes nothing: ") as found:
        check_effect(resolve_level(level, config.ladder()), config)
    assert found.value.field == "level"
    assert "clone the job with another compression.method" in str(found.value)


@pytest.mark.parametrize(
    ("config", "level"),
    [
        (Config(method="none"), {"method": "powersgd", "rank": 1}),
        (Config(method="none", policy="cost_aware"), "low"),
        (Config(method="powersgd"), {"method": "none"}),
        (Config(method="signsgd"), "high"),
    ],
)
def test_an_override_that_may_change_something_is_not_refused(
    config: Config, level: str | dict[str, str | int]
) -> None:
    check_effect(resolve_level(level, config.ladder()), config)
