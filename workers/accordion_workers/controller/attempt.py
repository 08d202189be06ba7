"""Runs one attempt: worker groups one after another, as processes come and go and groups fail.

The supervisor's thread runs this. Only the pool knows Ray; `scaling_policy` and `failure_policy`
decide.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from accordion_workers.common.errors import ProcessLost
from accordion_workers.common.secret_mask import SecretMask
from accordion_workers.controller import failure_causes, failure_policy
from accordion_workers.controller.failed_nodes import find_failed_nodes
from accordion_workers.controller.hang_detection import describe_hang, select_progress_limit_s
from accordion_workers.controller.scaling_policy import (
    ScalingInput,
    ScalingPlan,
    order_nodes,
    plan_scaling,
)
from accordion_workers.controller.start_failures import (
    AvoidedNodes,
    FailedStart,
    StartVerdict,
    blame_nodes,
    find_refused_members,
    find_unbuilt_members,
    judge_starts,
)
from accordion_workers.controller.worker_pool import WorkerPool
from accordion_workers.records.contract import (
    DesiredState,
    EndReason,
    EndRecord,
    FailureRecord,
    Launch,
    PausedRecord,
    ResizeRecord,
    Size,
)
from accordion_workers.spec.objective import describe_early_end
from accordion_workers.training.context import PreviousGroup

TICK_S = 0.1
"""Longest time between two turns of the attempt."""
DISAGREEMENT_S = 3.0
"""How long heartbeats must show a rank waiting for one that left its loop; some may be old."""
RETURN_S = 5.0
"""How long the other members of a broken group may take to return. A broken collective usually
raises at once; behind a cut network only its timeout does. A killed process is replaced in two
seconds.
"""

log = logging.getLogger(__name__)


class AttemptHost(Protocol):
    """Services that an attempt needs from its supervisor."""

    def claim_generation(self) -> int:
        """Claim a new generation."""

    def record_failure(self, failure: FailureRecord) -> None:
        """Record the failure in a generation of its own, which fences off the failed group."""

    def has_progressed(self, generation: int) -> bool:
        """Return whether the group of that generation saved a new checkpoint or epoch."""

    def has_started(self, generation: int) -> bool:
        """Return whether the group of that generation began to train."""

    def saved_step(self) -> int:
        """Return how many steps the job's newest checkpoint holds."""

    def publish_status(self, message: str, *, is_waiting: bool = False) -> None:
        """Publish what the attempt does, or what its worker group waits for, in one sentence."""

    def publish_placement(self, nodes: tuple[str, ...], avoided: frozenset[str]) -> None:
        """Publish the nodes of the placed worker processes, the most useful process first, and
        those that the attempt avoids by itself.
        """

    def desired_state(self) -> DesiredState:
        """Return the desired state of the job."""

    def requested_stop(self) -> Literal["cancel", "pause"]:
        """Return the request for which a group stopped."""


