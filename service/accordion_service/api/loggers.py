"""Checks of the loggers in the spec of a new job."""

from __future__ import annotations

from accordion_service.api.app_state import AppState
from accordion_service.api.receiver_checks import check_receiver
from accordion_service.api.secrets import check_owned
from accordion_service.domain.access import Caller
from accordion_service.store.writes.secret_refs import locate_logger_secrets
from accordion_workers.records.contract import JobSpec
from accordion_workers.spec.loggers import MlflowSpec


def check_loggers(state: AppState, caller: Caller, spec: JobSpec, *, pointer: str) -> None:
    """Check that the caller has the secrets of the loggers, and may let the service contact their
    servers.

    Raises:
        Invalid: a secret is missing, or no server may have an address.
        Unavailable: the key of the service cannot be read or written.
    """
    check_owned(state, caller, locate_logger_secrets(spec, pointer))
    for number, logger in enumerate(spec.loggers):
        if isinstance(logger, MlflowSpec) and logger.tracking_uri is not None:
            place = f"{pointer}/{number}/tracking_uri"
            check_receiver(state, logger.tracking_uri, user=caller.user, pointer=place)


__all__ = ["check_loggers"]
