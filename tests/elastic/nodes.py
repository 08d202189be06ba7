"""A Ray cluster of several nodes on this machine, and what can befall one: killed, terminated,
drained, cut off.

Nodes are on 127.0.0.1, or each on a host of its own of tests/netlab (needs root). Drivers connect
with `with cluster.driver(): ray.init(address=cluster.address)`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.netlab import lab
from tests.programs import run_program

START_S = 240.0
"""A loaded two-core machine needs up to 20 s for one node, several start at once, and Ray gives up
a node after 30 s, which is then started again.
"""
QUICK_DEATHS = {
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "1000",
}
"""A host that no longer answers counts as dead after some 4 s instead of a minute."""
ALWAYS = {
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "PYTHONPATH": str(lab.ROOT),
}
_RAY = str(Path(sys.executable).with_name("ray"))
_GIVEN_UP = "timed out during startup"
_HEAD_HOST = 1
_PORTS = range(20_000, 32_000)
"""Where nobody listens by chance: below those that Linux picks by itself."""
_given: set[int] = set()
"""Ports that `_free_port` has returned; Ray refuses a node that is given one twice."""
_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h: the child gets a signal when its parent dies."""


@dataclass
class Node:
    """One raylet with its worker processes, under the `ray start --block` that watches over it."""

    start: subprocess.Popen[bytes]
    folder: Path
    """Its temporary directory; the log of `ray start` lies beside it."""
    host: int | None
    """Number of the host in the lab; None on 127.0.0.1."""
    command: Sequence[str]
    """What `start` runs."""
    id: str = field(default="", init=False)
    """Id as Ray prints it; known when the node is up."""
    raylet: int = field(default=0, init=False)
    """Process id of the raylet."""

    def workers(self, title: str = "") -> list[int]:
        """Processes under the raylet whose titles contain the word; an actor's is
        `ray::Class.method`.
        """
        return [pid for pid in family(self.raylet)[1:] if title in command_line(pid)]

    def was_given_up(self) -> bool:
        """Whether Ray gave it up because it had not registered after 30 s, which cannot be set."""
        return self.start.poll() is not None and _GIVEN_UP in _log(self.folder).read_text()

    def is_up(self) -> bool:
        """Whether it has registered.

        Raises:
            RuntimeError: it ended.
        """
        text = _log(self.folder).read_text()
        if self.start.poll() is not None and not self.was_given_up():
            raise RuntimeError(
                f"the node ended with status {self.start.returncode} before it was up:\n{text}"
            )
        return "Ray runtime started" in text

    def learn(self) -> None:
        """Read id and process from the raylet's command line."""
        # what it starts bears its command line for a moment, and comes after it in its family.
        self.raylet = next(
            pid for pid in family(self.start.pid) if "/raylet/raylet" in command_line(pid)
        )
        arguments = Path(f"/proc/{self.raylet}/cmdline").read_bytes().decode().split("\0")
        self.id = next(
            text.partition("=")[2]
            for text in arguments
            if text.startswith(("--node_id=", "--node-id="))
        )