@dataclass(slots=True, kw_only=True)
class _Group:
    """The worker group that trains."""

    members: tuple[int, ...]
    generation: int
    size: Size
    nodes: Mapping[int, str]
    """Node by rank; empty if unknown."""
    resizing: bool = False
    broken_at: float | None = None
    """When the first member returned an error."""
    disagreed_at: float | None = None
    """Since when its ranks have disagreed about the number of steps; None while they agree."""
    waiting_for: str = ""
    """What the group waits for, as published."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """The groups of one attempt."""

    launch: Launch
    pool: WorkerPool
    host: AttemptHost
    failures: failure_policy.FailureCounts
    previous_group: PreviousGroup | None = None
    """How the newest group ended; at first, the last group of an earlier supervisor."""
    clock: Callable[[], float] = time.monotonic
    """Monotonic clock in seconds, for pauses and timeouts."""
    now: Callable[[], float] = time.time
    """Wall clock in seconds since 1970, for records."""
    has_trained: bool = False
    """Whether a worker group of the job has trained, in this attempt or an earlier one."""
    _last_members: tuple[int, ...] = ()
    """Members of the newest group."""
    _group: _Group | None = None
    _not_before: float = 0.0
    """Earliest time of the next group, after one that failed."""
    _pause_reason: str = ""
    """Why the next group is delayed until then."""
    _failed_starts: int = 0
    """Consecutive rounds of processes that failed to start."""
    _undecided: list[FailedStart] = field(default_factory=list)
    """Failed starts that cannot be judged while other processes still prepare."""
    _avoided: AvoidedNodes = field(default_factory=AvoidedNodes)
    _drained_nodes: set[str] = field(default_factory=set)
    """Nodes that were seen draining; their end is no failure."""
    _start_not_before: float = 0.0
    """Earliest time to start another process after failed starts."""

    def __post_init__(self) -> None:
        self.has_trained = self.has_trained or self.previous_group is not None

    def run(self) -> EndRecord | PausedRecord:
        """Train until the job or the attempt is over."""
        end: EndRecord | PausedRecord | None = None
        try:
            while (end := self._run_once()) is None:
                self.pool.poll(TICK_S)
        finally:
            # An engine may show the outcome to everybody, as Ray Train does on Ray's dashboard.
            mask = SecretMask(self.launch.list_secret_values())
            self.pool.close(end and mask.apply_to_record(end))
        return end

    def _run_once(self) -> EndRecord | PausedRecord | None:
        desired = self.host.desired_state()
        size = desired.size or Size(min=self.launch.spec.workers.min, target=self.launch.workers)
        verdict = self._judge_failed_starts()
        avoid = self.launch.avoid if desired.avoid is None else desired.avoid
        if desired.stop is not None and self._group is None and verdict is None:
            return self._end_stopped(
                desired.stop, self.previous_group.step if self.previous_group else None
            )
        # The replacement of a lost process takes seconds to start, so processes come first.
        plan = self._adjust_processes(size, avoid)
        if self._group is not None:
            return self._watch_group(self._group, plan, size)
        if verdict is not None:
            return self._handle_failure(verdict.failure, progressed=False, fatal=verdict.fatal)
        if plan.group and self.clock() >= self._not_before:
            return self._start_group(plan, size)
        self._publish_waiting(size)
        return None

    def _watch_group(
        self, group: _Group, plan: ScalingPlan, size: Size
    ) -> EndRecord | PausedRecord | None:
        results = self.pool.results()
        end = self._handle_results(group, results) if results else None
        if end is not None or self._group is None or group.broken_at is not None:
            return end
        if (failure := self._find_lasting_disagreement(group)) is not None:
            return self._kill_stuck_group(group, failure, fatal="TASK_RAISED")
        progress = self.pool.progress()
        limit_s = select_progress_limit_s(self.launch.spec.limits, progress)
        if self.pool.idle_s() >= limit_s:
            failure = describe_hang(progress, self.pool.find_user_lines(), limit_s)
            return self._kill_stuck_group(group, failure)
        self._publish_wait(group)
        if not results:
            self._resize_group(group, plan, size)
        return None

    def _publish_wait(self, group: _Group) -> None:
        waiting_for = next(
            (one.waiting_for for one in self.pool.progress().values() if one.waiting_for), ""
        )
        if waiting_for != group.waiting_for:
            group.waiting_for = waiting_for
            storage_is_back = (
                f"worker group {group.generation} continues: its storage is available again"
            )
            self.host.publish_status(waiting_for or storage_is_back, is_waiting=bool(waiting_for))

    def _adjust_processes(self, size: Size, avoid: Collection[str]) -> ScalingPlan:
        """Start and stop processes; return the plan for the group."""
        if self._avoided.update(avoid, self.clock()):
            for process in [one for one in self.pool.processes if one.node is None]:
                self.pool.stop(process.number)
        leaving = [one for one in self.pool.processes if one.leaving_since is not None]
        self._drained_nodes |= {one.node for one in leaving if one.node is not None}
        plan = plan_scaling(self._make_scaling_input(size))
        for number in plan.to_stop:
            self.pool.stop(number)
        may_start = self.clock() >= self._start_not_before and not self._undecided
        for _ in range(plan.num_to_start if may_start else 0):
            self.pool.start(self._avoided.nodes)
        placed = order_nodes(self.pool.processes, self._last_members)
        self.host.publish_placement(placed, frozenset(self._avoided.until))
        return plan

    def _make_scaling_input(self, size: Size) -> ScalingInput:
        return ScalingInput(
            processes=self.pool.processes,
            size=size,
            group=self._last_members,
            training=self._group is not None,
            now=self.clock(),
            num_shards=self.launch.spec.num_shards,
        )

    def _start_group(self, plan: ScalingPlan, size: Size) -> EndRecord | None:
        generation = self.host.claim_generation()
        self.host.publish_status(
            f"worker group {generation} starts with {len(plan.group)} of {size.target} workers"
        )
        node_of = {one.number: one.node for one in self.pool.processes}
        nodes = {rank: node_of.get(number) or "" for rank, number in enumerate(plan.group)}
        group = _Group(members=plan.group, generation=generation, size=size, nodes=nodes)
        self._group = group
        self._failed_starts = 0
        self._last_members = plan.group
        try:
            self.pool.start_group(plan.group, generation, self.previous_group)
        except ProcessLost as error:
            self._close_group(group, "recovery")
            return self._handle_group_failure(
                group, failure_causes.classify_start_failure(error), fatal=None
            )
        return None

    def _resize_group(self, group: _Group, plan: ScalingPlan, size: Size) -> None:
        """Stop the group at its next step boundary if another group should train."""
        if plan.group == group.members or group.resizing:
            return
        group.resizing = True
        note = self._describe_resize(group, plan, size)
        log.info("%s", note.message)
        self.host.publish_status(note.message)
        self.pool.resize(note)

    def _describe_resize(self, group: _Group, plan: ScalingPlan, size: Size) -> ResizeRecord:
        old, new = len(group.members), len(plan.group)
        leaving = {one.number for one in self.pool.processes if one.leaving_since is not None}
        cause: Literal["ordered", "joined", "leaving"] = (
            "ordered" if size != group.size else "joined"
        )
        why = "as allocated" if cause == "ordered" else "missing processes are ready"
        if lost := leaving.intersection(group.members):
            cause, why = "leaving", f"the node of {len(lost)} of its processes is being drained"
        message = f"the group changes from {old} to {new} workers: {why}"
        return ResizeRecord(
            cause=cause,
            old=old,
            new=new,
            step=self._describe_group("resize", old).step,
            message=message,
        )

    def _handle_results(
        self, group: _Group, results: Mapping[int, str | BaseException]
    ) -> EndRecord | PausedRecord | None:
        """Handle the members that returned; the group ends once all have."""
        errors = {
            rank: answer for rank, answer in results.items() if isinstance(answer, BaseException)
        }
        if len(results) < len(group.members):
            if errors:
                self._kill_stragglers(group, results)
            return None
        if errors:
            return self._handle_errors(group, errors)
        # User scripts may end differently on each rank; rank 0 keeps the state and the records.
        outcome = results[0]
        previous_group = self._close_group(group, "resize")
        if outcome == "completed":
            return EndRecord(status="SUCCEEDED", reason="COMPLETED")
        if outcome == "ended early":
            message = describe_early_end(self.launch.spec.objective)
            return EndRecord(status="SUCCEEDED", reason="STOPPED_IMPROVING", message=message)
        if outcome in {"stopped", "unsaved"}:
            return self._end_stopped(self.host.requested_stop(), previous_group.step)
        return None

    def _find_lasting_disagreement(self, group: _Group) -> FailureRecord | None:
        """Return why the group's ranks are deadlocked, once that is certain."""
        failure = failure_causes.find_disagreement(self.pool.progress())
        if failure is None:
            group.disagreed_at = None
            return None
        group.disagreed_at = self.clock() if group.disagreed_at is None else group.disagreed_at
        return failure if self.clock() - group.disagreed_at >= DISAGREEMENT_S else None

    def _kill_stuck_group(
        self, group: _Group, failure: FailureRecord, fatal: EndReason | None = None
    ) -> EndRecord | None:
        """Kill all members of a group that makes no progress."""
        self._close_group(group, "recovery")
        for number in group.members:
            self.pool.kill(number)
        return self._handle_failure(
            failure, progressed=self.host.has_progressed(group.generation), fatal=fatal
        )

    def _kill_stragglers(self, group: _Group, results: Mapping[int, object]) -> None:
        """Let the other members of a broken group leave, and kill those that do not in time."""
        if group.broken_at is None:
            group.broken_at = self.clock()
            self.pool.leave_group()
        if self.clock() - group.broken_at >= RETURN_S:
            for rank, number in enumerate(group.members):
                if rank not in results:
                    log.warning(
                        "rank %d did not return from a broken group within %g s and is killed",
                        rank,
                        RETURN_S,
                    )
                    self.pool.kill(number)

    def _handle_errors(
        self, group: _Group, errors: Mapping[int, BaseException]
    ) -> EndRecord | None:
        """Record what ended the group; return the job's end if it is over."""
        self._close_group(group, "recovery")
        failure = failure_causes.find_cause(errors, self.pool.progress())
        if (verdict := self._blame_members(group, errors)) is not None:
            progressed = self.host.has_progressed(group.generation)
            return self._handle_failure(verdict.failure, progressed=progressed, fatal=None)
        fatal = None
        if failure.cause == "job":
            fatal = failure_causes.find_fatal_reason(errors, has_trained=self.has_trained)
        if failure == failure_causes.find_disagreement(self.pool.progress()):
            # Another group would disagree at the same step.
            fatal = "TASK_RAISED"
        failure = failure.model_copy(update={"nodes": find_failed_nodes(errors, group.nodes)})
        return self._handle_group_failure(group, failure, fatal=fatal)

    def _handle_group_failure(
        self, group: _Group, failure: FailureRecord, *, fatal: EndReason | None
    ) -> EndRecord | None:
        """Stop processes that the failure may have damaged, then handle it."""
        if failure.cause == "job" or self.launch.spec.workers.gpus:
            # An exception may have left its process broken, and the loss of a peer its GPU.
            for number in group.members:
                self.pool.stop(number)
        progressed = self.host.has_progressed(group.generation)
        return self._handle_failure(failure, progressed=progressed, fatal=fatal)

    def _blame_members(
        self, group: _Group, errors: Mapping[int, BaseException]
    ) -> StartVerdict | None:
        """Stop the members that could not build what their peers could, and avoid their nodes."""
        processes = {process.number: process for process in self.pool.processes}
        members = [processes.get(number) for number in group.members]
        unbuilt = find_unbuilt_members(errors, members)
        if unbuilt is None and not self.has_trained:
            tried, has_other_node = self._avoided.tried, self.pool.has_other_node
            unbuilt = find_refused_members(
                errors, members, tried=tried, has_other_node=has_other_node
            )
        if unbuilt is None:
            return None
        for rank in unbuilt:
            self.pool.stop(group.members[rank])
        verdict = blame_nodes(
            list(unbuilt.values()), frozenset(one.node for one in unbuilt.values() if one.node)
        )
        self._avoided.add(verdict, self.clock())
        return verdict

    def _judge_failed_starts(self) -> StartVerdict | None:
        """Judge failed starts; replacements are started after a pause that grows."""
        failed = self.pool.take_failed_starts()
        if failed:
            self._undecided += failed
            pause_s = min(
                failure_policy.MAX_PAUSE_S,
                failure_policy.FIRST_PAUSE_S * 2.0 ** min(self._failed_starts, 10),
            )
            self._failed_starts += 1
            self._start_not_before = self.clock() + pause_s
        if not self._undecided:
            return None
        verdict = judge_starts(
            self._undecided,
            self.pool.processes,
            has_trained=self.has_trained,
            tried=self._avoided.tried,
            has_other_node=self.pool.has_other_node,
        )
        if verdict is None:
            return None
        self._undecided = []
        if verdict.is_elsewhere:
            self._failed_starts = 0
        self._avoided.add(verdict, self.clock())
        log.warning("%s", verdict.failure.message)
        self.host.publish_status(verdict.failure.message)
        return verdict

    def _handle_failure(
        self, failure: FailureRecord, *, progressed: bool, fatal: EndReason | None
    ) -> EndRecord | None:
        self.failures, decision = failure_policy.decide_retry(
            self.failures,
            failure,
            progressed=progressed,
            max_failures=self.launch.spec.max_failures,
            fatal=fatal,
        )
        nodes = tuple(node for node in failure.nodes if node not in self._drained_nodes)
        final = isinstance(decision, failure_policy.GiveUp)
        self.host.record_failure(failure.model_copy(update={"final": final, "nodes": nodes}))
        match decision:
            case failure_policy.Retry(pause_s=pause_s):
                self._not_before = self.clock() + pause_s
                follows = f"{failure.message}; {self._describe_recovery(failure)}"
                log.warning("%s", follows)
                self._pause_reason = f"{follows} in {pause_s:g} s"
                self.host.publish_status(self._pause_reason)
                return None
            case failure_policy.GiveUp(reason=reason, message=message):
                return EndRecord(status="FAILED", reason=reason, message=message)

    def _describe_recovery(self, failure: FailureRecord) -> str:
        """Describe how the attempt continues after a failure."""
        if self.launch.spec.remembers_rounds and self._last_members and failure.cause != "job":
            return "the job continues from the newest round of its survivors, or from a checkpoint"
        if self.host.saved_step():
            return "the job continues from its newest checkpoint"
        if self._last_members:
            return "no checkpoint yet; the job restarts from the beginning"
        return "starting a replacement process"

    def _close_group(self, group: _Group, cause: Literal["resize", "recovery"]) -> PreviousGroup:
        """Drop the group and remember how far it was."""
        self._group = None
        if self.host.has_progressed(group.generation):
            self.failures = self.failures.after_progress()
        self.previous_group = self._describe_group(cause, len(group.members))
        self.has_trained = self.has_trained or self.host.has_started(group.generation)
        return self.previous_group

    def _describe_group(
        self, cause: Literal["resize", "recovery"], world_size: int
    ) -> PreviousGroup:
        before = self.previous_group
        step, stepped_at = self.pool.last_step() or (before.step if before else 0, self.now())
        return PreviousGroup(cause=cause, world_size=world_size, step=step, time=stepped_at)

    def _end_stopped(
        self, why: Literal["cancel", "pause"], step: int | None
    ) -> EndRecord | PausedRecord:
        """Record how far the job was when it was stopped, and how much of that is saved."""
        saved = self.host.saved_step()
        if why == "pause":
            return PausedRecord(step=step, saved_step=saved)
        state = "no worker group was running" if step is None else "its state was saved"
        if step is not None and not saved:
            state = "no checkpoint was saved"
        elif saved < (step or 0):
            state = f"its newest checkpoint holds {saved} of {step} steps"
        return EndRecord(
            status="CANCELLED", reason="CANCELLED_BY_USER", message=f"cancelled; {state}"
        )

    def _publish_waiting(self, size: Size) -> None:
        if self.clock() < self._not_before:
            self.host.publish_status(self._pause_reason)
            return
        ready = sum(one.ready_since is not None for one in self.pool.processes)
        waiting = f"{ready} of {size.target} worker processes ready, {size.min} needed"
        self.host.publish_status("; ".join(dict.fromkeys([waiting, *self._avoided.explanations])))
