"""Blocks that queries read on PostgreSQL, by its own count: ended jobs cost nothing.

`test_queries.py` compares the plans of SQLite. PostgreSQL chooses a plan by the rows that are
there, so it gets many.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from accordion_service.schemas.queries import Archived
from accordion_service.store.reads.job_list import JobFilter
from accordion_service.store.tables.models import Base
from accordion_service.views.metrics import metrics_response
from tests.api.world import World
from tests.postgres import Postgres
from tests.unit.service.test_queries import selects

OLD_JOBS = 8_000
MOST_OF_A_LIST, MOST = 400, 100
"""Most blocks of 8 kB that one query of a list, and any other one, may read. A page of 50 jobs is
150: two of the index and one of the table for each; the index of all filters has 300.
"""
TEAM, RUN = "team:a", "run:7"
_COPIED_JOB = {
    "id": "lpad(n::text, 36, '0')",
    "name": "'job-' || n % 1000",
    "owner": "'user-' || n % 40",
    "status": "(ARRAY['SUCCEEDED', 'FAILED', 'CANCELLED'])[1 + n % 3]",
    "created_at": "created_at - 100000 - n",
    "ended_at": "ended_at - 100000 - n",
    "checkpoints_removed_at": "ended_at",
    "archived": "n % 10 = 0",
}
"""Values of the n-th copy of a job, by column; the others are as in the job."""
_COPIED_BY_JOB = {"job_id": "lpad(n::text, 36, '0')"}
_LABEL_ALL = """
INSERT INTO job_labels (job_id, key, value, archived, created_at, kind, owner, name)
SELECT jobs.id, label.key, label.value, archived, created_at, kind, owner, name
FROM jobs, LATERAL (
    VALUES ('team', chr(97 + length(name) % 2)), ('run', (created_at::bigint % 4000)::text)
) AS label (key, value)
"""


@pytest.fixture(scope="module")
def world(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A service with many jobs that ended."""
    url = postgres.create_database()
    world = World(tmp_path_factory.mktemp("home"), database_url=url)
    world.finish(world.submit())
    with postgres.connect(url) as connection:
        for table in Base.metadata.sorted_tables:
            keys = {column.name for column in table.primary_key}
            if table.name != "jobs" and "job_id" not in keys:
                continue
            values = _COPIED_JOB if table.name == "jobs" else _COPIED_BY_JOB
            names = [column.name for column in table.columns]
            copied = ", ".join(values.get(name, name) for name in names)
            connection.execute(
                f"INSERT INTO {table.name} ({', '.join(names)}) SELECT {copied}"
                f" FROM (SELECT * FROM {table.name} LIMIT 2) AS few,"
                f" generate_series(1, {OLD_JOBS}) AS n"
            )
        connection.execute(_LABEL_ALL)
        connection.execute("VACUUM ANALYZE")
    yield world
    world.close()
    postgres.drop_database(url)


def blocks_read(world: World, statement: str, values: Any) -> int:
    """Blocks that a statement reads, of tables and of indexes."""
    explained = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"
    with world.database.connect_writer() as connection:
        [(found,)] = connection.exec_driver_sql(explained, values)
    plan = found[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def expensive(world: World, found: list[tuple[str, Any]], most: int) -> list[tuple[int, str]]:
    """Statements that read more blocks."""
    blocks = [(blocks_read(world, *one), one[0]) for one in found]
    return [one for one in blocks if one[0] > most]


def test_a_query_without_an_index_is_expensive(world: World) -> None:
    assert (
        blocks_read(world, "SELECT count(*) FROM jobs WHERE message = 'x'", {}) > 3 * MOST_OF_A_LIST
    )


@pytest.mark.parametrize("archived", list(Archived))
@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"before": (1_799_898_000.0, "j")},
        {"status": ["FAILED"]},
        {"status": ["FAILED", "RUNNING"]},
        {"name": "job-7"},
        {"name_prefix": "nothing"},
        {"owner": "user-7"},
        {"visible_to": "user-7"},
        {"id": "00000000-0000"},
        {"kind": "guest"},
        {"priority": 99},
        {"reason": ["LOST"], "desired": ["PAUSE"]},
        {"label": [TEAM]},
        {"label": [RUN]},
        {"label": [TEAM, RUN]},
        {"label": [TEAM], "status": ["RUNNING"]},
        {"label": [TEAM], "owner": "user-7"},
    ],
    ids=str,
)
def test_a_list_reads_few_blocks(world: World, filters: dict[str, Any], archived: Archived) -> None:
    with selects(world) as found:
        world.jobs.find(JobFilter(**filters, archived=archived))
    assert found
    assert expensive(world, found, MOST_OF_A_LIST) == []


def test_a_turn_of_the_scheduler_reads_few_blocks(world: World) -> None:
    job_id = world.submit(training={"epochs": 400})
    world.train(job_id)
    waiting = world.submit(workers={"min": 4, "max": 4})
    with selects(world) as found:
        world.turn(8)
    assert len(found) > 8
    assert expensive(world, found, MOST) == []
    for one in (job_id, waiting):
        world.cancel(one)


def test_a_scrape_reads_few_blocks(world: World) -> None:
    with selects(world) as found:
        metrics_response(world.database, datetime.fromtimestamp(world.clock.now, UTC))
    assert len(found) > 8
    assert expensive(world, found, MOST) == []
