"""Serves loggers: each in turns, in threads of a process of its own."""

from __future__ import annotations

import importlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import structlog
from pydantic import TypeAdapter

from accordion_service.domain.jobs.loggers import (
    GIVE_UP_S,
    EpochPosition,
    LoggerState,
    RunStatus,
    logger_delay_s,
)
from accordion_service.domain.jobs.status_table import ENDED
from accordion_service.domain.jobs.statuses import Status
from accordion_service.errors import ServiceError
from accordion_service.job_inputs.environment import JobEnv
from accordion_service.loggers import SINKS
from accordion_service.loggers.epoch_values import build_batch
from accordion_service.loggers.sink import Guard, SentRun, Sink, SinkSetup
from accordion_service.settings.settings import Settings
from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import JobRow
from accordion_service.store.tables.stored_spec import stored_spec
from accordion_service.store.writes.logger_queue import (
    ClaimedTurn,
    DueLogger,
    LoggerKey,
    LoggerQueue,
    TurnOutcome,
)
from accordion_workers.spec.loggers import LoggerSpec, WandbSpec, list_logger_secrets

MAX_PER_KIND = 16
"""Maximum number of loggers of a kind that are served at a time: one kind whose servers hang leaves
the others alone.
"""
MAX_PER_OWNER = 4
"""Maximum number of a user's loggers of a kind that are served at a time."""
MAX_MESSAGE_CHARS = 300
"""Maximum length of the reason that is stored for a failed turn; a server may have chosen it."""
_GAP = " ... "
_OURS = frozenset({"accordion_service", "accordion_workers"})
_SPEC: TypeAdapter[LoggerSpec] = TypeAdapter(LoggerSpec)
_log = structlog.get_logger()


