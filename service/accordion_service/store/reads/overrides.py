"""Overrides: levels that users set, and which workers have acknowledged them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from accordion_service.store.engine.database import Database
from accordion_service.store.reads.rows import read_first_row, read_rows
from accordion_service.store.tables.models import AckRow, OverrideRow


@dataclass(frozen=True, slots=True)
class OverrideReads:
    """Reads overrides of a job."""

    database: Database

    def list_all(self, job_id: str) -> list[OverrideRow]:
        """All overrides, oldest first."""
        return read_rows(
            self.database,
            select(OverrideRow).where(OverrideRow.job_id == job_id).order_by(OverrideRow.number),
        )

    def get(self, job_id: str, override_id: str) -> OverrideRow | None:
        """One override of the job."""
        return read_first_row(
            self.database,
            select(OverrideRow).where(OverrideRow.job_id == job_id, OverrideRow.id == override_id),
        )

    def acks(self, job_id: str) -> dict[str, list[AckRow]]:
        """Acknowledgements by override id, in rank order."""
        query = (
            select(AckRow)
            .join(OverrideRow)
            .where(OverrideRow.job_id == job_id)
            .order_by(AckRow.rank)
        )
        by_override: dict[str, list[AckRow]] = {}
        for ack in read_rows(self.database, query):
            by_override.setdefault(ack.override_id, []).append(ack)
        return by_override
