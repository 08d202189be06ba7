"""So many rows that PostgreSQL uses its indexes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Float,
    String,
    Table,
    case,
    cast,
    create_engine,
    insert,
    literal,
    select,
    true,
)

from service.store.database import Database
from service.store.models import Base, DeliveryRow, JobRow, LoggerRow, WebhookRow

NUM_ENDED = 6000
"""PostgreSQL reads fewer jobs whole, or sorts them, since that is as fast."""
NUM_WEBHOOKS = 1000
NUM_DELIVERIES = 3000
_DOCUMENT = {f"key {number}": number * 1.1 for number in range(40)}
"""About as long as those of a job."""
_TEMPLATE = {
    "id": "10000000-0000-0000-0000-000000000000",
    "name": "template",
    "status": "SUCCEEDED",
    "desired": "RUN",
    "reason": "COMPLETED",
    "spec": _DOCUMENT,
    "progress": _DOCUMENT,
    "labels": {},
    "priority": 50,
    "min_workers": 1,
    "max_workers": 1,
    "created_at": 0.0,
    "ended_at": 1.0,
}


def add_ended_jobs(database: Database) -> None:
    """Add ended jobs of 20 users: every third is archived, every tenth failed, every fiftieth is a
    guest run, and each had a logger.
    """
    jobs = _table(JobRow)
    numbers = select(literal(1).label("n")).cte("numbers", recursive=True)
    numbers = numbers.union_all(select(numbers.c.n + 1).where(numbers.c.n < NUM_ENDED))
    number = numbers.c.n
    changed: dict[str, Any] = {
        "id": cast(number + 10_000_000, String) + "-0000-0000-0000-000000000000",
        "name": "sweep-" + cast(number % 500, String),
        "owner": "user-" + cast(number % 20, String),
        "kind": case((number % 50 == 0, "guest"), else_="job"),
        "status": case((number % 10 == 0, "FAILED"), else_="SUCCEEDED"),
        "archived": number % 3 == 0,
        "created_at": cast(number, Float),
        "ended_at": cast(number + 10, Float),
    }
    copies = (
        select(*(changed.get(column.name, column) for column in jobs.columns))
        .select_from(jobs.join(numbers, true()))
        .where(jobs.c.id == _TEMPLATE["id"])
    )
    with database.connect_writer() as connection:
        connection.execute(insert(JobRow), [_TEMPLATE])
        connection.execute(insert(jobs).from_select([c.name for c in jobs.columns], copies))
        served = select(jobs.c.id, literal(0), literal("tensorboard"), literal("DONE"))
        columns = ["job_id", "number", "kind", "state"]
        connection.execute(insert(LoggerRow).from_select(columns, served))
    _count_rows(database)


def add_webhooks(database: Database) -> None:
    """Add webhooks of one user, each for the jobs of another user, and delivered messages."""
    row = {"user_name": "admin", "url": "", "statuses": [], "service_url": "", "encrypted": ""}
    rows = [
        {**row, "id": f"{number}", "name": f"{number}", "jobs_of": f"{number}", "created_at": 0.0}
        for number in range(NUM_WEBHOOKS)
    ]
    with database.connect_writer() as connection:
        connection.execute(insert(_table(WebhookRow)), rows)
        connection.execute(insert(DeliveryRow), [_delivery(n) for n in range(NUM_DELIVERIES)])
    _count_rows(database)


def _delivery(number: int) -> dict[str, Any]:
    return {
        "id": f"{number}",
        "webhook_id": f"{number % NUM_WEBHOOKS}",
        "type": "test",
        "body": "",
        "state": "DELIVERED",
        "created_at": float(number),
        "done_at": float(number),
    }


def _table(row: type[Base]) -> Table:
    return row.metadata.tables[row.__tablename__]


def _count_rows(database: Database) -> None:
    """Let PostgreSQL count rows and values, as it does by itself after a while; SQLite does not."""
    if database.engine.dialect.name == "postgresql":
        engine = create_engine(database.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")
        engine.dispose()