class TurnFailed(Exception):
    """A logger did not take what it was sent; the message is one sentence, without secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenSink:
    """A sink, and the turn that it served last."""

    sink: Sink
    version: int


class LoggerTurns:
    """Serves the loggers that are due; safe to run in two processes at once.

    A logger is served by one thread at a time. One that fails or hangs holds up no other.
    """

    def __init__(
        self, database: Database, settings: Settings, *, clock: Callable[[], float], guard: Guard
    ) -> None:
        self._queue = LoggerQueue(database, clock)
        self._env = JobEnv(settings, database, clock)
        self._settings = settings
        self._clock = clock
        self._guard = guard
        self._lock = threading.Lock()
        self._served: dict[LoggerKey, DueLogger] = {}
        """Loggers that a thread serves now."""
        self._sinks: dict[LoggerKey, _OpenSink] = {}

    def start_due(self) -> bool:
        """Start a thread for each logger that is due, as far as there is room; return whether any
        is served.
        """
        with self._lock:
            busy = set(self._served)
            kinds = Counter(logger.kind for logger in self._served.values())
        full = [kind for kind, served in kinds.items() if served >= MAX_PER_KIND]
        for logger in self._queue.list_due(without=busy, full_kinds=full, per_owner=MAX_PER_OWNER):
            if self._reserve(logger):
                self._start(logger.key)
        with self._lock:
            return bool(self._served)

    def serve(self, key: LoggerKey) -> None:
        """Give a logger one turn, unless it is not due any more."""
        turn = self._queue.claim(key, is_held=is_held)
        if turn is None:
            return
        try:
            outcome = self._take_turn(turn)
        except (TurnFailed, ServiceError) as error:
            self._fail(turn, str(error))
        except Exception as error:  # noqa: BLE001  # without an outcome, it would not be shown
            _log.exception("logger", job_id=turn.job.id, number=key[1])
            self._fail(turn, f"an error of the service ({type(error).__name__}), see its log")
        else:
            self._queue.record_success(turn, outcome)

    def close(self) -> None:
        """Close all sinks."""
        for key in list(self._sinks):
            self._close_sink(key)

    def _reserve(self, logger: DueLogger) -> bool:
        with self._lock:
            of_kind = [one.owner for one in self._served.values() if one.kind == logger.kind]
            if len(of_kind) >= MAX_PER_KIND or of_kind.count(logger.owner) >= MAX_PER_OWNER:
                return False
            self._served[logger.key] = logger
            return True

    def _start(self, key: LoggerKey) -> None:
        thread = threading.Thread(target=self._serve, args=(key,), name="logger-turn", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            _log.warning("logger turn not started", job_id=key[0], number=key[1], error=str(error))
            self._release(key)

    def _serve(self, key: LoggerKey) -> None:
        try:
            self.serve(key)
        except Exception:  # noqa: BLE001  # one logger that fails must not block the others
            _log.exception("logger", job_id=key[0], number=key[1])
        finally:
            self._release(key)

    def _release(self, key: LoggerKey) -> None:
        with self._lock:
            del self._served[key]

    def _take_turn(self, turn: ClaimedTurn) -> TurnOutcome:
        """Send what is due.

        Raises:
            TurnFailed: the logger did not take it.
            NotFound: a secret of the logger is missing.
            Unavailable: a secret cannot be decrypted by this process.
        """
        spec = _read_spec(turn.job, turn.key[1])
        has_ended = Status(turn.job.status) in ENDED
        was_trained = turn.job.started_at is not None
        if not was_trained or not (turn.epochs or has_ended):
            run, sent = SentRun(run_id=turn.run_id, location=turn.location), turn.sent
        else:
            run, sent = self._send(turn, spec), _newest_position(turn)
        is_done = has_ended and not turn.has_more
        if is_done:
            self._close_sink(turn.key)
        state = LoggerState.SENDING if sent.epoch >= 0 else LoggerState.WAITING
        interval_s = 0.0 if turn.has_more else SINKS[spec.kind].interval_s
        return TurnOutcome(
            sent=sent,
            run_id=run.run_id,
            location=run.location,
            state=LoggerState.DONE if is_done else state,
            next_s=None if is_done else interval_s,
        )

    def _send(self, turn: ClaimedTurn, spec: LoggerSpec) -> SentRun:
        names = list_logger_secrets(spec)
        values = self._env.decrypt(set(names.values()), turn.job.owner)
        secrets = {field: values[name] for field, name in names.items()}
        batch = build_batch(turn)
        if turn.has_more:
            batch = replace(batch, status=RunStatus.RUNNING)
        with _translated_errors(spec.kind, secrets):
            return self._open_sink(turn, spec, secrets=secrets).send(batch)

    def _open_sink(
        self, turn: ClaimedTurn, spec: LoggerSpec, *, secrets: Mapping[str, str]
    ) -> Sink:
        """Return the sink that served the last turn, or a new one if another process did."""
        known = self._sinks.get(turn.key)
        if known is None or known.version != turn.version - 1:
            self._close_sink(turn.key)
            folder = self._settings.loggers_of(turn.job.id)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            setup = SinkSetup(
                spec=spec,
                secrets=secrets,
                folder=folder,
                number=turn.key[1],
                version=turn.version,
                guard=self._guard,
                wandb_url=self._settings.wandb_url,
            )
            known = _OpenSink(sink=_load_sink(spec.kind)(setup), version=turn.version)
        self._sinks[turn.key] = replace(known, version=turn.version)
        return known.sink

    def _close_sink(self, key: LoggerKey) -> None:
        known = self._sinks.pop(key, None)
        if known is not None:
            # Whatever it failed to free ends with the process.
            with suppress(Exception):
                known.sink.close()

    def _fail(self, turn: ClaimedTurn, message: str) -> None:
        self._close_sink(turn.key)
        message = _shorten(" ".join(message.split()))
        _log.info("logger failed", job_id=turn.job.id, number=turn.key[1], reason=message)
        ended_at = turn.job.ended_at
        if ended_at is not None and self._clock() - ended_at > GIVE_UP_S:
            state, next_s = LoggerState.GIVEN_UP, None
        else:
            state, next_s = LoggerState.FAILING, logger_delay_s(turn.failures + 1)
        self._queue.record_failure(turn, message, state=state, next_s=next_s)


def _shorten(message: str) -> str:
    """Return a message of at most `MAX_MESSAGE_CHARS` characters, without its middle: errors of
    packages begin with what was done and end with the cause.
    """
    half = (MAX_MESSAGE_CHARS - len(_GAP)) // 2
    too_long = len(message) > MAX_MESSAGE_CHARS
    return f"{message[:half]}{_GAP}{message[-half:]}" if too_long else message


def is_held(job: JobRow, number: int) -> bool:
    """Return whether a logger sends nothing yet: an offline run of W&B is written when its job has
    ended.
    """
    try:
        spec = _read_spec(job, number)
    except TurnFailed:
        # The turn fails for this reason, too.
        return False
    is_offline = isinstance(spec, WandbSpec) and spec.mode == "offline"
    return is_offline and Status(job.status) not in ENDED


def _read_spec(job: JobRow, number: int) -> LoggerSpec:
    """Return the part of the stored spec that describes the logger.

    Raises:
        TurnFailed: this version refuses it.
    """
    try:
        return _SPEC.validate_python(stored_spec(job)["loggers"][number])
    except (ValueError, LookupError, TypeError) as error:
        raise TurnFailed(f"this version refuses the stored spec of the logger ({error})") from None


def _newest_position(turn: ClaimedTurn) -> EpochPosition:
    if not turn.epochs:
        return turn.sent
    last = turn.epochs[-1]
    return EpochPosition(attempt=last.attempt, generation=last.generation, epoch=last.epoch)


def _load_sink(kind: str) -> Any:
    module, _, name = SINKS[kind].sink.partition(":")
    # A package may have been installed since the last attempt.
    importlib.invalidate_caches()
    return getattr(importlib.import_module(module), name)


@contextmanager
def _translated_errors(kind: str, secrets: Mapping[str, str]) -> Iterator[None]:
    """Turn errors of a sink into sentences without secrets.

    Raises:
        TurnFailed: the block raised an error.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in _OURS:
            raise
        raise TurnFailed(
            f"the package {error.name!r} is not installed where the scheduler runs;"
            f" pip install {SINKS[kind].install} there, and this logger goes on by itself"
        ) from None
    except Exception as error:  # noqa: BLE001  # it comes from a package, of any type
        text = str(error) or type(error).__name__
        for value in secrets.values():
            text = text.replace(value, "***")
        raise TurnFailed(text) from None


__all__ = ["LoggerTurns", "TurnFailed", "is_held"]
