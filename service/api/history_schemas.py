"""Response models for pages of a job's history."""

from __future__ import annotations

from service.api.schemas import Answer, DecisionView, EpochView


class EpochPage(Answer):
    """One page of finished epochs, in the requested order."""

    items: list[EpochView]
    """Epochs of this page."""
    next_cursor: str | None = None
    """Pass it as `cursor` to get the next page; null on the last page."""
    total: int = 0
    """Number of finished epochs on all pages."""


class DecisionPage(Answer):
    """One page of decisions, in the requested order."""

    items: list[DecisionView]
    """Decisions of this page."""
    next_cursor: str | None = None
    """Pass it as `cursor` to get the next page; null on the last page."""
    total: int = 0
    """Number of decisions on all pages."""
