"""Quotas: what users may hold at the same time."""

from __future__ import annotations

from sqlalchemy import select

from accordion_service.domain.capacity.quotas import Quota, QuotaTable
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.rows import read_rows
from accordion_service.store.tables.models import QuotaRow


def read_quotas(database: Database) -> QuotaTable:
    """Return all quotas."""
    return QuotaTable(
        quotas={
            row.account: Quota(jobs=row.jobs, workers=row.workers, gpus=row.gpus)
            for row in read_rows(database, select(QuotaRow).order_by(QuotaRow.account))
        }
    )
