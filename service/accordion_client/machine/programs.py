"""The programs of a one-machine service and the environment each may see: Ray head, api,
scheduler.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from accordion_service.errors import StartError
from accordion_service.process.child_processes import Program, inherit_environment
from accordion_service.settings.home import Home

LOOPBACK = "127.0.0.1"
LEAST_CPUS = 4
"""Least number of logical CPUs of Ray where none is set: two small workers and their helpers fit
every machine.
"""
_OBJECT_STORE_BYTES = 200_000_000
"""Object store of Ray, only for its own messages; weights and gradients never pass through it."""
MAX_LOG_BYTES = 20_000_000
"""A larger log is renamed at the next start; one old file is kept."""

_RAY_TEMP_NAME = "ray"
STOP_ORDER = ("scheduler", "api", "ray")
"""Order of stopping. The scheduler is first: it releases its lease, and records no false failures.
"""

_RAY_SEES = frozenset(
    {
        "HOME",
        "LANG",
        "LD_LIBRARY_PATH",
        "LOGNAME",
        "PATH",
        "PYTHONPATH",
        "TZ",
        "USER",
        "VIRTUAL_ENV",
    }
)
_RAY_SEES_FAMILIES = ("CUDA_", "GLOO_", "LC_", "NCCL_", "NVIDIA_")
# Ray's command line loads optional packages for 3 s: Serve, the job tools, and (grpc) the Ray
# client's server, a process of 90 MB. They are not needed here, so they are declared absent.
_ABSENT = ("ray.serve.scripts", "ray.dashboard.modules.job.cli")
_ABSENT_WITHOUT_DASHBOARD = ("grpc", *_ABSENT)
_RAY_START = (
    "import sys; sys.modules.update(dict.fromkeys({absent})); from ray.scripts.scripts import main;"
    " main()"
)
_RAY_OWN = ("ACCORDION_RAY_", "RAY_")
_CLIENT_TOKEN = "ACCORDION_TOKEN"  # noqa: S105 - a name
"""Start of the variables with the token of whoever calls the service."""
_PIP_INDEX = ("ACCORDION_PIP_EXTRA_INDEX_URL", "ACCORDION_PIP_INDEX_URL")
"""Variables that may hold a password, and that only the scheduler needs."""
_RAY_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "token",
    # Without Ray's dashboard, a helper of Ray Train warns of that every few seconds.
    "RAY_DEDUP_LOGS_SKIP_REGEX": "Failed to query Ray Train Controller actor state",
    # Without it Ray puts the machine's outward address in place of 127.0.0.1, and listens there.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # The time in which other nodes could take over what runs here; there are none.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    # Output of workers is in the jobs' logs; Ray's own copy, one file per process, would grow
    # without limit.
    "RAY_ROTATION_BACKUP_COUNT": "1",
    "RAY_ROTATION_MAX_BYTES": "5000000",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Child processes of a task end with its worker, even if the worker is killed.
    "RAY_process_group_cleanup_enabled": "1",
    # Ray's memory monitor ends restartable actors first: supervisors, before the worker that leaks.
    # All are on one node here. Supervisors end the largest worker earlier
    # (workers/accordion_workers/worker/memory.py), and the kernel takes the largest process.
    "RAY_memory_monitor_refresh_ms": "0",
}
_DRIVER_NEEDS = (
    "RAY_AUTH_MODE",
    "RAY_DEDUP_LOGS_SKIP_REGEX",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",
    "RAY_ROTATION_BACKUP_COUNT",
    "RAY_ROTATION_MAX_BYTES",
)
"""Variables that a driver reads itself; Ray's head applies the others to the whole cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalInstance:
    """Settings and paths of one `accordion up`."""

    home: Home
    host: str
    port: int
    ray_dir: Path
    """Private folder with a short path: a socket's path may have 107 characters."""
    temp_dir: Path
    """Private temporary directory of workers, removed on shutdown."""
    ray_port: int
    ray_cpus: int | None = None
    """CPUs that Ray offers; None for those of the machine, and at least `LEAST_CPUS`."""
    ray_dashboard_port: int = 0
    """Port of Ray's dashboard and state API on loopback; 0 for a Ray without them."""
    passed_variables: tuple[str, ...] = ()
    """Names of variables that workers see besides those that Ray needs."""
    token_file: Path | None = None
    """File with the admin token; None if it comes from a variable, or there is none."""
    no_auth: bool = False
    """Whether the API requires no token."""
    grace_s: float = 0.0
    """Seconds that running jobs have to save when the service stops."""

    @property
    def ray_temp_dir(self) -> Path:
        """Temporary directory passed to Ray: one level below a private folder, since Ray makes it
        world-writable.
        """
        return self.ray_dir / _RAY_TEMP_NAME

    @property
    def url(self) -> str:
        """URL of the service for users."""
        host = LOOPBACK if self.host in {"0.0.0.0", "::"} else self.host  # noqa: S104 - a comparison, no bind
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def ray_address(self) -> str:
        """Address of Ray's GCS."""
        return f"{LOOPBACK}:{self.ray_port}"


