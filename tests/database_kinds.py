"""Which tests run on SQLite, which on PostgreSQL and which on both."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

REFUSED_EARLY = "the request is refused before it reaches the database"
"""Reason of `sqlite_only` for tests that only vary what is wrong with a request."""
DATABASE_FIXTURES = ("database_url", "shared_database_url")
"""Fixtures whose tests can run on SQLite and on PostgreSQL."""
ON_BOTH_DATABASES = frozenset(
    {
        "api/test_any_life",
        "api/test_failover",
        "api/test_two_of_each",
        "api/test_writers",
        "service/test_database_errors",
        "service/test_delivery_queue",
        "service/test_queries",
        "service/test_queries_on_postgres",
        "service/test_record_ingest",
        "service/test_record_order",
        "service/test_scheduler_counts",
        "service/test_store",
    }
)
"""Files, as `folder/name`, of which `make test` runs all tests on both databases: the laws of the
store and of concurrent writers. Of every other file it runs the first test on both, and the rest on
SQLite; `make test-postgresql` runs that rest on PostgreSQL.
"""
_first_tests: dict[str, str] = {}
"""The first test of each module that uses a database."""


def kinds_of(metafunc: pytest.Metafunc) -> list[str]:
    """Kinds of databases that a test runs on in this session."""
    module, test = metafunc.module.__name__, metafunc.function.__name__
    path = metafunc.definition.path
    is_first = _first_tests.setdefault(module, test) == test
    both = is_first or f"{path.parent.name}/{path.stem}" in ON_BOTH_DATABASES
    if metafunc.config.getoption("postgresql"):
        return [] if both else ["postgresql"]
    return ["sqlite", "postgresql"] if both else ["sqlite"]


def uses_postgresql(item: pytest.Item) -> bool:
    """Whether the test runs on PostgreSQL."""
    calls = getattr(item, "callspec", None)
    return calls is not None and "postgresql" in calls.params.values()


def check_exception(test: str, mark: pytest.Mark, used: Sequence[str]) -> None:
    """Check the mark of a test that runs on SQLite only.

    Raises:
        UsageError: the mark gives no reason, or the test uses no database.
    """
    if not used:
        names = " nor ".join(DATABASE_FIXTURES)
        raise pytest.UsageError(
            f"{test} has the mark sqlite_only and uses neither {names}; remove the mark, or use one"
        )
    if len(mark.args) != 1 or not str(mark.args[0]).strip():
        raise pytest.UsageError(
            f"{test} has the mark sqlite_only with {mark.args}; give one reason, such as"
            " sqlite_only('it damages the file of the database')"
        )
