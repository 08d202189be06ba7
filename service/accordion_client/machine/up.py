"""`accordion up`: the whole service on one machine, kept running until a signal comes.

Its programs end with it, however it ends. After a signal, running jobs save first. Unfinished jobs
continue from their checkpoints at the next start on the same home directory.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from accordion_client import Client, ClientError
from accordion_client.machine.job_ends import list_running, report_ends
from accordion_client.machine.programs import (
    LOOPBACK,
    STOP_ORDER,
    LocalInstance,
    build_programs,
    free_port,
    ray_log_folder,
)
from accordion_service.access.guards import access_of
from accordion_service.errors import StartError
from accordion_service.process.child_processes import END_GRACE_S, ProcessManager
from accordion_service.process.temp_folders import private_folder, remove_abandoned_folders
from accordion_service.settings.home import Home, Running, write_private
from accordion_service.settings.settings import Settings

READY_TIMEOUT_S = 300.0
"""Limit from the start until ready, in seconds; 8 s are usual, over 90 s were seen on a machine
with other work. A program that exits repeatedly is reported at once.
"""
MAX_START_DEATHS = 3
"""How often a program may exit before the service was ready once."""
STOP_TIMEOUT_S = (len(STOP_ORDER) + 3) * END_GRACE_S
"""Longest time to stop, besides the one in which jobs save: the scheduler after that, every
program, and the processes left behind, get their grace period.
"""
LOOK_INTERVAL_S = 0.1
_READY_INTERVAL_S = 0.2
FOLDER_PREFIX = "accordion-up-"
_RAY_FOLDERS = Path("/tmp")  # noqa: S108 - parent of private folders
"""Parent of Ray's folders; a longer path could exceed the limit of socket paths."""

Say = Callable[[str], None]
"""Receives one line for users; raises nothing if it cannot be written."""


def up(settings: Settings, say: Say) -> None:
    """Run everything until SIGINT, SIGTERM or, unless it is ignored, SIGHUP; then let running jobs
    save. A second SIGINT does not wait for them, as SIGQUIT at any time.

    Raises:
        StartError: another one runs on this home directory, the database cannot be used, the port
            is taken, or a part does not become ready.
        SettingsError: a setting is wrong, or the service would be reachable from other machines
            without a token.
    """
    from accordion_service.store.migrations import upgrade

    started_at = time.monotonic()
    settings = _with_token(settings)
    if settings.no_auth:
        access_of(settings)
    home = Home(settings.home)
    home.make()
    with home.locked(), _catch_signals() as signals, ExitStack() as at_end:
        home.make_secrets()
        access_of(settings)
        upgrade(settings.database)
        _clean_up(home)
        home.stop_report.unlink(missing_ok=True)
        instance = _describe_instance(settings, home, at_end)
        manager = ProcessManager()
        at_end.callback(_clean_up, home)
        at_end.callback(manager.stop, STOP_ORDER)
        say(f"starting Ray, the API and the scheduler; logs are in {home.logs}")
        _start_programs(instance, manager)
        if _wait_until_ready(instance, manager, signals):
            seconds = time.monotonic() - started_at
            say(f"accordion is ready at {instance.url} after {seconds:.1f} s; Ctrl-C stops it")
            say(_how_to_open(instance.url, settings.token()))
        _keep_running(instance, manager, signals, say=say)
        _end_jobs(settings, manager, signals, say=say)
        say("stopping; unfinished jobs continue from their checkpoints at the next 'accordion up'")


def _end_jobs(settings: Settings, manager: ProcessManager, signals: Signals, *, say: Say) -> None:
    """Let running jobs save, and say what became of them."""
    running = list_running(settings)
    if not running:
        return
    if not signals.at_once:
        say(
            f"{len(running)} running job{'s have' if len(running) > 1 else ' has'}"
            f" {settings.cancel_grace_s:g} s to save; Ctrl-C again does not wait"
        )
    grace_s = settings.cancel_grace_s + END_GRACE_S
    manager.end("scheduler", grace_s=grace_s, is_hurried=lambda: signals.at_once)
    lines = report_ends(settings, running)
    for line in lines:
        say(line)
    with suppress(OSError):
        write_private(Home(settings.home).stop_report, "".join(f"{line}\n" for line in lines))