class Cluster:
    """A head without CPUs and some nodes, up while the `with` block runs.

    Args:
        nodes: how many to begin with.
        cpus: logical ones of each node, and of those that are added.
        hosts: 0 for 127.0.0.1; else as many hosts of a lab: one for the head, and one for each node
            there will ever be.
        rate: Mbit/s of the lab's links; 0 for as fast as it goes.
        settings: environment of every node's processes.
        durable: whether what GCS knows outlives it (`RAY_gcs_storage=rocksdb`).
        head_options: options of the head's `ray start`, for the address of the cluster.
    """

    def __init__(
        self,
        *,
        nodes: int = 0,
        cpus: int = 2,
        hosts: int = 0,
        rate: int = 0,
        settings: Mapping[str, str] = QUICK_DEATHS,
        durable: bool = False,
        head_options: Callable[[str], Sequence[str]] = lambda _address: (),
    ) -> None:
        self.nodes: list[Node] = []
        """Nodes that were not ended by a method of this class."""
        self._first, self._cpus, self._durable = nodes, cpus, durable
        self._lab = lab.Lab(hosts, rate) if hosts else None
        self._next_host = _HEAD_HOST
        self._settings, self._head_options = settings, head_options
        self._stack = ExitStack()
        self._number = 0

    def __enter__(self) -> Cluster:
        os.environ["RAY_AUTH_MODE"] = ALWAYS["RAY_AUTH_MODE"]
        # Ray reads the token once in the life of a process, so all clusters that a process starts
        # share it.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(16))
        try:
            self._folder = Path(
                self._stack.enter_context(tempfile.TemporaryDirectory(prefix="rn", dir="/tmp"))
            )
            if self._lab:
                self._stack.enter_context(self._lab)
            self._stack.callback(self._end_all)
            self._begin()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _begin(self) -> None:
        ip = lab.address(_HEAD_HOST) if self._lab else "127.0.0.1"
        port = _free_port()
        self.address = f"{ip}:{port}"
        self._begin_head(port)
        self._wait_until_up([self._start_node(self._cpus) for _ in range(self._first)])

    def _begin_head(self, port: int) -> None:
        arguments = ["--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false"]
        arguments += self._head_options(self.address)
        # Ray opens this one, always 10001, where its optional dependency is there, and refuses the
        # option otherwise.
        arguments += (
            [f"--ray-client-server-port={_free_port()}"] if importlib.util.find_spec("grpc") else []
        )
        self.head = self._start(arguments)
        self._wait_until_up([self.head])

    @contextmanager
    def driver(self) -> Iterator[None]:
        """What this thread does meanwhile, it does on the head's host; so does every thread that it
        starts.
        """
        with lab.visit(_HEAD_HOST) if self._lab else nullcontext():
            yield

    def on_head(self, command: Sequence[str]) -> list[str]:
        """What to run to have the command on the head's host."""
        return [*self._at(_HEAD_HOST), *command]

    def add(
        self,
        *,
        cpus: int | None = None,
        prefix: Sequence[str] = (),
        options: Sequence[str] = (),
    ) -> Node:
        """Start another node, with these words before its command and after it; wait until it is
        registered.
        """
        node = self._start_node(self._cpus if cpus is None else cpus, prefix, options)
        self._wait_until_up([node])
        return node

    def kill(self, node: Node) -> None:
        """A power cut: no process of the node does anything more, and on a lab nothing is said to
        the others.
        """
        if self._lab and node.host:
            self._lab.cut(node.host)
        _end(node)
        self.nodes.remove(node)

    def terminate(self, node: Node) -> None:
        """SIGTERM to `ray start`, as a container gets it; does not wait."""
        node.start.terminate()
        self.nodes.remove(node)
        self._stack.callback(_end, node)

    def drain(self, node: Node, *, deadline_s: int) -> None:
        """Tell the cluster that the node will be preempted. Nothing ends it: `terminate` or `kill`
        do.
        """
        reason = ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=test"]
        options = [
            f"--address={self.address}",
            f"--node-id={node.id}",
            f"--deadline-remaining-seconds={deadline_s}",
        ]
        command = self.on_head([_RAY, "drain-node", *options, *reason])
        done = run_program(command, env=self._env())
        if done.returncode:
            raise RuntimeError(f"the drain was refused: {done.stdout}{done.stderr}")

    def shape(self, rate: int) -> None:
        """Give the links of all nodes this rate in Mbit/s."""
        assert self._lab
        for node in self.nodes:
            assert node.host
            self._lab.set_rate(node.host, rate)

    def cut(self, node: Node) -> None:
        """Take its host's link away; its processes go on."""
        assert self._lab
        assert node.host
        self._lab.cut(node.host)

    def heal(self, node: Node) -> None:
        """Give the link back."""
        assert self._lab
        assert node.host
        self._lab.heal(node.host)

    def kill_gcs(self) -> Callable[[], None]:
        """Kill -9 of the GCS server; what is given back starts it again as it was, and does not
        wait.
        """
        [gcs] = [pid for pid in family(self.head.start.pid) if "/gcs_server" in command_line(pid)]
        command = Path(f"/proc/{gcs}/cmdline").read_bytes().decode().split("\0")[:-1]
        pairs = Path(f"/proc/{gcs}/environ").read_bytes().decode().split("\0")[:-1]
        env = dict(pair.partition("=")[::2] for pair in pairs)
        # `ray start` ends its node when a process of it dies; halted, it does not look.
        self.head.start.send_signal(signal.SIGSTOP)
        os.kill(gcs, signal.SIGKILL)

        def start_again() -> None:
            process = subprocess.Popen(self.on_head(command), env=env, preexec_fn=_end_with_parent)
            self._stack.callback(_end_process, process)

        return start_again

    def _start_node(
        self, cpus: int, prefix: Sequence[str] = (), options: Sequence[str] = ()
    ) -> Node:
        arguments = [f"--address={self.address}", f"--num-cpus={cpus}", *options]
        node = self._start(arguments, prefix)
        self.nodes.append(node)
        return node

    def _start(self, arguments: list[str], prefix: Sequence[str] = ()) -> Node:
        self._number += 1
        folder = self._folder / str(self._number)
        host = self._next_host if self._lab else None
        self._next_host += 1
        ports = ("dashboard-agent-listen", "dashboard-agent-grpc", "metrics-export")
        command = [
            *self._at(host),
            *prefix,
            _RAY,
            "start",
            "--block",
            *arguments,
            "--disable-usage-stats",
        ]
        command += [f"--{name}-port={_free_port()}" for name in ports]
        # left to themselves, all nodes of one address give the same ports to their workers.
        command += ["--min-worker-port=0", "--max-worker-port=0"]
        command += [f"--node-ip-address={lab.address(host) if host else '127.0.0.1'}"]
        command += ["--object-store-memory=80000000", f"--temp-dir={folder}"]
        # It shows drivers what workers print, for a tenth of the time of these tests.
        command += ["--include-log-monitor=false"]
        folder.mkdir()
        return Node(self._run(command, folder), folder, host, command)

    def _run(self, command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
        with _log(folder).open("wb") as log:
            return subprocess.Popen(
                command, env=self._env(), stdout=log, stderr=log, preexec_fn=_end_with_parent
            )

    def _wait_until_up(self, nodes: list[Node]) -> None:
        limit = time.monotonic() + START_S
        while not all(node.is_up() for node in nodes):
            for node in filter(Node.was_given_up, nodes):
                node.start = self._run(node.command, node.folder)
            if time.monotonic() > limit:
                raise RuntimeError(
                    f"not up within {START_S:g}"
                    f" s:\n{[_log(node.folder).read_text() for node in nodes]}"
                )
            time.sleep(0.05)
        for node in nodes:
            node.learn()

    def _at(self, host: int | None) -> list[str]:
        return lab.inside(host) if self._lab and host else []

    def _env(self) -> dict[str, str]:
        inherited = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
        durable = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(self._folder / "gcs")}
        wire = {"GLOO_SOCKET_IFNAME": "eth0"} if self._lab else {}
        token = {"RAY_AUTH_TOKEN": os.environ["RAY_AUTH_TOKEN"]}
        return (
            inherited
            | ALWAYS
            | wire
            | (durable if self._durable else {})
            | token
            | dict(self._settings)
        )

    def _end_all(self) -> None:
        for node in [*self.nodes, self.head] if hasattr(self, "head") else []:
            _end(node)
        self.nodes.clear()


