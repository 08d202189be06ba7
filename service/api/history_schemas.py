"""Response models for pages of a job's history, and for what is missing of it."""

from __future__ import annotations

from typing import Literal

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


class GapView(Answer):
    """Events that a stream leaves out because the service no longer has them, as the `data` of a
    server-sent event. The ID of that event is `to_seq`, so that the next one follows it.
    """

    type: Literal["gap"] = "gap"
    """Always `gap`."""
    from_seq: int
    """Sequence number of the first missing event."""
    to_seq: int
    """Sequence number of the last missing event."""
    why: str
    """Why they are missing, in a sentence."""
