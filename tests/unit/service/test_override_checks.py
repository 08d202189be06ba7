"""Errors of overrides become answers that point to the field of the request."""

from __future__ import annotations

import pytest

from accordion.errors import OverrideError
from service.domain.override_checks import invalid_fields
from service.errors import Invalid


@pytest.mark.parametrize(("field", "pointer"), [("layers/1", "/layers/1"), ("", "")])
def test_a_refused_override_points_to_its_field(field: str, pointer: str) -> None:
    with pytest.raises(Invalid, match="no layer matches") as refused, invalid_fields():
        raise OverrideError("no layer matches 'conv*'", field)
    assert refused.value.pointer == pointer
