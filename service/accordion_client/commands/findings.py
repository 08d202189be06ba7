"""What a check of `doctor` found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check."""

    name: str
    state: Literal["ok", "note", "bad"]
    """`note` is for information: nothing has to be fixed."""
    message: str
