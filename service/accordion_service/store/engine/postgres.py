"""Connections to PostgreSQL with timeouts, and separate pools for readers and writers.

A frozen process, or one whose machine is gone, keeps the locks of its open transaction. Session
timeouts end such a transaction, and TCP keepalives detect a lost peer on both ends, so that no
process waits for it indefinitely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, text
from sqlalchemy.engine import make_url

from accordion_service.errors import StartError

_POOL_WAIT_S = 30.0
"""How long a thread waits for a pooled connection, in seconds."""
_NUM_READERS, _EXTRA_READERS = 10, 10
_NUM_WRITERS = 10
"""Writers of one row are serialized anyway; waiting writers use no connections of readers."""
_UNBOUNDED = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Timeouts of a database session, in seconds."""

    connect_s: float = 10.0
    statement_s: float = 30.0
    lock_s: float = 20.0
    """Longer than `idle_in_transaction_s`, so that a lock held by a frozen process can still be
    obtained.
    """
    idle_in_transaction_s: float = 10.0
    """No slow work happens inside a transaction: one that is idle this long belongs to a frozen
    process."""
    keepalive_s: float = 10.0
    """Idle time before the first keepalive probe; three probes follow at half this interval."""


def create_reader(url: str, limits: SessionLimits, **options: Any) -> Engine:
    """Create the engine for reading; each session reads one snapshot.

    Raises:
        StartError: the driver cannot be imported.
    """
    engine = _create_engine(
        url, limits, pool_size=_NUM_READERS, max_overflow=_EXTRA_READERS, **options
    )
    return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def create_writer(url: str, limits: SessionLimits, **options: Any) -> Engine:
    """Create the engine for writing.

    Raises:
        StartError: the driver cannot be imported.
    """
    return _create_engine(url, limits, pool_size=_NUM_WRITERS, max_overflow=0, **options)


def find_encoding(connection: Connection) -> str:
    """Return the encoding of the database, such as `UTF8`."""
    return str(connection.scalar(text("SHOW server_encoding")))


def lift_limits(connection: Connection) -> None:
    """Disable the timeouts of the open transaction, for migrations of large tables."""
    for name in _UNBOUNDED:
        connection.execute(text(f"SET LOCAL {name} = 0"))


def _create_engine(url: str, limits: SessionLimits, **options: Any) -> Engine:
    arguments = _connect_args(make_url(url), limits)
    try:
        return create_engine(
            url, connect_args=arguments, pool_pre_ping=True, pool_timeout=_POOL_WAIT_S, **options
        )
    except ImportError as error:
        raise StartError(
            f"a PostgreSQL database needs the package psycopg ({str(error).partition(chr(10))[0]});"
            " pip install 'accordion-train[postgresql]'"
        ) from error


def _connect_args(url: URL, limits: SessionLimits) -> dict[str, Any]:
    """Arguments of the driver; parameters of the URL take precedence."""
    repeat_s, silent_s = limits.keepalive_s / 2, limits.keepalive_s * 2.5
    of_session = {
        "statement_timeout": _as_milliseconds(limits.statement_s),
        "lock_timeout": _as_milliseconds(limits.lock_s),
        "idle_in_transaction_session_timeout": _as_milliseconds(limits.idle_in_transaction_s),
        "tcp_keepalives_idle": f"{limits.keepalive_s:.0f}",
        "tcp_keepalives_interval": f"{repeat_s:.0f}",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": _as_milliseconds(silent_s),
        # Compiling a query takes longer than any of ours.
        "jit": "off",
    }
    of_socket = {
        # Of a database without an encoding, the driver would give bytes.
        "client_encoding": "UTF8",
        "connect_timeout": f"{limits.connect_s:.0f}",
        "keepalives_idle": f"{limits.keepalive_s:.0f}",
        "keepalives_interval": f"{repeat_s:.0f}",
        "keepalives_count": "3",
        "tcp_user_timeout": _as_milliseconds(silent_s),
    }
    given = url.query.get("options", "")
    options = [f"-c {name}={value}" for name, value in of_session.items()]
    # The server uses the last value of a repeated option.
    options += [given] if isinstance(given, str) else [*given]
    return {
        **{name: value for name, value in of_socket.items() if name not in url.query},
        "options": " ".join(options),
    }


def _as_milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f}"
