"""Decides which nodes take no workers: those where workers of several jobs failed, and those that
an operator cordoned; pure.

    workers failed on a node `failures` times within the window -> it is avoided for `first_s`, and
                                                                   twice as long each further time
    one job                  -> counts at most `failures - 1` times towards a node
    a job, or an owner whose jobs, failed on more than        -> counts towards none of them
    `MAX_NODES` nodes
    more than half of the nodes with GPUs, or of those        -> those avoided last are used
    without, would be avoided or cordoned

A single job never causes an avoidance, every avoidance expires, and at most half of the nodes are
avoided. Workers that run on a node stay there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

MAX_NODES = 2
"""Nodes on which a job, or the jobs of an owner, may fail within the window before the job or the
owner's code is the likelier cause.
"""


class NodeState(StrEnum):
    """Whether workers are placed on a node.

    - `AVAILABLE`: workers are placed on it.
    - `AVOIDED`: not before a time, because workers of several jobs failed there.
    - `FAILING`: workers are placed on it although workers of several jobs failed there: half of
      the nodes with GPUs, or of those without, are unschedulable already.
    - `CORDONED`: not before an operator restores it.
    """

    AVAILABLE = "AVAILABLE"
    AVOIDED = "AVOIDED"
    FAILING = "FAILING"
    CORDONED = "CORDONED"

    @property
    def is_unschedulable(self) -> bool:
        """Whether no more workers are placed on the node."""
        return self in {NodeState.AVOIDED, NodeState.CORDONED}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailure:
    """A failure of a job that may be the fault of a node."""

    node: str
    """Name of the node."""
    job_id: str
    time: float
    """Seconds since 1970."""
    owner: str | None = None
    """Owner of the job; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """What is known of a node besides its failures. Times are seconds since 1970."""

    name: str
    cordoned_at: float | None = None
    cordoned_by: str = ""
    """User who cordoned it."""
    cordon_reason: str = ""
    avoided_since: float | None = None
    """When it was last avoided, also if that is over; None if never, or since it was restored."""
    avoided_until: float = 0.0
    avoided_because: str = ""
    num_avoided: int = 0
    """How often it was avoided in a row."""
    restored_at: float = 0.0
    """When it was last restored by hand: earlier failures do not count."""

    @property
    def is_cordoned(self) -> bool:
        """Whether an operator cordoned it."""
        return self.cordoned_at is not None

    def is_avoided(self, now: float) -> bool:
        """Whether it is avoided now; not if the clock was set back to before that."""
        return self.avoided_since is not None and self.avoided_since <= now < self.avoided_until


