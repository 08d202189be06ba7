"""Databases of a PostgreSQL server that tests use one after the other: emptying one is faster than
creating one.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from tests.postgres import Postgres

NUM_RESTING = 2
"""Databases that rest before the oldest of them is used again: by then the server has noticed that
its sessions are over.
"""
END_TIMEOUT_S = 30.0
_DIGEST = """
SELECT concat_ws(' ',
    md5(string_agg(concat_ws(' ', c.relname, a.attname, a.atttypid, a.attnotnull), ','
                   ORDER BY c.relname, a.attnum)),
    (SELECT count(*) FROM pg_trigger),
    (SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace))
FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = 'public'::regnamespace
"""
_EMPTY = """
DO $$
DECLARE
    found record;
BEGIN
    -- Foreign keys are not checked: all rows go.
    SET LOCAL session_replication_role = replica;
    FOR found IN SELECT oid, relname FROM pg_class
                 WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
                 AND pg_relation_size(oid) > 0 LOOP
        -- A small table is deleted from faster than it is truncated.
        IF pg_relation_size(found.oid) > 1000000 THEN
            EXECUTE format('TRUNCATE public.%I CASCADE', found.relname);
        ELSE
            EXECUTE format('DELETE FROM public.%I', found.relname);
        END IF;
    END LOOP;
    FOR found IN SELECT relname FROM pg_class
                 WHERE relnamespace = 'first_rows'::regnamespace AND relkind = 'r' LOOP
        EXECUTE format('INSERT INTO public.%I SELECT * FROM first_rows.%I',
                       found.relname, found.relname);
    END LOOP;
    PERFORM setval(oid, 1, false) FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind = 'S';
END $$
"""


@dataclass
class PooledDatabases:
    """Migrated databases of one server, each used by one test at a time.

    A database gets a new name before it is used again, so nothing that an earlier test left running
    finds it.
    """

    server: Postgres
    _resting: deque[str] = field(default_factory=deque)
    _tables: str = ""
    """Digest of what the migrations make."""

    def take(self) -> str:
        """URL of a database that holds what the migrations stored, and nothing else."""
        if len(self._resting) > NUM_RESTING:
            url = self.server.reopen_database(self._resting.popleft())
            if self._empty(url):
                return url
            self.server.drop_database(url)
        url = self.server.create_database()
        self._tables = self._tables or self._digest_tables(url)
        return url

    def give_back(self, url: str) -> None:
        """End the sessions of a database and let it rest."""
        self.server.shut_database(url)
        deadline = time.monotonic() + END_TIMEOUT_S
        while self.server.end_sessions(url):
            assert time.monotonic() < deadline, f"sessions did not end within {END_TIMEOUT_S:g} s"
            time.sleep(0.002)
        self._resting.append(url)

    def _empty(self, url: str) -> bool:
        """Remove the rows of a test; False if it changed tables too."""
        with self.server.connect(url) as connection:
            [(tables,)] = connection.execute(_DIGEST)
            if tables == self._tables:
                connection.execute(_EMPTY)
            return bool(tables == self._tables)

    def _digest_tables(self, url: str) -> str:
        with self.server.connect(url) as connection:
            [(tables,)] = connection.execute(_DIGEST)
        return str(tables)
