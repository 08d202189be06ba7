"""Environment variables of a job's workers, with the values of its owner's secrets, and the cache
of their data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from accordion_service.errors import NotFound, UnreadableSecret
from accordion_service.settings.secret_box import (
    GIVE_KEY,
    MAKE_KEY_FIRST,
    ServiceKey,
    find_service_key,
)
from accordion_service.settings.settings import Settings
from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import JobRow
from accordion_service.store.tables.stored_spec import list_env_secrets
from accordion_service.store.writes.secret_refs import describe_missing, describe_unreadable
from accordion_service.store.writes.secrets import SecretStore
from accordion_workers.records.contract import DataCache, JobSpec, list_secret_names, resolve_env


class JobEnv:
    """Resolves the variables of jobs that start."""

    def __init__(self, settings: Settings, database: Database, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._store = SecretStore(database, clock)

    def resolve(self, spec: JobSpec, owner: str | None) -> dict[str, str]:
        """Return the variables of a job of this user.

        Raises:
            NotFound: the user has no secret of a name that the spec gives.
            UnreadableSecret: a secret cannot be decrypted by this process.
        """
        try:
            values = self.decrypt(set(list_secret_names(spec.env).values()), owner)
        except NotFound as error:
            raise NotFound(f"{error}, then retry the job") from None
        return resolve_env(spec.env, values)

    def decrypt(self, names: Collection[str], owner: str | None) -> dict[str, str]:
        """Return the values of secrets of this user, by name.

        Raises:
            NotFound: the user has no secret of one of the names.
            UnreadableSecret: a secret cannot be decrypted by this process.
        """
        if not names:
            return {}
        encrypted = self._store.read_encrypted(owner or "", names)
        for name in sorted(set(names) - encrypted.keys()):
            raise NotFound(describe_missing(owner, name))
        key = self._find_key()
        unreadable = sorted(name for name in names if not key.can_decrypt(encrypted[name]))
        if unreadable or key.box is None:
            raise UnreadableSecret(_explain_unreadable(owner, unreadable, key))
        return {name: key.box.decrypt(text) for name, text in encrypted.items()}

    def find_unreadable(self, jobs: Sequence[JobRow]) -> dict[str, str]:
        """Return why jobs cannot start, by job id: those of these whose variables refer to a secret
        that this process cannot decrypt. One that refers to a missing secret is left out: it fails
        as soon as it starts.
        """
        named = {job.id: names for job in jobs if (names := list_env_secrets(job))}
        if not named:
            return {}
        owners = {job.id: job.owner for job in jobs}
        encrypted = self._store.read_all_encrypted(
            {owners[job_id] or "" for job_id in named},
            {name for names in named.values() for name in names},
        )
        key = self._find_key()
        rejected = {place for place, text in encrypted.items() if not key.can_decrypt(text)}
        return {
            job_id: _explain_unreadable(owners[job_id], unreadable, key)
            for job_id, names in named.items()
            if (unreadable := [name for name in names if (owners[job_id] or "", name) in rejected])
        }

    def _find_key(self) -> ServiceKey:
        """Return the key of the service. If its directory may not be searched, there is none: jobs
        without secrets must still start.
        """
        try:
            return find_service_key(self._settings, holder="scheduler")
        except OSError as error:
            problem = f"{self._settings.home_secrets_key} cannot be read: {error.strerror}"
            return ServiceKey(box=None, problem=problem)


def find_data_cache(settings: Settings) -> DataCache:
    """Return where nodes keep the data that they fetch for jobs."""
    return DataCache(folder=settings.data_cache, max_bytes=settings.data_cache_bytes)


def _explain_unreadable(owner: str | None, names: Sequence[str], key: ServiceKey) -> str:
    """Return which secrets the scheduler cannot decrypt, and what users and admins can do."""
    first = MAKE_KEY_FIRST if key.is_missing else ""
    return f"{describe_unreadable(owner, names, key.problem)}, or {GIVE_KEY}{first}"
