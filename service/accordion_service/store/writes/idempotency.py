"""Idempotency keys: a repeated request returns what the first one created."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from accordion_service.errors import Invalid
from accordion_service.store.tables.models import IdempotencyRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Idempotency:
    """Idempotency key of a client, with its request."""

    key: str
    scope: str
    body_hash: str


def body_hash(body: Any) -> str:
    """Return a digest that is equal for equivalent request bodies."""
    return hashlib.sha256(
        json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def find_replay(session: Session, idempotency: Idempotency | None) -> str | None:
    """Return the id of what the key created before.

    The key is stored in the transaction of what it created, so both become visible together.
    """
    if idempotency is None:
        return None
    row = session.get(IdempotencyRow, (idempotency.scope, idempotency.key))
    if row is not None and row.body_hash != idempotency.body_hash:
        raise Invalid(
            f"Idempotency-Key {idempotency.key!r} was used with another body before; choose a"
            " new key",
            "header/idempotency-key",
        )
    return row.answer_id if row else None


def store_key(
    session: Session, idempotency: Idempotency | None, answer_id: str, *, now: float
) -> None:
    """Store what the key created, in the same transaction."""
    if idempotency is None:
        return
    session.add(
        IdempotencyRow(
            scope=idempotency.scope,
            key=idempotency.key,
            body_hash=idempotency.body_hash,
            answer_id=answer_id,
            created_at=now,
        )
    )
