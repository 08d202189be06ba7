"""Types and limits of the fields of a job's specification, and the base of its parts."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field

from accordion_workers.common.described_models import DescribedModel
from accordion_workers.spec.patterns import SHA256_PATTERN

MAX_LABELS = 32
"""Maximum number of labels of a job."""
MAX_PRIORITY = 100
"""Highest priority of a job."""
MAX_SAMPLES = 10_000_000
"""Largest global batch."""
MAX_VALUE_LENGTH = 32_000
"""Maximum characters of the value of an environment variable. Each has up to 4 bytes, and Linux
takes 128 KiB with the name.
"""
LABEL_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$"
Label = Annotated[str, Field(min_length=1, max_length=63, pattern=LABEL_PATTERN)]
Sha256 = Annotated[str, Field(pattern=SHA256_PATTERN)]


class Strict(DescribedModel):
    """A frozen record that rejects unknown fields, and numbers that are not finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _read_whole(value: object) -> object:
    """Return a float without a fraction, such as 5.0, as an integer, which it is in JSON Schema;
    return every other value as it is.
    """
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, Field(strict=True), BeforeValidator(_read_whole)]
"""A whole number, such as 5 or 5.0; strings and booleans are rejected."""
Number = Annotated[float, Field(strict=True)]
"""A number, whole or not; strings and booleans are rejected."""