@dataclass(frozen=True, slots=True, kw_only=True)
class AvoidanceRules:
    """Settings of the avoidance of nodes."""

    failures: int
    """Failures from which a node is avoided; 0 for never."""
    window_s: float
    """How long a failure counts."""
    first_s: float
    """How long a node is avoided the first time."""
    longest_s: float
    """Longest time; after that long without an avoidance, the count restarts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Avoidance:
    """Decision to avoid a node from now on."""

    name: str
    until: float
    because: str
    num_avoided: int
    restored_at: float
    """When the node was last restored, as far as the decision knows."""


def start_avoidances(
    failures: Iterable[NodeFailure],
    records: Mapping[str, NodeRecord],
    rules: AvoidanceRules,
    *,
    now: float,
) -> list[Avoidance]:
    """Decide which nodes are avoided from now on; `records` are by name."""
    recent = [one for one in failures if now - rules.window_s < one.time <= now]
    found = []
    for name, by_job in sorted(_count_by_node(recent, records).items()):
        record = records.get(name, NodeRecord(name=name))
        counted = sum(min(count, rules.failures - 1) for count in by_job.values())
        is_open = not record.is_cordoned and not record.is_avoided(now)
        if is_open and 0 < rules.failures <= counted:
            found.append(_avoid(record, by_job, rules, now=now))
    return found


def find_states(
    records: Mapping[str, NodeRecord], has_gpus: Mapping[str, bool], now: float
) -> dict[str, NodeState]:
    """Return the state of each node by name. `has_gpus` has the nodes that could take workers; of
    those with GPUs, and of those without, at most half are avoided.
    """
    states = dict.fromkeys([*has_gpus, *records], NodeState.AVAILABLE)
    cordoned = {name for name, record in records.items() if record.is_cordoned}
    avoided = [one for one in records.values() if one.is_avoided(now) and one.name not in cordoned]
    ordered = [one.name for one in sorted(avoided, key=_order_of_avoidance)]
    states |= dict.fromkeys(cordoned, NodeState.CORDONED)
    states |= dict.fromkeys(ordered, NodeState.AVOIDED)
    for kind in (True, False):
        names = {name for name, has_some in has_gpus.items() if has_some is kind}
        most = max(0, len(names) // 2 - len(cordoned & names))
        used = [name for name in ordered if name in names][most:]
        states |= dict.fromkeys(used, NodeState.FAILING)
    return states


def describe_node_state(record: NodeRecord, state: NodeState) -> str:
    """Say in one sentence why no workers are placed on a node, or why some still are, and how to
    change that; empty for `AVAILABLE`.
    """
    way_out = f"an operator can restore it with 'accordion node restore {record.name}'"
    match state:
        case NodeState.CORDONED:
            why = f": {record.cordon_reason}" if record.cordon_reason else ""
            return f"node {record.name} is cordoned by {record.cordoned_by}{why}; {way_out}"
        case NodeState.AVOIDED:
            until = datetime.fromtimestamp(record.avoided_until, UTC)
            return (
                f"node {record.name} is avoided until {until:%Y-%m-%d %H:%M} UTC after"
                f" {record.avoided_because}; {way_out}"
            )
        case NodeState.FAILING:
            return (
                f"node {record.name} is used despite {record.avoided_because}, because at most"
                " half of the nodes with GPUs, and of those without, are avoided or cordoned at the"
                f" same time; run 'accordion node cordon {record.name}' to use it no more"
            )
        case NodeState.AVAILABLE:
            return ""


def _order_of_avoidance(record: NodeRecord) -> tuple[float, str]:
    return (record.avoided_since or 0.0, record.name)


def _count_by_node(
    recent: Sequence[NodeFailure], records: Mapping[str, NodeRecord]
) -> dict[str, Counter[str]]:
    """Count failures by node and job, without those of jobs and owners that failed on many nodes,
    and those before the node was last avoided or restored.
    """
    nodes_by_job: dict[str, set[str]] = defaultdict(set)
    nodes_by_owner: dict[str | None, set[str]] = defaultdict(set)
    for failure in recent:
        nodes_by_job[failure.job_id].add(failure.node)
        nodes_by_owner[failure.owner].add(failure.node)
    nodes_by_owner.pop(None, None)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for failure in recent:
        record = records.get(failure.node, NodeRecord(name=failure.node))
        is_new = failure.time > max(record.avoided_since or 0.0, record.restored_at)
        owners_nodes = nodes_by_owner.get(failure.owner, set())
        most = max(len(nodes_by_job[failure.job_id]), len(owners_nodes))
        if is_new and most <= MAX_NODES:
            counts[failure.node][failure.job_id] += 1
    return counts


def _avoid(
    record: NodeRecord, by_job: Counter[str], rules: AvoidanceRules, *, now: float
) -> Avoidance:
    is_first = record.avoided_since is None or now - record.avoided_until > rules.longest_s
    before = 0 if is_first else record.num_avoided
    # The exponent is limited: 2.0 ** 1024 is no float.
    lasts_s = min(rules.longest_s, rules.first_s * 2.0 ** min(before, 64))
    return Avoidance(
        name=record.name,
        until=now + lasts_s,
        because=f"{by_job.total()} failures of workers of {len(by_job)} jobs",
        num_avoided=before + 1,
        restored_at=record.restored_at,
    )
