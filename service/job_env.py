"""Environment variables of a job's workers, with the values of its owner's secrets, and the cache
of their data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from service.errors import NotFound, SettingsError, Unavailable
from service.security.secret_box import GIVE_KEY, SecretBox, WrongKeyError, open_secret_box
from service.settings import Settings
from service.store.database import Database
from service.store.secret_refs import describe_missing
from service.store.secret_rows import SecretStore
from workers.contract import DataCache, JobSpec, list_secret_names, resolve_env


class JobEnv:
    """Resolves the variables of jobs that start."""

    def __init__(self, settings: Settings, database: Database, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._store = SecretStore(database, clock)

    def resolve(self, spec: JobSpec, owner: str | None) -> dict[str, str]:
        """Return the variables of a job of this user.

        Raises:
            NotFound: the user has no secret of a name that the spec gives.
            Unavailable: a secret cannot be decrypted by this process.
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
            Unavailable: a secret cannot be decrypted by this process.
        """
        if not names:
            return {}
        encrypted = self._store.read_encrypted(owner or "", names)
        for name in sorted(set(names) - encrypted.keys()):
            raise NotFound(describe_missing(owner, name))
        box = self._open_box()
        values = {}
        for name, text in encrypted.items():
            try:
                values[name] = box.decrypt(text)
            except WrongKeyError:
                raise Unavailable(
                    f"the secret {name!r} of user {owner!r} was encrypted with another key than"
                    f" the scheduler has; {GIVE_KEY}, or set the secret again with 'accordion"
                    f" secret set {name}'"
                ) from None
        return values

    def _open_box(self) -> SecretBox:
        try:
            box = open_secret_box(self._settings)
        except SettingsError as error:
            raise Unavailable(str(error)) from error
        if box is None:
            raise Unavailable(
                f"the scheduler has no key to decrypt secrets: {self._settings.home_secrets_key}"
                f" does not exist; {GIVE_KEY}"
            )
        return box


def find_data_cache(settings: Settings) -> DataCache:
    """Return where nodes keep the data that they fetch for jobs."""
    return DataCache(folder=settings.data_cache, max_bytes=settings.data_cache_bytes)