def _with_token(settings: Settings) -> Settings:
    """Use the home directory's token unless another one is set or --no-auth was given.

    Raises:
        SettingsError: the configured token cannot be read or used.
    """
    given = settings.admin_token is not None or settings.admin_token_file is not None
    if given:
        settings.token()
    if given or settings.no_auth:
        return settings
    return settings.model_copy(update={"admin_token_file": settings.home_token})


def _start_programs(instance: LocalInstance, manager: ProcessManager) -> None:
    """Start the programs, and record them.

    Raises:
        StartError: a program cannot be started, or the home directory cannot be written.
    """
    try:
        _write_state(instance, manager)
        manager.start(build_programs(instance))
        _write_state(instance, manager)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        raise StartError(
            f"the service cannot be started ({error.strerror}{where}); its home directory is"
            f" {instance.home.path}, and another one is named with ACCORDION_HOME"
        ) from error


def _describe_instance(settings: Settings, home: Home, at_end: ExitStack) -> LocalInstance:
    port = free_port(settings.host, settings.port)
    ray_dir, temp_dir = (
        at_end.enter_context(private_folder(FOLDER_PREFIX, parent))
        for parent in (_RAY_FOLDERS, _temp_root())
    )
    return LocalInstance(
        home=home,
        host=settings.host,
        port=port,
        ray_dir=ray_dir,
        temp_dir=temp_dir,
        ray_port=free_port(LOOPBACK, 0),
        ray_cpus=settings.ray_cpus,
        ray_dashboard_port=_choose_dashboard_port(wanted=settings.ray_dashboard),
        passed_variables=settings.pass_to_workers,
        grace_s=settings.cancel_grace_s,
        token_file=None if settings.admin_token else settings.admin_token_file,
        no_auth=settings.no_auth,
    )


def _choose_dashboard_port(*, wanted: bool) -> int:
    """Return a free port for Ray's dashboard; 0 if none is wanted.

    Raises:
        StartError: a dashboard is wanted, and the packages that it needs are not installed.
    """
    if not wanted:
        return 0
    if find_spec("opencensus") is None:
        raise StartError(
            "ACCORDION_RAY_DASHBOARD is true, and the packages of Ray's dashboard are not"
            f" installed; pip install 'ray[default]=={importlib.metadata.version('ray')}', or leave"
            " the setting out"
        )
    return free_port(LOOPBACK, 0)


def _how_to_open(url: str, token: str | None) -> str:
    """Instructions for opening the dashboard."""
    if token is None:
        return f"open {url} (no token is required: any user of this machine can run code as you)"
    try:
        with Client(url, token) as client:
            return (
                f"open {client.login_link()} (works once, for 15 minutes; 'accordion login' prints"
                " another)"
            )
    except ClientError as error:
        return f"no link for a browser could be made ({error}); try 'accordion login'"


@dataclass(slots=True)
class Signals:
    """Signals received from the operating system."""

    stop: bool = False
    at_once: bool = False
    """Whether to stop without waiting for jobs that save."""


