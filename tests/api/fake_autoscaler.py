"""The autoscaler of the scripted cluster: it judges the request that it got in the turn before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from service.domain.capacity_request import NodeType
from service.domain.resources import Resources
from service.runtime.protocol import AutoscalerReport


class FakeAutoscaler:
    """The part of `FakeRuntime` that is asked for capacity."""

    def __init__(self) -> None:
        self.has_autoscaler = False
        self.node_types: tuple[NodeType, ...] = ()
        self.serves: Callable[[Sequence[Resources]], bool | None] = lambda _: True
        """Whether the autoscaler can serve a request; None if it never says."""
        self.autoscaler_problem = ""
        """Why requests fail; empty while they arrive."""
        self.capacity_requests: list[tuple[Resources, ...]] = []
        """Requests that arrived, without repeated ones."""
        self._capacity_report = AutoscalerReport()
        self._capacity_sender: int | None = None

    def request_capacity(
        self, bundles: Sequence[Resources], *, sender: int, always: bool
    ) -> AutoscalerReport:
        """Take a request; the report is that of the request before."""
        before = self._capacity_report
        counts = {"num_exchanges": before.num_exchanges + 1, "num_failed": before.num_failed}
        facts = {"exists": self.has_autoscaler, "node_types": self.node_types}
        if self.autoscaler_problem:
            counts["num_failed"] += 1
            self._capacity_report = AutoscalerReport(
                **facts,
                **counts,
                num_sent=before.num_sent,
                sent=before.sent,
                problem=self.autoscaler_problem,
            )
            return before
        is_sent = self.has_autoscaler or always
        is_new = is_sent and (before.sent, self._capacity_sender) != (tuple(bundles), sender)
        if is_new:
            self.capacity_requests.append(tuple(bundles))
            self._capacity_sender = sender
        self._capacity_report = AutoscalerReport(
            **facts,
            **counts,
            num_sent=before.num_sent + is_new,
            sent=tuple(bundles) if is_sent else None,
            is_possible=self.serves(bundles) if self.has_autoscaler else None,
        )
        return before
