"""The autoscaler of the scripted cluster: it judges the request that it got in the turn before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from accordion_service.domain.capacity.requests import NodeType
from accordion_service.domain.capacity.resources import Resources
from accordion_service.runtime.protocol import AutoscalerReport


class FakeAutoscaler:
    """The part of `FakeRuntime` from which capacity is requested."""

    def __init__(self) -> None:
        self.has_autoscaler = False
        self.node_types: tuple[NodeType, ...] = ()
        self.serves: Callable[[Sequence[Resources]], bool | None] = lambda _: True
        """Whether the autoscaler can serve a request; None if it has not said."""
        self.reports_feasibility = True
        """Whether it is version 2."""
        self.autoscaler_problem = ""
        """Why requests fail; empty while they arrive."""
        self.capacity_requests: list[tuple[Resources, ...]] = []
        """Requests that arrived, without repeated ones."""
        self._capacity_report = AutoscalerReport()
        self._capacity_sender: int | None = None

    def request_capacity(
        self, bundles: Sequence[Resources] | None, *, sender: int, always: bool
    ) -> AutoscalerReport:
        """Take a request; the report is that of the request before."""
        before = self._capacity_report
        report = replace(
            before,
            exists=self.has_autoscaler,
            node_types=self.node_types,
            reports_feasibility=self.reports_feasibility and self.has_autoscaler,
            num_exchanges=before.num_exchanges + 1,
            is_feasible=None,
            problem=self.autoscaler_problem,
        )
        if self.autoscaler_problem:
            report = replace(report, num_failed=before.num_failed + 1)
        elif bundles is not None:
            report = self._take_request(tuple(bundles), report, sender=sender, always=always)
        self._capacity_report = report
        return before

    def add_autoscaler(self) -> None:
        """Let the cluster have an autoscaler, of which nothing is known yet."""
        self.has_autoscaler, self._capacity_report = True, AutoscalerReport()

    def clear_capacity_request(self, *, sender: int, timeout_s: float) -> bool:
        """Take an empty request."""
        self.request_capacity((), sender=sender, always=True)
        return not self.autoscaler_problem

    def _take_request(
        self, bundles: tuple[Resources, ...], report: AutoscalerReport, *, sender: int, always: bool
    ) -> AutoscalerReport:
        if not (self.has_autoscaler or always):
            return replace(report, request=None)
        is_new = (report.request, self._capacity_sender) != (bundles, sender)
        if is_new:
            self.capacity_requests.append(bundles)
            self._capacity_sender = sender
        return replace(
            report,
            request=bundles,
            num_requests=report.num_requests + is_new,
            is_feasible=self.serves(bundles) if report.reports_feasibility else None,
        )
