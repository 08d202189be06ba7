"""Names of the long-lived Ray actors; each holds the id of the installation that the actor belongs
to.

Several installations, each with a database of its own, may share one Ray cluster: production beside
staging, say. None of them may touch an actor whose name holds another id.
"""

from __future__ import annotations

import importlib.metadata
import re
from typing import NamedTuple

NAMESPACE = "accordion"
_ACTOR = "accordion-v2"
"""The version grows when the calls change, so that old and new supervisors use separate actors."""
_SUPERVISOR = re.compile(
    r"(?:accordion-(?P<installation>[0-9a-f]+)-)?job-(?P<job_id>.+)\.(?P<attempt>[0-9]+)", re.ASCII
)


class SupervisorName(NamedTuple):
    """Parts of a supervisor's name."""

    installation: str
    """Empty for an actor of a version that had no installation ids."""
    job_id: str
    attempt: int


def package_version() -> str:
    """Return the version of the installed package; "unknown" where it runs from a source tree."""
    try:
        return importlib.metadata.version("accordion-train")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def actor_name(installation: str) -> str:
    """Return the name of the installation's Accordion actor."""
    return f"{_ACTOR}-{installation}" if installation else _ACTOR


def installation_of(name: str) -> str | None:
    """Return the installation id in an Accordion actor's name, empty for one without; None for
    other actors.
    """
    if name == _ACTOR:
        return ""
    return name.removeprefix(f"{_ACTOR}-") if name.startswith(f"{_ACTOR}-") else None


def supervisor_name(name: SupervisorName) -> str:
    """Return the name of the supervisor of one attempt."""
    prefix = f"accordion-{name.installation}-" if name.installation else ""
    return f"{prefix}job-{name.job_id}.{name.attempt}"


def parse_supervisor_name(name: str) -> SupervisorName | None:
    """Parse a supervisor's name; None for other actors."""
    found = _SUPERVISOR.fullmatch(name)
    if found is None:
        return None
    return SupervisorName(found["installation"] or "", found["job_id"], int(found["attempt"]))


def train_run_name(name: str | None, job_id: str, attempt: int) -> str:
    """Return the name of the Ray Train run of one attempt: the job's name, if it has one, its id
    and the attempt.
    """
    prefix = f"{name.replace('/', '-')}-" if name else ""
    return f"{prefix}{job_id}.{attempt}"
