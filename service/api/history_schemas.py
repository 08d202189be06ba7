"""Pages of a job's history."""

from __future__ import annotations

from service.api.schemas import Answer, DecisionView, EpochView


class EpochPage(Answer):
    """One page of finished epochs, in the requested order."""

    items: list[EpochView]
    next_cursor: str | None = None
    """Leads to the next page; null on the last one."""
    total: int = 0
    """Number of finished epochs on all pages."""


class DecisionPage(Answer):
    """One page of decisions, in the requested order."""

    items: list[DecisionView]
    next_cursor: str | None = None
    """Leads to the next page; null on the last one."""
    total: int = 0
    """Number of decisions on all pages."""