def build_programs(instance: LocalInstance) -> tuple[Program, ...]:
    """Define Ray, api and scheduler. They can start together: each waits for what it needs."""
    for name in STOP_ORDER:
        _rotate_log(instance.home.logs / f"{name}.log")
    return (
        Program(
            name="ray",
            command=_ray_command(instance),
            environment=_ray_environment(instance),
            log=instance.home.logs / "ray.log",
            # On SIGTERM it ends its own children; if killed, it would leave that to the kernel and
            # the workers.
            orphan_signal=signal.SIGTERM,
        ),
        Program(
            name="api",
            command=_own_command("api"),
            environment=_api_environment(instance),
            log=instance.home.logs / "api.log",
        ),
        Program(
            name="scheduler",
            command=_own_command("scheduler", "--ends-cluster"),
            environment=_scheduler_environment(instance),
            log=instance.home.logs / "scheduler.log",
            # A process stays bound to its Ray cluster even if another one takes the address.
            needs=("ray",),
        ),
    )


def free_port(host: str, port: int) -> int:
    """Return the port if it is free; for 0, any free one.

    Raises:
        StartError: the port is taken, or the host is not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except OSError as error:
            raise StartError(
                f"port {port} on {host} cannot be used ({error.strerror}); "
                "end what uses it, or choose another with --port (0 takes any that is free)"
            ) from error
        return int(probe.getsockname()[1])


def _own_command(*command: str) -> tuple[str, ...]:
    # -P: a folder named like one of ours in the current directory is not ours.
    return (sys.executable, "-P", "-m", "accordion_client.commands.main", *command)


def _ray_command(instance: LocalInstance) -> tuple[str, ...]:
    absent = _ABSENT if instance.ray_dashboard_port else _ABSENT_WITHOUT_DASHBOARD
    return (
        *(
            sys.executable,
            "-P",
            "-c",
            _RAY_START.format(absent=absent),
            "start",
            "--head",
            "--block",
        ),
        *(
            "--node-ip-address",
            LOOPBACK,
            "--port",
            str(instance.ray_port),
            "--temp-dir",
            str(instance.ray_temp_dir),
        ),
        # By default Ray uses fixed ports for these, so a second cluster on the machine would not
        # start.
        *("--dashboard-agent-listen-port=0", "--min-worker-port=0", "--max-worker-port=0"),
        *("--num-cpus", str(instance.ray_cpus or max(LEAST_CPUS, os.cpu_count() or 1))),
        *("--object-store-memory", str(_OBJECT_STORE_BYTES)),
        *_dashboard_flags(instance),
        *("--no-monitor", "--disable-usage-stats"),
    )


def _dashboard_flags(instance: LocalInstance) -> tuple[str, ...]:
    if not instance.ray_dashboard_port:
        return ("--include-dashboard=false",)
    return (
        "--include-dashboard=true",
        f"--dashboard-host={LOOPBACK}",
        f"--dashboard-port={instance.ray_dashboard_port}",
    )


def _ray_environment(instance: LocalInstance) -> dict[str, str]:
    """Build Ray's environment, which workers inherit: it has the cluster's token and the variables
    that users name, but neither database nor API tokens.
    """
    named = _RAY_SEES | set(instance.passed_variables)
    seen = inherit_environment(lambda name: name in named or name.startswith(_RAY_SEES_FAMILIES))
    own = {"RAY_AUTH_TOKEN_PATH": str(instance.home.ray_token), "TMPDIR": str(instance.temp_dir)}
    return {**seen, **_RAY_ENVIRONMENT, **own}


def _api_environment(instance: LocalInstance) -> dict[str, str]:
    hidden = (*_RAY_OWN, *_PIP_INDEX, _CLIENT_TOKEN)
    seen = inherit_environment(lambda name: not name.startswith(hidden))
    token = {"ACCORDION_ADMIN_TOKEN_FILE": str(instance.token_file)} if instance.token_file else {}
    access = {"ACCORDION_NO_AUTH": str(instance.no_auth)}
    return {**seen, **_address_variables(instance), **token, **access}


def _scheduler_environment(instance: LocalInstance) -> dict[str, str]:
    seen = inherit_environment(
        lambda name: (
            not name.startswith(
                (*_RAY_OWN, "ACCORDION_ADMIN_TOKEN", "ACCORDION_OIDC", _CLIENT_TOKEN)
            )
        )
    )
    ray = driver_environment(instance.home, instance.ray_address)
    return {**seen, **_address_variables(instance), **ray}


def ray_log_folder(ray_dir: str) -> Path:
    """Return the folder in which Ray keeps the logs of the newest session, by `Running.ray_dir`."""
    return Path(ray_dir) / _RAY_TEMP_NAME / "session_latest" / "logs"


def driver_environment(home: Home, ray_address: str) -> dict[str, str]:
    """Return the variables with which a process connects to the Ray cluster of `accordion up`."""
    own = {"RAY_ADDRESS": ray_address, "RAY_AUTH_TOKEN_PATH": str(home.ray_token)}
    return {**own, **{name: _RAY_ENVIRONMENT[name] for name in _DRIVER_NEEDS}}


def _address_variables(instance: LocalInstance) -> dict[str, str]:
    return {
        "ACCORDION_HOME": str(instance.home.path),
        "ACCORDION_HOST": instance.host,
        "ACCORDION_PORT": str(instance.port),
    }


def _rotate_log(log: Path) -> None:
    if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
        log.replace(log.with_suffix(".log.old"))