def with_private(directory: Path) -> list[str]:
    """Return the words before a command that give it an empty file system of its own at a
    directory; needs root.
    """
    script = 'mount -t tmpfs private "$0" && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, str(directory)]


def may_mount(directory: Path) -> bool:
    """Whether this process may give a command a file system of its own."""
    probe = subprocess.run([*with_private(directory), "true"], capture_output=True, check=False)
    return probe.returncode == 0


def family(pid: int) -> list[int]:
    """The process and all below it."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(folder.name))
    found = [pid]
    for member in found:
        found += children.get(member, [])
    return found


def command_line(pid: int) -> str:
    """Command line of a running process; empty where there is none."""
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return ""


def _end(node: Node) -> None:
    """Halt all, so that none of them reacts to the end of another, then kill all."""
    for number in (signal.SIGSTOP, signal.SIGSTOP, signal.SIGKILL):
        for pid in family(node.start.pid) if node.start.poll() is None else []:
            _signal(pid, number)
    node.start.wait()


def _end_process(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _log(folder: Path) -> Path:
    return folder.with_suffix(".log")


def _end_with_parent() -> None:
    """A killed test session leaves no cluster behind, not even one whose `ray start` is halted."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _free_port() -> int:
    """A port that nobody listens on now, that no other call in this process returned, and that
    nobody but a caller of this function is given before it is used.
    """
    while True:
        with suppress(OSError), socket.socket() as probe:
            port = secrets.choice(_PORTS)
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port
