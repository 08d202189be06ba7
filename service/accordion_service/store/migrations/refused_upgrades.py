"""Explains why a database does not let the migrations create or change tables."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy.engine import make_url
from sqlalchemy.exc import DatabaseError

from accordion_service.store.engine.database import hide_password

_FORBIDDEN = (
    "the role {role} may not create or change tables in the database {url} ({reason}): let its"
    " owner allow that (GRANT ALL ON SCHEMA public TO {role}), or let ACCORDION_DATABASE_URL name"
    " a database that the role owns"
)
_FOREIGN_TABLES = (
    "the database {url} holds tables of another program ({reason}): let ACCORDION_DATABASE_URL name"
    " an empty one"
)
_READ_ONLY = (
    "the database {url} is read-only ({reason}): let ACCORDION_DATABASE_URL name the server that"
    " accepts writes"
)
_SENTENCE_BY_SQLSTATE: Mapping[str, str] = {
    "42501": _FORBIDDEN,  # insufficient_privilege
    "3F000": _FORBIDDEN,  # invalid_schema_name: the role may use none of the schemas
    "42P07": _FOREIGN_TABLES,  # duplicate_table: a table, an index or a view
    "42710": _FOREIGN_TABLES,  # duplicate_object: a type
    "42703": _FOREIGN_TABLES,  # undefined_column: an `alembic_version` that is not Alembic's
    "25006": _READ_ONLY,  # read_only_sql_transaction
}


def explain_refusal(error: DatabaseError, url: str) -> str | None:
    """Return what the database refuses and what to do about it; None if the error is another one.

    A migration runs in one transaction, so tables that are in its way are not its own.
    """
    reason = str(error.orig).partition("\n")[0]
    sentence = _SENTENCE_BY_SQLSTATE.get(getattr(error.orig, "sqlstate", None) or "")
    if sentence is None and "sqlite" in type(error.orig).__module__:
        sentence = _FOREIGN_TABLES if _is_in_the_way(reason) else None
    if sentence is None:
        return None
    role = make_url(url).username or "of the service"
    return sentence.format(role=role, url=hide_password(url), reason=reason)


def describe_foreign_revision(revision: str, url: str) -> str:
    """Return what to do about tables that another program migrates with Alembic."""
    reason = f"alembic_version is {revision!r}"
    return _FOREIGN_TABLES.format(url=hide_password(url), reason=reason)


def _is_in_the_way(reason: str) -> bool:
    """Return whether SQLite, which has one code for all of these, names a foreign table."""
    return reason.endswith("already exists") or reason.startswith("no such column")