@contextmanager
def _catch_signals() -> Iterator[Signals]:
    """Record stop signals until the end of the block, so that a second Ctrl-C leaves nothing
    behind.
    """
    signals = Signals()

    def note(number: int, _frame: FrameType | None) -> None:
        # Others may come twice of themselves, such as SIGHUP from a terminal and its shell.
        signals.at_once |= number == signal.SIGQUIT or (signals.stop and number == signal.SIGINT)
        signals.stop = True

    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_until_ready(instance: LocalInstance, manager: ProcessManager, signals: Signals) -> bool:
    """Wait until the service is ready; False if a signal arrived first.

    Raises:
        StartError: a part exited repeatedly, or the time limit passed.
    """
    deadline = time.monotonic() + READY_TIMEOUT_S
    with Client(instance.url) as client:
        while not signals.stop:
            waiting_for = list_unready(client)
            if not waiting_for:
                return True
            manager.look()
            _refuse_deaths(instance, manager)
            if time.monotonic() > deadline:
                raise StartError(
                    f"the service was not ready after {READY_TIMEOUT_S:g} s: {waiting_for}; "
                    f"see the logs in {instance.home.logs}"
                )
            time.sleep(_READY_INTERVAL_S)
    return False


def list_unready(client: Client) -> str:
    """Describe what is not ready; empty if all is."""
    try:
        ready = client.ready()
    except ClientError:
        return "the api does not respond"
    return "; ".join(
        f"{name} {check.message}" for name, check in ready.checks.items() if not check.ok
    )


def _refuse_deaths(instance: LocalInstance, manager: ProcessManager) -> None:
    failures = manager.failures()
    for name, deaths in manager.deaths().items():
        if deaths >= MAX_START_DEATHS:
            if name in failures:
                raise StartError(f"{name} exited and cannot be started again ({failures[name]})")
            log = instance.home.logs / f"{name}.log"
            raise StartError(
                f"{name} exited {deaths} times while starting; last output:"
                f" {last_log_line(log)}; full log: {log}"
            )


def last_log_line(log: Path) -> str:
    """Return the last line of a log, or the message of a JSON record."""
    lines = (
        [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        if log.exists()
        else []
    )
    if not lines:
        return "nothing"
    try:
        record = json.loads(lines[-1])
        return (
            str(record.get("error") or record.get("event"))
            if isinstance(record, dict)
            else lines[-1]
        )
    except ValueError:
        return lines[-1].strip()


def _keep_running(
    instance: LocalInstance, manager: ProcessManager, signals: Signals, *, say: Say
) -> None:
    """Restart programs until a signal comes. What the machine does not allow now, such as on a full
    disk, is tried again: ending here would end all training.
    """
    recorded: dict[str, int] = {}
    failures: dict[str, str] = {}
    while not signals.stop:
        with suppress(OSError):
            for name in manager.look():
                say(f"{name} exited and was restarted; see {instance.home.logs / name}.log")
            before, failures = failures, manager.failures()
            for name in failures.keys() - before.keys():
                say(f"{name} exited and cannot be restarted now ({failures[name]}); trying again")
            if manager.pids() != recorded:
                _write_state(instance, manager)
                recorded = manager.pids()
        time.sleep(LOOK_INTERVAL_S)


def _write_state(instance: LocalInstance, manager: ProcessManager) -> None:
    running = Running(
        pid=os.getpid(),
        url=instance.url,
        ray_address=instance.ray_address,
        ray_dir=str(instance.ray_dir),
        pids=manager.pids(),
        token_file=str(instance.token_file or ""),
        grace_s=instance.grace_s,
    )
    instance.home.write(running)


def _temp_root() -> Path:
    return Path(tempfile.gettempdir())


def _clean_up(home: Home) -> None:
    """Remove what this run or a killed one before it left behind."""
    last = home.last()
    if last is not None and Path(last.ray_dir).name.startswith(FOLDER_PREFIX):
        _keep_ray_logs(last.ray_dir, home)
    home.clear()
    for parent in {_RAY_FOLDERS, _temp_root()}:
        remove_abandoned_folders(FOLDER_PREFIX, parent, time.time())


def _keep_ray_logs(ray_dir: str, home: Home) -> None:
    """Keep Ray's logs of the last run, to find out why it ended."""
    written, kept = ray_log_folder(ray_dir), home.logs / "ray-session"
    if written.exists():
        shutil.rmtree(kept, ignore_errors=True)
        with suppress(OSError):
            shutil.move(written, kept)
