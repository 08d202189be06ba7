"""What the scheduler requested from Ray's autoscaler, in the row of the cluster."""

from __future__ import annotations

from accordion_service.domain.capacity.autoscaling import AutoscalerRecord, read_autoscaler_record
from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import ClusterRow
from accordion_service.store.writes.leases import is_newest_token


class AutoscalerRows:
    """Reads and writes the record of the standing request."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self) -> AutoscalerRecord:
        """Return the record that was stored last, also by another scheduler."""
        with self._database.read() as session:
            row = session.get(ClusterRow, 1)
        return read_autoscaler_record(row.autoscaler if row else None)

    def write(self, token: int, record: AutoscalerRecord) -> bool:
        """Store the record; False if another scheduler has begun meanwhile, or if no
        cluster was found yet.
        """
        with self._database.write() as session:
            if not is_newest_token(session, token):
                return False
            row = session.get(ClusterRow, 1)
            if row is None:
                return False
            row.autoscaler = record.dump()
            return True
