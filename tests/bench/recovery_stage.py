"""One job of one contestant on a cluster of its own, and the faults that befall it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.recovery_task import (
    EVERY_STEPS,
    Recovery,
    Step,
    longest_pause,
    read_steps,
    recovery_after,
)
from tests.elastic.nodes import QUICK_DEATHS, Cluster, Node, command_line
from tests.netlab.lab import ROOT

START_S, RECOVERY_S = 120.0, 240.0
"""How long a job may take to train, and to go on after a fault."""
LOOK_S = 0.1
NOTICE_S = 10
"""From the notice that a node is about to go to its end."""
ORDERED = "ordered at "
"""What a driver prints before the time at which it orders the job."""
CONTROLLER = "ray::RayTrainController"
"""Title of the process with Ray Train's controller."""
_PAST_CHECKPOINTS = 2 * EVERY_STEPS + EVERY_STEPS // 2
"""Steps before the fault: two checkpoints, and half of the way to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """Somebody who runs the job."""

    module: str
    """Its driver."""
    arguments: Sequence[str] = ()
    """What the driver gets beside the address, the folder and the size."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Environment of its cluster's nodes."""


_OURS = "tests.bench.recovery_ours"
_PLAIN = "tests.bench.recovery_peer"
CONTESTANTS = {
    "ours": Contestant(module=_OURS, arguments=["ray-train"], settings=QUICK_DEATHS),
    "actors": Contestant(module=_OURS, arguments=["actors"], settings=QUICK_DEATHS),
    "plain": Contestant(module=_PLAIN),
    "plain-quick": Contestant(module=_PLAIN, settings=QUICK_DEATHS),
}
"""Both engines of ours, and Ray Train by itself; the last on a cluster with our settings, to show
what is owed to them alone.
"""


