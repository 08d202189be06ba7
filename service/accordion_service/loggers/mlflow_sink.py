"""Sends runs to an MLflow server, or writes them to an SQLite file of MLflow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from http.cookiejar import DefaultCookiePolicy
from threading import Lock
from typing import Any, TypeVar

from mlflow.entities import Metric, Param, RunInfo, RunStatus, RunTag, ViewType
from mlflow.store.tracking.rest_store import RestStore
from mlflow.utils import request_utils
from mlflow.utils.rest_utils import MlflowHostCreds
from requests import RequestException

from accordion_service.domain.jobs.loggers import RunStatus as Status
from accordion_service.loggers.sink import Batch, SentRun, SinkSetup

MAX_METRICS, MAX_PARAMS = 1000, 100
"""Most metrics and parameters that a server takes in one request."""
_MAX_BODY_BYTES = 4 << 20
"""Largest response of a server, decompressed; those to our requests have a few KB."""
_CHUNK_BYTES = 1 << 16
_KEY_TAG = "accordion.key"
"""Tag by which the run of a logger is found again, if its ID was not recorded."""
_MAX_NAME_LENGTH = 250
_REFUSED_IN_NAMES = re.compile(r"[^\w\-. /]", re.ASCII)
_migration = Lock()
"""Held while tables are made: the tool that does so works for one thread at a time."""
_make_session = request_utils._cached_get_request_session
_Item = TypeVar("_Item")
_Value = TypeVar("_Value")


class MlflowSink:
    """One run. The step is the epoch, and a point that is sent twice has the same time, by which
    MLflow knows it.
    """

    def __init__(self, setup: SinkSetup) -> None:
        request_utils._cached_get_request_session = _make_guarded_session
        self._spec = setup.spec
        self._guard = setup.guard
        self._file = setup.folder / f"mlflow-{setup.number}.db"
        self._store = (
            _open_file(str(self._file))
            if self._spec.tracking_uri is None
            else RestStore(lambda: _credentials_of(setup))
        )
        self._status: Status | None = None
        """Status that the run has; None if it is not known."""
        self._run: RunInfo | None = None

    def send(self, batch: Batch) -> SentRun:
        """Send the points and the status."""
        with self._connect():
            run = self._run = self._run or self._open_run(batch)
            if batch.is_first:
                self._log_params(run.run_id, batch)
            for part in _split_items(list(_list_metrics(batch)), MAX_METRICS):
                self._store.log_batch(run.run_id, metrics=part, params=[], tags=[])
            if batch.status is not self._status:
                self._set_status(run.run_id, batch)
        return SentRun(run_id=run.run_id, location=self._locate(run))

    def close(self) -> None:
        """Close the SQLite file."""
        if self._spec.tracking_uri is None:
            self._store.engine.dispose()

    def _connect(self) -> AbstractContextManager[None]:
        uri = self._spec.tracking_uri
        return nullcontext() if uri is None else self._guard(uri)

    def _open_run(self, batch: Batch) -> RunInfo:
        """Return the run of an earlier turn, also of one that ended before its ID was recorded, or
        a new run.
        """
        if batch.run_id:
            return self._store.get_run(batch.run_id).info
        name = self._spec.experiment
        experiment = self._store.get_experiment_by_name(name)
        experiment_id = (
            self._store.create_experiment(name) if experiment is None else experiment.experiment_id
        )
        wanted = f"tags.`{_KEY_TAG}` = '{batch.key}'"
        found = self._store.search_runs(
            [experiment_id], wanted, ViewType.ACTIVE_ONLY, max_results=1
        )
        return found[0].info if found else self._create_run(batch, experiment_id)

    def _create_run(self, batch: Batch, experiment_id: str) -> RunInfo:
        tags = {_KEY_TAG: batch.key} | {f"accordion.{name}": v for name, v in batch.tags.items()}
        return self._store.create_run(
            experiment_id=experiment_id,
            user_id=batch.owner,
            start_time=_to_ms(batch.started_at),
            tags=[RunTag(name, value) for name, value in _clean_names(tags).items()],
            run_name=self._spec.run_name or batch.name,
        ).info

    def _log_params(self, run_id: str, batch: Batch) -> None:
        params = [Param(name, value) for name, value in _clean_names(batch.params).items()]
        for part in _split_items(params, MAX_PARAMS):
            self._store.log_batch(run_id, metrics=[], params=part, tags=[])

    def _set_status(self, run_id: str, batch: Batch) -> None:
        status = RunStatus.from_string(batch.status.value)
        ended_at = None if batch.status is Status.RUNNING else batch.ended_at
        end_ms = None if ended_at is None else _to_ms(ended_at)
        self._store.update_run_info(run_id, status, end_ms, None)
        self._status = batch.status

    def _locate(self, run: RunInfo) -> str:
        if self._spec.tracking_uri is None:
            return f"sqlite:///{self._file}"
        uri = self._spec.tracking_uri.rstrip("/")
        return f"{uri}/#/experiments/{run.experiment_id}/runs/{run.run_id}"


@lru_cache(maxsize=64)
def _make_guarded_session(*args: Any, **kwargs: Any) -> Any:
    """Return a session of MLflow, which threads share: a cookie that a server set for one user must
    not be sent for another, and no server may fill the memory that all use.
    """
    session = _make_session(*args, **kwargs)
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    for scheme in ("https://", "http://"):
        # No retries: before one, the whole body of the refusal is read.
        session.mount(scheme, _BoundedAdapter())
    return session


class _BoundedAdapter(request_utils.TCPKeepAliveHTTPAdapter):  # type: ignore[misc]  # untyped
    """Reads responses up to a size, and refuses larger ones."""

    def send(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().send(request, *args, **{**kwargs, "stream": True})
        body = bytearray()
        for chunk in response.iter_content(_CHUNK_BYTES):
            body += chunk
            if len(body) > _MAX_BODY_BYTES:
                response.close()
                raise RequestException(
                    f"the response is larger than {_MAX_BODY_BYTES} bytes; is tracking_uri the"
                    " address of an MLflow server?"
                )
        response._content = bytes(body)
        return response


def _credentials_of(setup: SinkSetup) -> MlflowHostCreds:
    """Return what a server asks for: never what the service's own user has for it."""
    return MlflowHostCreds(
        setup.spec.tracking_uri,
        username=setup.spec.username,
        password=setup.secrets.get("password"),
        token=setup.secrets.get("token"),
    )


def _open_file(path: str) -> Any:
    # It loads pandas, which a server does not need.
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    with _migration:
        return SqlAlchemyStore(f"sqlite:///{path}", f"{path}-artifacts")


def _list_metrics(batch: Batch) -> Iterator[Metric]:
    for point in batch.points:
        for name, value in _clean_names(point.values).items():
            yield Metric(name, value, _to_ms(point.time), point.epoch)


def _clean_names(values: Mapping[str, _Value]) -> dict[str, _Value]:
    """Return values under names that MLflow takes; of equal ones, the first."""
    cleaned: dict[str, _Value] = {}
    for name, value in values.items():
        cleaned.setdefault(_clean_name(name), value)
    return cleaned


def _clean_name(name: str) -> str:
    path = _clean_path(_REFUSED_IN_NAMES.sub("_", name))
    # Cutting may leave a last part that is refused.
    return _clean_path(path[: _MAX_NAME_LENGTH - 1])


def _clean_path(path: str) -> str:
    """Replace the parts that would lead to another path, if the name was one."""
    return "/".join("_" if part in {"", ".", ".."} else part for part in path.split("/"))


def _to_ms(seconds: float) -> int:
    return int(seconds * 1000)


def _split_items(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))
