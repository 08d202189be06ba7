"""The worker process: a Ray actor that outlives the worker groups it takes part in.

It loads torch, the task and its data once, when it starts. Each group is one call of `train`; when
the group ends, the process waits for its next assignment.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accordion.base.errors import drop_tracebacks
from accordion_workers.checkpoint.shared_storage import check_token
from accordion_workers.common.error_kinds import (
    is_peer_loss,
    is_process_death,
    is_raised_by_storage,
)
from accordion_workers.common.error_text import (
    clean_raised_errors,
    find_user_line,
    format_error,
    format_with_line,
)
from accordion_workers.common.errors import TaskRaised, WorkerError
from accordion_workers.common.secret_mask import SecretMask
from accordion_workers.hub.actor_client import RayActorClient
from accordion_workers.hub.journal import Journal
from accordion_workers.hub.log_shipper import LogShipper, LogSource, ship_logs
from accordion_workers.records.contract import Launch, ResizeRecord
from accordion_workers.tasks import SCRIPT
from accordion_workers.training.context import (
    Link,
    LoopControl,
    NoLink,
    PreviousGroup,
    RankProgress,
    RoundMemory,
    WorkerContext,
)
from accordion_workers.worker.actor_link import ActorLink
from accordion_workers.worker.exit_notes import enable_exit_note, exit_note_path
from accordion_workers.worker.gpu_memory import wait_for_free_memory
from accordion_workers.worker.memory import MemoryUse, read_memory_use
from accordion_workers.worker.torchrun_env import build_torchrun_env

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from accordion_workers.data import Data
    from accordion_workers.tasks.base import Task
    from accordion_workers.worker.group_rendezvous import Address, GroupStore

EXIT_FLUSH_S = 1.0
"""How long a process that calls `os._exit` waits to send its last log lines."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLocation:
    """Node, address and id of a process."""

    node: str
    """Ray's id of the node."""
    host: str
    """Address of the node in the cluster."""
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAssignment:
    """Rank of a process in one worker group, and how it joins."""

    generation: int
    rank: int
    world_size: int
    store: Address
    """Host, port and secret of the group's store, which rank 0's process has opened."""
    previous_group: PreviousGroup | None
    peer_timeout_s: float
    """Timeout of a collective, in seconds."""
    nodes: tuple[str, ...] = ()
    """Ray's id of each rank's node, in rank order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Progress of a live process."""

    step: int
    stepped_at: float
    compute_s: float
    progress: RankProgress = field(default_factory=RankProgress)
    memory: MemoryUse | None = None
    """Memory use of the process and its node; None if the system does not report it."""
    activity_count: int = 0
    """Activity counter of this worker; see `LoopControl`."""


