"""Links from a job to Ray's dashboard; pure."""

from __future__ import annotations

from urllib.parse import urlsplit

from accordion_service.domain.jobs.ray_run import RayRun

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_ALL_INTERFACES = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, never bound
"""Hosts that a dashboard may listen on; in a link, they lead to the reader's own machine."""


def link_to_workers(
    dashboard_url: str | None, run: RayRun | None, *, seen_from: str | None
) -> str | None:
    """Return the page of Ray's dashboard that lists the worker processes of a job; None if there is
    none to reach.

    Ray 2.60's dashboard has no page for Ray Train runs, so that a job leads to the list of actors,
    and a guest run to the actors of its Ray job. `seen_from` is the host under which the reader
    reaches this service: on another machine, a loopback address, or one that names all interfaces,
    leads nowhere.
    """
    if not dashboard_url or run is None:
        return None
    if (
        urlsplit(dashboard_url).hostname in _LOOPBACK | _ALL_INTERFACES
        and seen_from not in _LOOPBACK
    ):
        return None
    page = f"jobs/{run.ray_job_id}/actors" if run.ray_job_id else "actors"
    return f"{dashboard_url}/#/{page}"
