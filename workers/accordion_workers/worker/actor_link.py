"""Rank 0's connection to the Accordion actor; `context.Link` defines the interface."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from accordion.base.messages import Decision, LayerInfo, Report
from accordion_workers.hub.actor_client import ActorClient, ActorTimeoutError
from accordion_workers.hub.actor_messages import (
    DecideRequest,
    DecideResponse,
    Fenced,
    NotRegistered,
    PostResponse,
    Registration,
)
from accordion_workers.hub.journal import Journal, SupersededError, is_superseded
from accordion_workers.hub.log_shipper import LogShipper
from accordion_workers.hub.order_watcher import OrderWatcher
from accordion_workers.hub.record_sender import RecordSender
from accordion_workers.records.contract import DesiredState, Launch, Payload, Progress, Started

DECIDE_TIMEOUT_S = 2.0
"""Timeout of a decision request; rank 0's own proposal is equivalent."""
REGISTER_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


class ActorLink:
    """Connection of one generation's rank 0. `start` before use, `close` at the end.

    Args:
        launch: the attempt.
        journal: journal of this generation.
        client: client of the Accordion actor.
        shipper: sends log lines.
    """

    def __init__(
        self, launch: Launch, journal: Journal, *, client: ActorClient, shipper: LogShipper
    ) -> None:
        self._launch = launch
        self._client = client
        self._shipper = shipper
        self._journal = journal
        self._sender = RecordSender(launch.job_id, journal, client)
        self._spec = launch.spec
        self._layers: tuple[LayerInfo, ...] = ()
        self._watcher = OrderWatcher(launch.job_id, client)

    def start(self) -> None:
        """Start sending records and watching the desired state."""
        self._sender.start()
        self._watcher.start()

    def close(self) -> None:
        """Stop sending and watching."""
        self._watcher.close()
        self._sender.close()

    def on_orders(self, callback: Callable[[DesiredState], None]) -> None:
        """Call the function with the desired state known now, if any, and with every newer one."""
        self._watcher.on_orders(callback)

    def started(self, started: Started, controller_state: Mapping[str, Any]) -> None:
        """Post the record, and register this controller with the actor.

        Raises:
            SupersededError: a newer worker group runs this job, and may have read the records
                without this one.
        """
        if is_superseded(self._journal.storage, self._journal.generation):
            raise SupersededError(
                f"generation {self._journal.generation} is over; this worker group ends"
            )
        self._layers = started.layers
        if started.local_steps is not None:  # a budget has become numbers, by which all decide
            self._spec = self._spec.model_copy(update={"local_steps": started.local_steps})
        self._sender.put(started)
        try:
            self._register_controller(controller_state, REGISTER_TIMEOUT_S)
        except ActorTimeoutError as error:
            log.warning("%s; the next decision registers again", error)

    def post(self, payload: Payload) -> None:
        """Keep a record until the database confirms it."""
        self._sender.put(payload)

    def progress(self, progress: Progress) -> None:
        """Report the job's progress."""
        self._sender.put_progress(progress)

    def log(self, text: str) -> None:
        """Add lines to the job's log."""
        self._shipper.write(text)

    def decide(
        self, report: Report, proposal: Decision, controller_state: Mapping[str, Any]
    ) -> Decision:
        """Request the decision from the actor; return the proposal if it does not answer in time.

        Rank 0 knows at which step overrides took effect, so if the two disagree about overrides,
        the actor takes over rank 0's state.

        Raises:
            SupersededError: a newer worker group runs this job.
        """
        request = DecideRequest(report=report, number=controller_state["number"])
        deadline = time.monotonic() + DECIDE_TIMEOUT_S
        try:
            answer = self._request_decision(request, deadline)
            if not _has_same_overrides(answer, proposal):
                self._register_controller(controller_state, deadline - time.monotonic())
                answer = self._request_decision(request, deadline)
        except ActorTimeoutError as error:
            log.warning("%s; rank 0 decides by itself", error)
            return proposal
        return answer.decision if isinstance(answer, DecideResponse) else proposal

    def flush(self, timeout_s: float) -> bool:
        """Wait until the actor holds all posted records."""
        return self._sender.flush(timeout_s)

    def _request_decision(
        self, request: DecideRequest, deadline: float
    ) -> DecideResponse | NotRegistered:
        answer: DecideResponse | NotRegistered | Fenced = self._client(
            "decide",
            self._launch.job_id,
            self._sender.token,
            request,
            timeout_s=_remaining_s(deadline),
        )
        if isinstance(answer, Fenced):
            raise self._superseded_error(answer)
        return answer

    def _register_controller(self, controller_state: Mapping[str, Any], timeout_s: float) -> None:
        registration = Registration(
            spec=self._spec, layers=self._layers, controller_state=controller_state
        )
        answer: PostResponse | Fenced = self._client(
            "register",
            self._launch.job_id,
            self._sender.token,
            registration,
            timeout_s=max(timeout_s, 0.0),
        )
        if isinstance(answer, Fenced):
            raise self._superseded_error(answer)

    def _superseded_error(self, answer: Fenced) -> SupersededError:
        return SupersededError(
            f"generation {self._sender.token.generation} of job {self._launch.job_id} is over:"
            f" generation {answer.newest.generation} runs it; this worker group ends"
        )


def _has_same_overrides(answer: DecideResponse | NotRegistered, proposal: Decision) -> bool:
    if not isinstance(answer, DecideResponse):
        return False
    theirs, ours = (
        (
            one.override_by_layer,
            one.batch_override,
            one.local_steps_override,
            one.optimizer_overrides,
        )
        for one in (answer.decision, proposal)
    )
    return theirs == ours


def _remaining_s(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.0)
