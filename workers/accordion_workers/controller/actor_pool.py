"""Worker pool of plain Ray actors.

Ray places the actors, accounts for their resources and reports deaths. `hang_detection.py` decides
which processes are hung; the pool kills them.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from accordion_workers.checkpoint.shared_storage import write_token
from accordion_workers.common.error_kinds import (
    is_lone_process_death,
    is_node_loss,
    is_process_death,
    is_storage_outage,
)
from accordion_workers.common.errors import (
    DataFetchError,
    PackagesError,
    ProcessCrashed,
    ProcessLost,
    StorageError,
    TaskRaised,
)
from accordion_workers.common.node_selectors import exclude_values
from accordion_workers.controller.hang_detection import HEARTBEAT_S, HangDetector
from accordion_workers.controller.member import Member, Provision, list_provisions
from accordion_workers.controller.ray_nodes import find_nodes, get_draining_nodes
from accordion_workers.controller.scaling_policy import Process
from accordion_workers.controller.start_failures import FailedStart
from accordion_workers.records.contract import EndRecord, Launch, PausedRecord, ResizeRecord
from accordion_workers.training.context import PreviousGroup, RankProgress
from accordion_workers.worker.exit_notes import discard_exit_note, exit_note_path, read_exit_note
from accordion_workers.worker.memory import MemoryGrowth, MemoryUse, read_memory_use
from accordion_workers.worker.process import GroupAssignment, Heartbeat, Worker

PEER_TIMEOUT_S = 60.0
"""Minimum timeout of a collective; it is at least twice the silence limit."""
_MEASURE_S = 0.25
"""Interval between memory readings of local processes; remote ones report in their heartbeats."""
DRAINING_CHECK_S = 0.5
"""Interval between checks for draining nodes."""
_NODE_LABEL = "ray.io/node-id"
"""Label that Ray sets on every node."""
LAST_ANSWER_S = 1.0
"""Timeout for the last heartbeats of a group that ended."""

log = logging.getLogger(__name__)


KILLED = "killed"
"""Result recorded for a member that was killed because it did not return."""
_START_ERRORS = (DataFetchError, PackagesError, StorageError, TaskRaised)
"""Errors by which a starting process reports why it failed."""


def send_sigkill(pid: int) -> None:
    """Kill a process of this node; one that is gone already is no error."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class ActorPool:
    """Implements `WorkerPool`.

    Args:
        launch: the attempt whose processes these are.
        ray: the module, or an object with those of its functions that the pool calls; None imports
            the module.
        clock: monotonic clock, in seconds.
        pause: sleeps for the given seconds.
        measure: reads the memory that a local process uses.
        draining_nodes: returns the ids of nodes that are being drained.
        kill_process: sends SIGKILL to a process of this node.
    """

    def __init__(
        self,
        launch: Launch,
        *,
        ray: Any = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
        measure: Callable[[int], MemoryUse | None] = read_memory_use,
        draining_nodes: Callable[[], Collection[str]] = get_draining_nodes,
        kill_process: Callable[[int], object] = send_sigkill,
    ) -> None:
        self._ray = ray or importlib.import_module("ray")
        self._clock, self._pause = clock, pause
        self._draining_nodes, self._kill_local_process = draining_nodes, kill_process
        # The credentials of the package index are for the supervisor only.
        self._launch = launch.model_copy(update={"pip_index": None}).model_dump_json()
        self._provisions = list_provisions(launch.spec)
        self._token = write_token(Path(launch.storage), launch.attempt)
        workers = launch.spec.workers
        self._options: dict[str, Any] = {
            "num_cpus": workers.cpus,
            "num_gpus": workers.gpus,
            "max_concurrency": 4,
            "max_restarts": 0,
        }
        self._options |= workers.ray_options()
        self._memory_limit, self._measure = workers.memory, measure
        self._members: dict[int, Member] = {}
        self._next = 0
        self._failed: list[FailedStart] = []
        self._group: tuple[int, ...] = ()
        self._generation = 0
        self._results: dict[int, str | BaseException] = {}
        self._newest: tuple[int, float] | None = None
        """Newest known step, and its time."""
        self._progress: dict[int, RankProgress] = {}
        """Progress of the newest group's members, by process number."""
        self._storage = launch.storage
        self._hangs = HangDetector(launch.spec.limits, self._clock())
        self._draining_checked_at: float | None = None

    @property
    def processes(self) -> list[Process]:
        """Live processes, by number."""
        return [
            Process(
                number=one.number,
                ready_since=one.ready_since,
                leaving_since=one.leaving_since,
                node=one.location.node if one.location is not None else None,
                host=one.location.host if one.location is not None else None,
            )
            for one in self._members.values()
        ]

    def start(self, avoid: Collection[str] = ()) -> None:
        """Start one more actor on a node that has room and is not avoided."""
        options = dict(self._options)
        if avoid:
            selector = options.get("label_selector", {})
            options["label_selector"] = exclude_values(selector, _NODE_LABEL, avoid)
        actor = self._start_actor(options)
        self._members[self._next] = Member(self._next, actor, actor.locate.remote())
        self._next += 1

    def has_other_node(self, nodes: Collection[str]) -> bool:
        """Ask Ray for its nodes; if it does not answer, there may be one."""
        try:
            return not find_nodes(self._ray.nodes(), self._options) <= set(nodes)
        except self._ray.exceptions.RayError:
            return True

    def _start_actor(self, options: dict[str, Any]) -> Any:
        return self._ray.remote(Worker).options(**options).remote(self._launch, self._token)

    def stop(self, number: int) -> None:
        """Kill the actor."""
        member = self._members.pop(number, None)
        if member is not None:
            self._ray.kill(member.actor)
            if member.location is not None:
                discard_exit_note(
                    exit_note_path(self._storage, member.location.node, member.location.pid)
                )

    def kill(self, number: int) -> None:
        """Kill the actor and its process."""
        member = self._members.get(number)
        if member is not None:
            self.stop(number)
            self._kill_process(member)
        self._results.setdefault(self._group.index(number), KILLED)

    def poll(self, timeout_s: float) -> None:
        """Wait for an open call, then handle all calls that have returned."""
        self._request_heartbeats()
        calls = self._open_calls()
        if calls:
            done, _ = self._ray.wait(list(calls), num_returns=1, timeout=timeout_s)
            more, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0)
            for call in dict.fromkeys([*done, *more]):
                calls[call](call)
        else:
            self._pause(timeout_s)
        self._watch_memory()
        self._kill_hung()
        self._refresh_draining()

    def take_failed_starts(self) -> list[FailedStart]:
        """Return and clear the processes that ended before they were ready."""
        failed, self._failed = self._failed, []
        return failed

    def start_group(
        self, group: Sequence[int], generation: int, previous_group: PreviousGroup | None
    ) -> None:
        """Open the group's store in rank 0's process, then let all members train.

        Raises:
            ProcessLost: rank 0's process does not answer.
        """
        members = [self._members[number] for number in group]
        # It may still be busy with the end of the group before, and nothing is polled meanwhile.
        limit_s = min(self._hangs.silence_limit_s, PEER_TIMEOUT_S)
        try:
            store = self._ray.get(members[0].actor.open_store.remote(generation), timeout=limit_s)
        except (self._ray.exceptions.RayError, TimeoutError) as error:
            self.stop(group[0])
            raise ProcessLost(
                f"rank 0's process opened no store for its group within {limit_s:g} s:"
                f" {type(error).__name__}"
            ) from error
        self._group, self._results, self._newest, self._progress = tuple(group), {}, None, {}
        self._generation = generation
        self._hangs.start_group()
        nodes = tuple(
            member.location.node if member.location is not None else "" for member in members
        )
        for rank, member in enumerate(members):
            assignment = GroupAssignment(
                generation=generation,
                rank=rank,
                world_size=len(group),
                store=store,
                previous_group=previous_group,
                peer_timeout_s=max(PEER_TIMEOUT_S, 2 * self._hangs.silence_limit_s),
                nodes=nodes,
            )
            member.training = member.actor.train.remote(assignment)
            member.memory.growth = MemoryGrowth()
            # A heartbeat requested earlier may show the member's progress in the previous group.
            member.heartbeat_call = None

    def results(self) -> dict[int, str | BaseException]:
        """Return outcomes and errors by rank."""
        return dict(self._results)

    def resize(self, note: ResizeRecord) -> None:
        """Ask rank 0's process to resize the group."""
        leader = self._members.get(self._group[0])
        if leader is not None:
            leader.actor.resize.remote(note)

    def leave_group(self) -> None:
        """Tell the members that still train; those in a collective learn it from that."""
        for number in self._group:
            if (member := self._members.get(number)) is not None and member.training is not None:
                member.actor.leave_group.remote(self._generation)

    def last_step(self) -> tuple[int, float] | None:
        """Ask all live processes, and compare with earlier heartbeats: a dead process may have been
        ahead.
        """
        ready = [one for one in self._members.values() if one.ready_since is not None]
        calls = {one.actor.last_step.remote(): one for one in ready}
        done, _ = (
            self._ray.wait(list(calls), num_returns=len(calls), timeout=LAST_ANSWER_S)
            if calls
            else ([], [])
        )
        for call in done:
            with suppress(self._ray.exceptions.RayError):
                self._record_heartbeat(calls[call], self._ray.get(call))
        return self._newest

    def progress(self) -> dict[int, RankProgress]:
        """Return each rank's progress as of its newest heartbeat."""
        return {
            rank: self._progress[number]
            for rank, number in enumerate(self._group)
            if number in self._progress
        }

    def idle_s(self) -> float:
        """Return the seconds without progress, counted only while this process watches."""
        return self._hangs.idle_s

    def find_user_lines(self) -> dict[int, str]:
        """Ask all members which line of user code they execute."""
        members = {
            rank: self._members[number]
            for rank, number in enumerate(self._group)
            if number in self._members
        }
        calls = {member.actor.find_user_line.remote(): rank for rank, member in members.items()}
        done, _ = (
            self._ray.wait(list(calls), num_returns=len(calls), timeout=LAST_ANSWER_S)
            if calls
            else ([], [])
        )
        places: dict[int, str] = {}
        for call in done:
            with suppress(self._ray.exceptions.RayError):
                places[calls[call]] = self._ray.get(call)
        return places

    def close(self, outcome: EndRecord | PausedRecord | None = None) -> None:
        """Kill all actors."""
        del outcome
        for number in list(self._members):
            self.stop(number)

    def _open_calls(self) -> dict[Any, Callable[[Any], None]]:
        """Return the calls to wait for, each with the function that takes its answer."""
        return {
            call: partial(self._handle_answer, member)
            for member in self._members.values()
            for call in member.open_calls()
        }

    def _request_heartbeats(self) -> None:
        now = self._clock()
        members = [self._members.get(number) for number in self._group]
        computed = tuple(
            one.heartbeat.compute_s if one is not None and one.heartbeat is not None else 0.0
            for one in members
        )
        for member in self._members.values():
            if (
                member.location is not None
                and member.heartbeat_call is None
                and now - member.heartbeat_at >= HEARTBEAT_S
            ):
                member.heartbeat_call, member.heartbeat_at = (
                    member.actor.heartbeat.remote(computed),
                    now,
                )

    def _handle_answer(self, member: Member, call: Any) -> None:
        """Handle a call that has returned."""
        try:
            answer = self._ray.get(call)
        except self._ray.exceptions.RayTaskError as raised:
            answer = raised.cause
        except self._ray.exceptions.RayError as lost:
            self._drop_member(member, lost)
            return
        if call is member.training:
            member.training = None
            self._results[self._group.index(member.number)] = answer
        elif call is member.starting and (
            isinstance(answer, _START_ERRORS) or is_storage_outage(answer)
        ):
            self._drop_member(member, answer)
        elif isinstance(answer, BaseException):
            self._drop_member(
                member,
                ProcessLost(f"the process cannot be used: {type(answer).__name__}: {answer}"),
            )
        elif call is member.heartbeat_call:
            member.heartbeat_call = None
            self._record_heartbeat(member, answer)
        else:
            self._advance_start(member, answer)

    def _advance_start(self, member: Member, answer: Any) -> None:
        """Begin the next step of a starting process."""
        if member.location is None:
            member.location = answer
            self._provide_next(member, self._provisions)
            self._note_placed(member)
        elif member.provision is not None:
            done = self._provisions.index(member.provision) + 1
            self._provide_next(member, self._provisions[done:])
        else:
            member.starting, member.silent_s = None, 0.0
            member.has_joined = member.has_joined or not answer
            self._note_ready(member)

    def _provide_next(self, member: Member, left: Sequence[Provision]) -> None:
        member.provision = left[0] if left else None
        member.starting = getattr(member.actor, member.provision or "prepare").remote()

    def _note_placed(self, member: Member) -> None:
        """React to a process that was placed and begins to prepare; the Ray Train pool lets it join
        its run.
        """

    def _note_ready(self, member: Member) -> None:
        if member.starting is None and member.has_joined and member.ready_since is None:
            member.ready_since = self._clock()

    def _record_heartbeat(self, member: Member, heartbeat: Heartbeat) -> None:
        member.heartbeat = heartbeat
        if heartbeat.memory is not None:
            member.memory.add(self._clock(), heartbeat.memory)
            if heartbeat.progress.doing != "starting":
                member.memory.growth.add(heartbeat.step, self._clock(), heartbeat.memory.process)
        if member.number in self._group:
            self._progress[member.number] = heartbeat.progress
            self._hangs.record_activity(member.number, heartbeat.activity_count)
        if heartbeat.stepped_at:
            newest = self._newest or (0, 0.0)
            self._newest = max(
                newest, (heartbeat.step, heartbeat.stepped_at), key=lambda made: made[1]
            )

    def _drop_member(self, member: Member, why: BaseException) -> None:
        """Remove a dead process; the first of its failed calls ends up here."""
        if self._members.pop(member.number, None) is None:
            return
        why = self._explain_loss(member, why)
        # A process that only seemed dead must not continue to train.
        self._ray.kill(member.actor)
        if member.training is not None:
            self._results[self._group.index(member.number)] = why
        elif member.location is None and is_node_loss(why):
            # Ray chose a node that was gone already; the process never ran.
            log.info("a worker process is requested again: the node chosen for it is gone")
        elif member.ready_since is None:
            node, host = (
                (member.location.node, member.location.host)
                if member.location is not None
                else (None, None)
            )
            self._failed.append(FailedStart(error=why, node=node, host=host))

    def _explain_loss(self, member: Member, why: BaseException) -> BaseException:
        """Replace Ray's error by the process's exit note or its lack of memory, if there is one."""
        if member.location is None or not is_process_death(why):
            return why
        note = read_exit_note(
            exit_note_path(self._storage, member.location.node, member.location.pid)
        )
        if note is not None:
            return ProcessCrashed(note)
        return (member.memory.explain_death() if is_lone_process_death(why) else None) or why

    def _watch_memory(self) -> None:
        """Kill processes above their memory limit, and the largest one on a node short of
        memory.
        """
        here = self._ray.get_runtime_context().get_node_id()
        for member in list(self._members.values()):
            if member.location is not None and member.location.node == here:
                self._measure_here(member, member.location.pid)
            why = member.memory.judge(self._memory_limit)
            if why is not None:
                log.warning("killing worker process %d: %s", member.number, why)
                self._kill_process(member)
                self._drop_member(member, why)
                self._expect_relief(member)

    def _expect_relief(self, killed: Member) -> None:
        for member in self._members.values():
            if member.location and killed.location and member.location.node == killed.location.node:
                member.memory.expect_relief(self._clock())

    def _measure_here(self, member: Member, pid: int) -> None:
        """Read a local process's memory from outside: one that holds Python's lock does not
        answer.
        """
        if self._clock() - member.memory.read_s >= _MEASURE_S:
            member.memory.add(self._clock(), self._measure(pid))

    def _kill_hung(self) -> None:
        members = list(self._members.values())
        self._hangs.measure(members, self._clock())
        for member in members:
            why = self._hangs.check(member)
            if why is not None:
                log.warning("killing worker process %d: %s", member.number, why)
                self._kill_process(member)
                self._drop_member(member, why)

    def _kill_process(self, member: Member) -> None:
        """Kill the process from its own node: a stopped process does not react to Ray."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if member.location is None:
            return
        if member.location.node == self._ray.get_runtime_context().get_node_id():
            self._kill_local_process(member.location.pid)
            return
        there = NodeAffinitySchedulingStrategy(member.location.node, soft=False)
        self._ray.remote(send_sigkill).options(
            num_cpus=0, scheduling_strategy=there, max_retries=0
        ).remote(member.location.pid)

    def _refresh_draining(self) -> None:
        """Note the members whose nodes are draining."""
        if (
            self._draining_checked_at is not None
            and self._clock() - self._draining_checked_at < DRAINING_CHECK_S
        ):
            return
        self._draining_checked_at = self._clock()
        with suppress(self._ray.exceptions.RayError, OSError):
            leaving = self._draining_nodes()
            for member in self._members.values():
                if member.location is not None and member.location.node in leaving:
                    member.leaving_since = member.leaving_since or self._clock()
