"""The rows of the recovery bench: what happens, who takes part, and what is to be reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tests.bench import recovery_stage as stages
from tests.bench.recovery_task import Recovery

OURS, ACTORS, PLAIN, PLAIN_QUICK = "ours", "actors", "plain", "plain-quick"
HUNG_PEER_S = 600.0
"""Quoted, not waited for: Ray Train's default RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S."""
SAME_STEPS = 5
"""Steps by which the same fault may differ from round to round: the bench looks every 0.1 s, a step
takes 0.05 s.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    work: str
    measure: Callable[[stages.Stage], Recovery]
    nodes: int = 2
    size: tuple[int, int] = (1, 2)
    """Fewest and most workers."""
    apart: bool = False
    """Whether the nodes are on hosts of their own, which needs root."""
    contestants: Sequence[str] = (OURS, ACTORS, PLAIN)
    plain_s: float | None = None
    """A quoted figure of plain Ray Train."""
    unit: Literal["s", "MB"] = "s"
    most_of_actors: float | None = 1.5
    """Largest ratio to plain actors; with the unit MB the largest difference."""
    least_of_plain: float | None = None
    """Least ratio of plain Ray Train's seconds to ours."""
    most: float | None = None
    """Most seconds of ours."""
    steps_again: Literal["any", "as actors", "none"] = "as actors"
    """Which steps may be made again."""


_KILLED = "node killed (1 of 2)"
ROWS: Sequence[Row] = (
    Row(
        name="worker-killed",
        work="worker kill -9",
        measure=stages.after(stages.worker_killed),
        size=(2, 2),
        least_of_plain=2.0,
    ),
    Row(
        name="node-killed",
        work=_KILLED,
        measure=stages.after(stages.node_killed),
        least_of_plain=8.0,
    ),
    Row(
        name="node-killed-quick",
        work=f"{_KILLED}, Ray Train with our health checks",
        measure=stages.after(stages.node_killed),
        contestants=(OURS, PLAIN_QUICK),
        most_of_actors=None,
        steps_again="any",
    ),
    Row(
        name="node-cut",
        work="node cut off (1 of 2 hosts)",
        measure=stages.after(stages.node_cut),
        apart=True,
    ),
    Row(
        name="node-drained",
        work="node drained (1 of 2)",
        measure=stages.after(stages.node_drained),
        least_of_plain=20.0,
        most=8.0,
        steps_again="none",
    ),
    Row(
        name="node-terminated",
        work="node terminated (1 of 2)",
        measure=stages.after(stages.node_terminated),
        most=8.0,
        steps_again="none",
    ),
    Row(
        name="resized",
        work="resize 2 to 1",
        measure=stages.after(stages.resized),
        contestants=(OURS, ACTORS),
        most=8.0,
        steps_again="none",
    ),
    Row(
        name="node-added",
        work="node added (1 to 2)",
        measure=stages.after(stages.node_added),
        nodes=1,
        least_of_plain=5.0,
        steps_again="none",
    ),
    Row(
        name="worker-hung",
        work="worker hung",
        measure=stages.after(stages.worker_hung),
        size=(2, 2),
        contestants=(OURS, ACTORS),
        plain_s=HUNG_PEER_S,
        least_of_plain=15.0,
    ),
    Row(
        name="controller-killed",
        work="Ray Train's controller kill -9",
        measure=stages.controller_killed,
        contestants=(OURS,),
        most_of_actors=None,
        most=8.0,
        steps_again="any",
    ),
    Row(
        name="start",
        work="start to first step, warm cluster",
        measure=stages.start,
        size=(2, 2),
        most_of_actors=1.4,
        steps_again="any",
    ),
    Row(
        name="memory",
        work="memory of all processes of a job",
        measure=stages.memory,
        size=(2, 2),
        unit="MB",
        most_of_actors=250.0,
        steps_again="any",
    ),
)
