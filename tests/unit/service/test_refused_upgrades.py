"""Databases in which the service may not, or cannot, create its tables."""

from __future__ import annotations

import sys

import pytest
from sqlalchemy import text

from accordion_service.errors import StartError
from accordion_service.store.engine.database import Database
from accordion_service.store.migrations import upgrade
from tests.postgres import Postgres

ROLE = "guest_of_the_database"


def execute(url: str, *statements: str) -> None:
    database = Database(url)
    with database.connect_writer() as connection:
        for statement in statements:
            connection.execute(text(statement))
    database.close()


def url_of_role(postgres: Postgres, url: str) -> str:
    """URL of the database as a role that owns nothing in it."""
    if not postgres.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", ROLE):
        postgres.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD 'hidden'")
    server = f"{postgres.host}:{postgres.port}"
    return f"postgresql+psycopg://{ROLE}:hidden@{server}/{url.rpartition('/')[2]}"


@pytest.mark.parametrize(
    ("revoked", "reason"),
    [
        ("CREATE ON SCHEMA public", "permission denied for schema public"),
        ("ALL ON SCHEMA public", "no schema has been selected to create in"),
    ],
)
def test_a_role_that_may_not_create_tables_is_named_with_the_way_out(
    postgres: Postgres, postgres_url: str, revoked: str, reason: str
) -> None:
    url = postgres.create_database(migrated=False)
    execute(url, f"REVOKE {revoked} FROM PUBLIC")
    with pytest.raises(StartError, match=rf"role {ROLE} may not .*\({reason}\).*GRANT ALL") as told:
        upgrade(url_of_role(postgres, url))
    assert "hidden" not in str(told.value)
    postgres.drop_database(url)


def test_a_role_that_may_not_read_the_tables_is_named(
    postgres: Postgres, postgres_url: str
) -> None:
    with pytest.raises(StartError, match=f"role {ROLE} may not .*permission denied for table"):
        upgrade(url_of_role(postgres, postgres_url))


def test_a_database_that_takes_no_writes_is_told_from_one_that_is_down(
    postgres: Postgres, postgres_url: str
) -> None:
    url = postgres.create_database(migrated=False)
    execute(url, f"ALTER DATABASE {url.rpartition('/')[2]} SET default_transaction_read_only = on")
    with pytest.raises(StartError, match=r"is read-only \(cannot execute CREATE TABLE"):
        upgrade(url)
    postgres.drop_database(url)


@pytest.mark.parametrize(
    "foreign",
    [
        ["CREATE TABLE jobs (id INTEGER)"],
        ["CREATE VIEW jobs AS SELECT 1 AS id"],
        ["CREATE TABLE alembic_version (number INTEGER)"],
        [
            "CREATE TABLE alembic_version (version_num TEXT)",
            "INSERT INTO alembic_version VALUES ('ae1027a6acf4')",
        ],
    ],
)
def test_tables_of_another_program_are_named_and_stay(empty_url: str, foreign: list[str]) -> None:
    execute(empty_url, *foreign)
    with pytest.raises(StartError, match=r"tables of another program \(.*: let ACCORDION_DATABASE"):
        upgrade(empty_url)
    with pytest.raises(StartError, match="tables of another program"):
        upgrade(empty_url)


def test_a_missing_driver_is_named_with_the_extra_that_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StartError, match=r"package psycopg .*accordion-train\[postgresql\]"):
        upgrade("postgresql+psycopg://me:hidden@127.0.0.1:1/d")
