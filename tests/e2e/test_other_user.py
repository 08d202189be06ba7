"""No file or socket of a running service, or of its Ray, is accessible to another user."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from accordion_service.settings.home import Home
from tests.e2e.real_up import Up, pids_of, start, wait_for
from tests.programs import run_program

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
SPEC = {
    "task": {"name": "digits-mlp", "options": {"hidden": 32, "min_step_s": 0.03}},
    "training": {"epochs": 200},
    "workers": {"min": 2, "max": 2},
}
NOBODY = 65534
LISTENING = "0A"
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
"""127.0.0.1 as Linux writes it in /proc/net/tcp and tcp6."""
AS_NOBODY = f"""
import json, os, socket, stat, sys
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})

def connects(path):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)

def opened(path):
    try:
        if path.startswith("@"):
            return connects("\\0" + path[1:]) or "connect"
        mode = os.lstat(path).st_mode
        if stat.S_ISSOCK(mode):
            return connects(path) or "connect"
        if stat.S_ISDIR(mode):
            return os.listdir(path) is not None and "list"
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        return "read"
    except OSError:
        return ""

found = {{path: opened(path) for path in json.load(sys.stdin)}}
json.dump({{path: how for path, how in found.items() if how}}, sys.stdout)
"""


@pytest.fixture(scope="module")
def training(require) -> Iterator[Up]:
    """A service that trains, in a home below a folder that anybody may enter."""
    if os.geteuid() != 0:
        require.missing("only root can be another user")
    folder = Path(tempfile.mkdtemp(prefix="open-", dir="/tmp"))
    folder.chmod(0o755)
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    up = start(folder / "home", TMPDIR=str(folder / "tmp"))
    job = up.client.submit(SPEC)
    wait_for(lambda: up.client.checkpoints(job.id).items)
    yield up
    up.stop()
    shutil.rmtree(folder)


def made_by(up: Up) -> set[str]:
    """Paths of what the service's processes hold open, and all in the folders in which they make
    something.
    """
    links = [link for pid in pids_of(up.home) for link in Path(f"/proc/{pid}/fd").iterdir()]
    opened = {str(target) for link in links if (target := target_of(link)) is not None}
    ours = ("/tmp/", "/dev/shm/", "/run/", "/var/", str(up.home.parent))
    roots = [up.home, up.home.with_name("tmp"), Path(Home(up.home).running().ray_dir)]
    files = {str(path) for root in roots for path in root.rglob("*")} | {
        str(roots[0]),
        str(roots[2]),
    }
    files |= {path for path in opened if path.startswith(ours) and os.path.lexists(path)}
    return files | sockets_of(opened)


def target_of(link: Path) -> Path | None:
    """What a descriptor stands for; None where it was closed since it was listed."""
    try:
        return link.readlink()
    except OSError:
        return None


def sockets_of(targets: set[str]) -> set[str]:
    """Names of the Unix sockets among open files; those of no file system begin with @."""
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {row[7] for row in rows if len(row) > 7 and f"socket:[{row[6]}]" in targets}


def test_no_file_or_socket_can_be_opened_by_another_user(training: Up) -> None:
    made = sorted(made_by(training))
    asked = run_program([sys.executable, "-c", AS_NOBODY], input=json.dumps(made), check=True)
    assert len(made) > 50
    assert json.loads(asked.stdout) == {}


def test_every_process_of_a_running_job_listens_on_this_machine_only(training: Up) -> None:
    opened = {
        str(target_of(link))
        for pid in pids_of(training.home)
        for link in Path(f"/proc/{pid}/fd").iterdir()
    }
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    addresses = {
        row[1].split(":")[0]
        for row in rows
        if row[3] == LISTENING and f"socket:[{row[9]}]" in opened
    }
    assert addresses <= LOOPBACK