class Worker:
    """The actor. `install_packages`, `fetch_data`, `prepare` and `train` block one of its threads;
    other methods return at once.

    Args:
        launch: the attempt as JSON.
        token: written by the supervisor into the job's directory; empty skips the check.
    """

    def __init__(self, launch: str, token: str = "") -> None:
        self._token = token
        self._launch = Launch.model_validate_json(launch)
        # Before torch and the job's code are loaded, which read some variables only once.
        os.environ |= self._launch.env
        self._mask = SecretMask(self._launch.list_secret_values())
        self._parts: tuple[Task, Data, Data] | None = None
        self._control = LoopControl()
        # A process with a GPU does not outlive the loss of a peer.
        self._memory = None if self._launch.spec.workers.gpus else RoundMemory()
        self._has_note = False
        self._store: GroupStore | None = None
        self._trainer: int | None = None
        """Id of the training thread; None while none trains."""
        self._link: Link | None = None
        """Connection of rank 0 to the actor while it trains."""
        self._shipper: LogShipper | None = None
        """Newest sender of this process's output."""

    def locate(self) -> ProcessLocation:
        """Return where this process runs."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        location = ProcessLocation(node=node, host=ray.util.get_node_ip_address(), pid=os.getpid())
        if not self._has_note:
            enable_exit_note(
                exit_note_path(self._launch.storage, node, location.pid),
                before_exit=self._flush_logs,
            )
            self._has_note = True
        return location

    def install_packages(self) -> None:
        """Make the packages of the job importable; before `fetch_data` and `prepare`, for a job
        that names some.

        Raises:
            PackagesError: they cannot be installed here.
            StorageError: this process does not see the job's directory.
        """
        from accordion_workers.user_code.packages import install_packages

        source = LogSource(job_id=self._launch.job_id, attempt=self._launch.attempt, rank=None)
        with clean_raised_errors(), self._ship_logs(source) as self._shipper:
            self._check_storage()
            install_packages(self._launch)

    def fetch_data(self) -> None:
        """Bring the data of the job to this node; before `prepare`, for a job that names some.

        Raises:
            DataFetchError: they cannot be provided here.
            StorageError: this process does not see the job's directory.
        """
        from accordion_workers.worker.data_cache import provide_data

        source = LogSource(job_id=self._launch.job_id, attempt=self._launch.attempt, rank=None)
        with clean_raised_errors(), self._ship_logs(source) as self._shipper:
            self._check_storage()
            os.environ |= provide_data(self._launch)

    def prepare(self) -> bool:
        """Load everything slow before the process joins a group.

        Returns whether the process must join the run of its engine before it may train.

        Raises:
            TaskRaised: the task or its data cannot be loaded here.
            StorageError: this process does not see the job's directory.
        """
        source = LogSource(job_id=self._launch.job_id, attempt=self._launch.attempt, rank=None)
        with (
            clean_raised_errors(),
            self._ship_logs(source) as self._shipper,
        ):
            if self._launch.spec.workers.gpus >= 1:
                _wait_for_gpu()
            self._check_storage()
            self._parts = _load_task(self._launch)
            # The end of each group collects garbage, but not among what is frozen: that stays for
            # good, so its own garbage goes first.
            gc.collect()
            gc.freeze()
        return False

    def _check_storage(self) -> None:
        if self._token:
            launch, host = self._launch, self.locate().host
            check_token(Path(launch.storage), launch.attempt, token=self._token, host=host)

    def _ship_logs(self, source: LogSource) -> AbstractContextManager[LogShipper]:
        return ship_logs(source, RayActorClient(self._launch.installation), self._mask)

    def _flush_logs(self) -> None:
        if self._shipper is not None:
            self._shipper.flush(EXIT_FLUSH_S)

    def open_store(self, generation: int) -> Address:
        """Open the store of a new group that this process leads; return its host, port and
        secret.
        """
        from accordion_workers.worker.group_rendezvous import GroupStore

        log.debug("group %d meets here", generation)
        # Renewed before the group trains, so that no request from now on is lost.
        self._control = self._control.for_next_group()
        self._store = GroupStore(self.locate().host)
        return self._store.address

    def resize(self, note: ResizeRecord) -> None:
        """Let the group save and return at its next step boundary; record the note."""
        from accordion.compress.step_signals import Signal

        self._control.request_signal(Signal.RESIZE)
        if self._link is not None:
            # A full disk must not prevent the resize.
            with suppress(OSError):
                self._link.post(note)

    def leave_group(self, generation: int) -> None:
        """Let the group of this generation end here at its next step: it has lost a member."""
        self._control.broken_group = generation

    def heartbeat(self, compute_s_by_rank: tuple[float, ...]) -> Heartbeat:
        """Return this worker's progress; `compute_s_by_rank` holds values of all ranks."""
        self._control.compute_s_by_rank = compute_s_by_rank
        return replace(self.last_step(), memory=read_memory_use(os.getpid()))

    def last_step(self) -> Heartbeat:
        """Return the last step of this worker, and its time."""
        control = self._control
        return Heartbeat(
            step=control.step,
            stepped_at=control.stepped_at,
            compute_s=control.compute_s,
            progress=control.progress,
            activity_count=control.activity_count,
        )

    def find_user_line(self) -> str:
        """Return the line of user code that the training thread executes; empty if nothing
        trains.
        """
        frame = sys._current_frames().get(self._trainer or 0)
        return find_user_line(traceback.extract_stack(frame)) if frame is not None else ""

    def train(self, assignment: GroupAssignment) -> str:
        """Train in this group until it ends; return the loop's outcome.

        Raises:
            WorkerError: as `loop.train_job`.
            RuntimeError: a collective broke, since some peer is gone.
        """
        self._trainer = threading.get_ident()
        try:
            with clean_raised_errors():
                return self._train_group(assignment)
        except Exception as error:
            if is_peer_loss(error):
                drop_tracebacks(error)
            raise
        finally:
            self._trainer = None
            # Peers wait for the group's sockets to close, which takes the last reference to them.
            # Not all of them have one to the worker that was lost, if each holds a part of a model.
            self._store = None
            self._control.remove_listener()
            from accordion_workers.worker.process_group import release_groups

            release_groups()

    def _join_store(self, assignment: GroupAssignment) -> Store:
        """Join the other members; return the group's store."""
        from accordion_workers.worker.group_rendezvous import join_store
        from accordion_workers.worker.process_group import PEER_TIMEOUT, select_device

        if assignment.rank == 0 and self._store is not None:
            # NCCL may connect to the store once more, from threads of its own.
            on_cpu = select_device(self._launch.spec.workers) == "cpu"
            return self._store.wait_for_members(assignment.world_size, PEER_TIMEOUT, closed=on_cpu)
        return join_store(assignment.store, assignment.rank, PEER_TIMEOUT)

    def _join_group(self, assignment: GroupAssignment, device: str) -> AbstractContextManager[Any]:
        """Return a block in which this process is a member of the group."""
        from accordion_workers.worker.process_group import process_group

        return process_group(
            self._join_store(assignment),
            rank=assignment.rank,
            world_size=assignment.world_size,
            device=device,
            host=self.locate().host,
            timeout=timedelta(seconds=assignment.peer_timeout_s),
        )

    def _train_group(self, assignment: GroupAssignment) -> str:
        from accordion_workers.worker.process_group import select_device

        if assignment.rank != 0:
            self._control = self._control.for_next_group()
        device = select_device(self._launch.spec.workers)
        os.environ |= build_torchrun_env(assignment, device)
        source = LogSource(
            job_id=self._launch.job_id, attempt=self._launch.attempt, rank=assignment.rank
        )
        with (
            self._ship_logs(source) as self._shipper,
            _connect_link(self._launch, assignment, self._shipper) as link,
            ExitStack() as group,
        ):
            with explain_no_group(assignment.rank):
                group.enter_context(self._join_group(assignment, device))
            context = WorkerContext(
                launch=self._launch,
                generation=assignment.generation,
                rank=assignment.rank,
                world_size=assignment.world_size,
                device=device,
                link=link,
                previous_group=assignment.previous_group,
                control=self._control,
                parts=self._parts,
                memory=self._memory,
            )
            self._link = link
            try:
                return run_training(context)
            finally:
                self._link = None


