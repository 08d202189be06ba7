"""Connections to PostgreSQL: bounded waits, and pools of their own for readers and writers.

A process that is frozen, or whose machine is gone, keeps the locks of its open transaction. The server ends such a
transaction, and keepalives show each end that the other one is gone, so that nobody waits for it for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, text
from sqlalchemy.engine import make_url

_POOL_WAIT_S = 30.0
"""How long a thread waits for a connection of its pool."""
_NUM_READERS, _EXTRA_READERS = 10, 10
_NUM_WRITERS = 10
"""Writers of one row take turns anyway: however many wait for it, they leave the readers' connections alone."""
_UNBOUNDED = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a session may wait for others, or keep others waiting; seconds."""

    connect_s: float = 10.0
    statement_s: float = 30.0
    lock_s: float = 20.0
    """Longer than a transaction may stand idle: who waits behind a frozen process gets the lock after it."""
    idle_in_transaction_s: float = 10.0
    """Nothing slow happens inside a transaction: one that stands still this long was left by a
    frozen process."""
    keepalive_s: float = 10.0
    """A silent connection is tested after this time; after half of it again, three times."""


def create_reader(url: str, limits: Limits, **options: Any) -> Engine:
    """Create the engine for reading; each session sees one state of the database."""
    engine = _create(url, limits, pool_size=_NUM_READERS, max_overflow=_EXTRA_READERS, **options)
    return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def create_writer(url: str, limits: Limits, **options: Any) -> Engine:
    """Create the engine for writing."""
    return _create(url, limits, pool_size=_NUM_WRITERS, max_overflow=0, **options)


def lift_limits(connection: Connection) -> None:
    """Let the open transaction take as long as it needs, as a migration of large tables does."""
    for name in _UNBOUNDED:
        connection.execute(text(f"SET LOCAL {name} = 0"))


def _create(url: str, limits: Limits, **options: Any) -> Engine:
    arguments = _connect_args(make_url(url), limits)
    return create_engine(url, connect_args=arguments, pool_pre_ping=True, pool_timeout=_POOL_WAIT_S, **options)


def _connect_args(url: URL, limits: Limits) -> dict[str, Any]:
    """Arguments of the driver; what the URL says of one of them wins."""
    repeat_s, silent_s = limits.keepalive_s / 2, limits.keepalive_s * 2.5
    of_session = {
        "statement_timeout": _ms(limits.statement_s),
        "lock_timeout": _ms(limits.lock_s),
        "idle_in_transaction_session_timeout": _ms(limits.idle_in_transaction_s),
        "tcp_keepalives_idle": f"{limits.keepalive_s:.0f}",
        "tcp_keepalives_interval": f"{repeat_s:.0f}",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": _ms(silent_s),
    }
    of_socket = {
        "connect_timeout": f"{limits.connect_s:.0f}",
        "keepalives_idle": f"{limits.keepalive_s:.0f}",
        "keepalives_interval": f"{repeat_s:.0f}",
        "keepalives_count": "3",
        "tcp_user_timeout": _ms(silent_s),
    }
    given = url.query.get("options", "")
    options = [f"-c {name}={value}" for name, value in of_session.items()]
    # Of two values of one option the server takes the later.
    options += [given] if isinstance(given, str) else [*given]
    return {**{name: value for name, value in of_socket.items() if name not in url.query}, "options": " ".join(options)}


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f}"
