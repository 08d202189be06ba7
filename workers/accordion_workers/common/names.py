"""Names of the long-lived Ray actors; each holds the id of the installation that the actor belongs
to.

Several installations, each with a database of its own, may share one Ray cluster: production beside
staging, say. None of them may touch an actor whose name holds another id.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable
from typing import NamedTuple

NAMESPACE = "accordion"
_VERSION = 2
"""Version in the name of the Accordion actor, so that old and new supervisors use separate actors.

It grows when the calls change, together with `GUEST_PROTOCOL`.
"""
_ACTOR = re.compile(r"accordion-v(?P<version>[0-9]+)(?:-(?P<installation>.+))?", re.ASCII)
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
    return f"accordion-v{_VERSION}-{installation}" if installation else f"accordion-v{_VERSION}"


def installation_of(name: str) -> str | None:
    """Return the installation id in the name of an Accordion actor of any version, empty for one
    without; None for other actors.
    """
    found = _ACTOR.fullmatch(name)
    return None if found is None else found["installation"] or ""


def find_actor_name(installation: str, names: Iterable[str]) -> str:
    """Return which of the names is that of the installation's Accordion actor: the one of this
    release if there is one, otherwise the newest; the name of this release if there is none.
    """
    here = actor_name(installation)
    found = [name for name in names if installation_of(name) == installation]
    return here if here in found else max(found, key=_version_of, default=here)


def _version_of(name: str) -> int:
    found = _ACTOR.fullmatch(name)
    return int(found["version"]) if found is not None else 0


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
