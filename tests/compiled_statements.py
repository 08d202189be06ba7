"""One cache of compiled SQL for all engines of a test process: every test opens engines of its own,
and compiling a statement takes longer than executing it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.util import LRUCache

_STATEMENTS: LRUCache[Any, Any] = LRUCache(1000)


def share_compiled_statements() -> None:
    """Let all engines use one cache, in which the dialects of equal engines count as one."""
    DefaultDialect.__eq__ = _is_equal  # type: ignore[method-assign]
    DefaultDialect.__hash__ = lambda dialect: hash(_identity(dialect))  # type: ignore[method-assign]
    event.listen(Engine, "engine_connect", _use_cache)


def _use_cache(connection: Connection) -> None:
    connection.execution_options(compiled_cache=_STATEMENTS)


def _is_equal(dialect: DefaultDialect, other: object) -> bool:
    return isinstance(other, DefaultDialect) and _identity(dialect) == _identity(other)


def _identity(dialect: DefaultDialect) -> tuple[Any, ...]:
    """What compiled statements and the conversion of their results depend on."""
    given = vars(dialect)
    return (type(dialect), given.get("_json_serializer"), given.get("_json_deserializer"))