@contextmanager
def explain_no_group(rank: int) -> Iterator[None]:
    """Log the traceback of an error of this process in the block, where its group forms."""
    try:
        yield
    except Exception as error:
        if not is_peer_loss(error):
            log.exception("rank %d cannot join its group", rank)
        raise


def _wait_for_gpu() -> None:
    """Wait for the reserved GPU; Ray hides the others from this process."""
    import torch

    if torch.cuda.is_available():
        wait_for_free_memory(torch.cuda.mem_get_info)


def _load_task(launch: Launch) -> tuple[Task, Data, Data] | None:
    """Load all modules that a group needs; return the task and its data, None for a script.

    Raises:
        TaskRaised: the task or its data cannot be loaded here.
    """
    # torch loads torch._dynamo with the first optimizer, which takes 1 to 2 s.
    for module in ("torch._dynamo", "accordion_workers.training.loop"):
        importlib.import_module(module)
    from accordion_workers.training.train_state import load_task_data
    from accordion_workers.user_code.install import install_code
    from accordion_workers.worker.process_damage import note_destroyed_groups

    note_destroyed_groups()
    folder = install_code(launch)
    if folder is not None:
        # The folder is this process's own, so no two ranks write to one file.
        os.chdir(folder)
    return None if launch.spec.task.name == SCRIPT else load_task_data(launch.spec)


def run_training(context: WorkerContext) -> str:
    """Run the loop or the user's script; log the traceback of what it raises."""
    from accordion_workers.training.loop import train_job
    from accordion_workers.training.script_runner import run_script
    from accordion_workers.user_code.install import install_code
    from accordion_workers.worker.process_damage import explain_damage

    log.info("rank %d of %d trains on %s", context.rank, context.world_size, context.device)
    try:
        install_code(context.launch)
        return (
            run_script(context) if context.launch.spec.task.name == SCRIPT else train_job(context)
        )
    except WorkerError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        if is_peer_loss(error):
            # The lost process is the cause; tracebacks of its peers would only distract.
            log.warning("rank %d lost its peers: %s", context.rank, format_error(error))
            raise
        log.exception("rank %d ends", context.rank)
        damage = explain_damage(error)
        if damage is None and not _would_be_misread(error):
            raise
        progress = context.control.progress
        raise TaskRaised(
            progress.step, progress.epoch, damage or format_with_line(error)
        ) from error


def _would_be_misread(error: BaseException) -> bool:
    """Whether Ray or the supervisor would take an error of user code for one of the process or of
    the storage.
    """
    if isinstance(error, OSError):
        return not is_raised_by_storage(error)
    # Ray treats SystemExit as the end of the process and KeyboardInterrupt as a cancelled call.
    return not isinstance(error, Exception) or is_process_death(error)


@contextmanager
def _connect_link(
    launch: Launch, assignment: GroupAssignment, shipper: LogShipper
) -> Iterator[Link]:
    """Connect the rank to the Accordion actor while the block runs."""
    if assignment.rank != 0:
        yield NoLink(shipper.write)
        return
    journal = Journal(
        Path(launch.storage),
        attempt=launch.attempt,
        generation=assignment.generation,
        clock=time.time,
        mask=SecretMask(launch.list_secret_values()),
    )
    link = ActorLink(launch, journal, client=RayActorClient(launch.installation), shipper=shipper)
    link.start()
    try:
        yield link
    finally:
        link.close()
