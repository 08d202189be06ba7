"""Pages of a job's history."""

from __future__ import annotations

from service.api.schemas import Answer, DecisionView, EpochView


class EpochPage(Answer):
    """Finished epochs, oldest first unless the newest were asked for."""

    items: list[EpochView]
    next_cursor: str | None = None
    """Leads to the next page; null on the last one."""
    total: int = 0
    """Finished epochs on all pages."""


class DecisionPage(Answer):
    """Decisions, oldest first unless the newest were asked for."""

    items: list[DecisionView]
    next_cursor: str | None = None
    """Leads to the next page; null on the last one."""
    total: int = 0
    """Decisions on all pages."""