class Stage:
    """A cluster and a job that trains on it, up while the `with` block runs.

    Args:
        contestant: who runs it.
        nodes: of one CPU each.
        size: fewest and most workers.
        apart: each node on a host of its own, which needs root; else all are on 127.0.0.1.
    """

    def __init__(
        self, contestant: Contestant, *, nodes: int, size: tuple[int, int], apart: bool = False
    ) -> None:
        self._contestant, self._nodes, self._size = contestant, nodes, size
        self._hosts = nodes + 1 if apart else 0
        self._stack = ExitStack()
        self.doomed: tuple[float, Node] | None = None
        """A node that ends at that time."""

    def __enter__(self) -> Stage:
        try:
            self.folder = Path(
                self._stack.enter_context(tempfile.TemporaryDirectory(prefix="recovery"))
            )
            cluster = Cluster(
                nodes=self._nodes, cpus=1, hosts=self._hosts, settings=self._contestant.settings
            )
            self.cluster = self._stack.enter_context(cluster)
            self._driver = self._start_driver()
            self._stack.callback(self._end_driver)
            world_size = min(self._nodes, self._size[1])
            self.wait(lambda: self._is_under_way(world_size), START_S)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def worker(self, rank: int) -> Step:
        """The newest step of the rank."""
        return [step for step in read_steps(self.folder) if step.rank == rank][-1]

    def node_of(self, rank: int) -> Node:
        """Where the rank's process runs."""
        pid = self.worker(rank).pid
        return next(node for node in self.cluster.nodes if pid in node.workers())

    def resize(self, world_size: int) -> None:
        """Tell the driver."""
        assert self._driver.stdin is not None
        self._driver.stdin.write(f"resize {world_size}\n")
        self._driver.stdin.flush()

    def recovery(self, fault: float) -> Recovery:
        """Wait until training goes on in another constellation.

        Raises:
            TimeoutError: it does not; the driver's last words are in the message.
        """
        self.wait(lambda: recovery_after(read_steps(self.folder), fault) is not None, RECOVERY_S)
        recovery = recovery_after(read_steps(self.folder), fault)
        assert recovery is not None
        return recovery

    def pause(self, fault: float) -> Recovery:
        """Wait until two checkpoints' worth of steps have followed the fault; return their longest
        pause.

        Raises:
            TimeoutError: they do not follow.
        """
        last = max(step.step for step in read_steps(self.folder) if step.time <= fault)
        reached = last + _PAST_CHECKPOINTS
        self.wait(lambda: max(step.step for step in read_steps(self.folder)) >= reached, RECOVERY_S)
        return longest_pause(read_steps(self.folder), fault)

    def start_s(self) -> float:
        """Return the seconds from the driver's order to the first step that every rank had begun
        another after.
        """
        lines = [line for line in self._said.read_text().splitlines() if line.startswith(ORDERED)]
        steps = read_steps(self.folder)
        return max(step.time for step in steps if step.step == 1) - float(
            lines[0].removeprefix(ORDERED)
        )

    def wait(self, condition: Callable[[], bool], limit_s: float) -> None:
        """Look until it holds; end the doomed node when its time has come."""
        limit = time.monotonic() + limit_s
        while not condition():
            if self.doomed and time.time() >= self.doomed[0]:
                self.cluster.kill(self.doomed[1])
                self.doomed = None
            if time.monotonic() > limit or self._driver.poll() is not None:
                status, words = self._driver.poll(), self._said.read_text()[-2000:]
                raise TimeoutError(
                    f"not within {limit_s:g} s; the driver (status {status}) said:\n{words}"
                )
            time.sleep(LOOK_S)

    @property
    def _said(self) -> Path:
        return self.folder / "driver.log"

    def _is_under_way(self, world_size: int) -> bool:
        steps = read_steps(self.folder)
        current = {step.rank: step.step for step in steps if step.world_size == world_size}
        return len(current) == world_size and min(current.values()) >= _PAST_CHECKPOINTS

    def _start_driver(self) -> subprocess.Popen[str]:
        clean = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
        token = {name: os.environ[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
        arguments: Sequence[str] = [self.cluster.address, str(self.folder), *map(str, self._size)]
        arguments = [*arguments, *self._contestant.arguments]
        with self._said.open("w") as said:
            return subprocess.Popen(
                self.cluster.on_head([sys.executable, "-m", self._contestant.module, *arguments]),
                env={**clean, **token, "RAY_USAGE_STATS_ENABLED": "0"},
                cwd=ROOT,
                text=True,
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
            )

    def _end_driver(self) -> None:
        self._driver.kill()
        self._driver.wait()


def after(fault: Callable[[Stage], float]) -> Callable[[Stage], Recovery]:
    """Return what plants the fault and waits until other workers, or fewer or more of them,
    go on.
    """
    return lambda stage: stage.recovery(fault(stage))


def controller_killed(stage: Stage) -> Recovery:
    """Kill -9 of the actor with Ray Train's controller; the workers may go on meanwhile."""
    [pid] = [pid for pid in processes_of(stage.cluster) if CONTROLLER in command_line(pid)]
    now = time.time()
    os.kill(pid, signal.SIGKILL)
    return stage.pause(now)


def start(stage: Stage) -> Recovery:
    """Seconds from the order to the first completed step."""
    return Recovery(seconds=stage.start_s(), stood_still_s=0.0, rolled_back=0, world_size=2)


def memory(stage: Stage) -> Recovery:
    """Proportional set size of all processes that Ray started for the job, MB in place of
    seconds.
    """
    used = sum(
        pss_bytes(pid)
        for pid in processes_of(stage.cluster)
        if "ray::IDLE" not in command_line(pid)
    )
    return Recovery(seconds=used / 1e6, stood_still_s=0.0, rolled_back=0, world_size=2)


def processes_of(cluster: Cluster) -> list[int]:
    """Process ids of all that runs under the cluster's raylets and bears the name of a task or an
    actor.
    """
    return [pid for node in [cluster.head, *cluster.nodes] for pid in node.workers("ray::")]


def pss_bytes(pid: int) -> int:
    """Return a process's memory; what it shares with others counts in parts."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * int(
        next(line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:"))
    )


def worker_killed(stage: Stage) -> float:
    """Kill -9 of rank 1; like all faults, gives the time at which it happened."""
    pid, now = stage.worker(1).pid, time.time()
    os.kill(pid, signal.SIGKILL)
    return now


def worker_hung(stage: Stage) -> float:
    """SIGSTOP of rank 1."""
    pid, now = stage.worker(1).pid, time.time()
    os.kill(pid, signal.SIGSTOP)
    return now


def node_killed(stage: Stage) -> float:
    """All processes of the node with rank 1 end; the system says so to those who are connected to
    them.
    """
    node, now = stage.node_of(1), time.time()
    stage.cluster.kill(node)
    return now


def node_cut(stage: Stage) -> float:
    """The host with rank 1 loses its link: its processes go on and nobody is told."""
    node, now = stage.node_of(1), time.time()
    stage.cluster.cut(node)
    return now


def node_drained(stage: Stage) -> float:
    """Notice that the node with rank 1 will end, and its end."""
    node, now = stage.node_of(1), time.time()
    stage.cluster.drain(node, deadline_s=NOTICE_S)
    stage.doomed = (now + NOTICE_S, node)
    return now


def node_terminated(stage: Stage) -> float:
    """SIGTERM to the node with rank 1, which gives itself 30 s by Ray's defaults."""
    node, now = stage.node_of(1), time.time()
    stage.cluster.terminate(node)
    return now


def node_added(stage: Stage) -> float:
    """Room for another worker, from the start of the raylet's process."""
    raylet = stage.cluster.add().raylet
    ticks = int(Path(f"/proc/{raylet}/stat").read_text().rpartition(")")[2].split()[19])
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted + ticks / os.sysconf("SC_CLK_TCK")


def resized(stage: Stage) -> float:
    """People order one worker fewer."""
    now = time.time()
    stage.resize(1)
    return now
