"""A database with the history of many jobs: copies of one that ran to its end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uuid_utils
from sqlalchemy import (
    Connection,
    Table,
    column,
    create_engine,
    delete,
    insert,
    literal,
    select,
    text,
)

from accordion_service.store.engine.job_labels import label_rows
from accordion_service.store.tables.models import Base, JobLabelRow, JobRow, LeaseRow
from tests.api.world import World

OWNERS = 20
SWEEPS = 500
"""Jobs share a name with those of the same sweep."""
SPACING_S = 20.0
"""Time between two submissions."""
_BATCH = 5_000
_ENDS = ("SUCCEEDED",) * 17 + ("FAILED",) * 2 + ("CANCELLED",)


def add_ended_jobs(url: str, home: Path, number: int) -> None:
    """Create the tables if they are missing, and add ended jobs with all rows that belong to
    one: attempts, epochs, decisions, checkpoints, events and output.
    """
    world = World(home, database_url=url)
    try:
        template = world.submit(name="template")
        world.finish(template)
    finally:
        world.close()
    engine = create_engine(url)
    with engine.begin() as connection:
        # The world's clock is ahead of the machine's, and its scheduler is gone.
        connection.execute(delete(LeaseRow))
        jobs: Table = JobRow.metadata.tables[JobRow.__tablename__]
        row = connection.execute(select(jobs).where(jobs.c.id == template)).mappings().one()
        newest = time.time()
        for first in range(0, number, _BATCH):
            numbers = range(first, min(first + _BATCH, number))
            copies = [
                _copy_job(row, n, submitted_at=newest - (number - n) * SPACING_S) for n in numbers
            ]
            connection.execute(insert(jobs), copies)
            labels = [label for copy in copies for label in label_rows(JobRow(**copy))]
            connection.execute(insert(JobLabelRow), labels)
        for table in Base.metadata.sorted_tables:
            is_copied = table.name not in {"jobs", "job_labels"}
            if is_copied and "job_id" in table.primary_key.columns:
                _copy_rows(connection, table, jobs, template)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        # A history that has grown over months has statistics, and PostgreSQL has vacuumed it.
        is_postgresql = connection.dialect.name == "postgresql"
        connection.execute(text("VACUUM ANALYZE" if is_postgresql else "ANALYZE"))
    engine.dispose()


def _copy_job(row: Mapping[str, Any], number: int, *, submitted_at: float) -> dict[str, Any]:
    return {
        **row,
        "id": str(uuid_utils.uuid7()),
        "name": f"sweep-{number % SWEEPS}",
        "owner": f"user-{number % OWNERS}",
        "status": _ENDS[number % len(_ENDS)],
        "labels": {"team": "abc"[number % 3], "run": str(number)},
        "created_at": submitted_at,
        "started_at": submitted_at + 5.0,
        "ended_at": submitted_at + 65.0,
        "archived": number % 10 == 0,
    }


def _copy_rows(connection: Connection, table: Table, jobs: Table, template: str) -> None:
    """Give all other jobs the template's rows of one table."""
    names = [column_.name for column_ in table.c if column_.name != "job_id"]
    rows = (
        select(jobs.c.id, *(table.c[name] for name in names))
        .join(table, table.c.job_id == literal(template))
        .where(jobs.c.id != template)
    )
    connection.execute(insert(table).from_select([column("job_id"), *map(column, names)], rows))
