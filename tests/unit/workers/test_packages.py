"""Packages of a job on one node: installed once from the wheels in the job's storage, and used by
all processes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

from accordion_workers.common.errors import PackagesError
from accordion_workers.records.contract import Launch
from accordion_workers.user_code import packages
from accordion_workers.user_code.packages import UNUSED_S, ensure_environment, find_unmet
from accordion_workers.user_code.resolution import (
    WHEELS,
    Resolution,
    Wheel,
    packages_folder,
    read_resolution,
    write_resolution,
)
from tests.programs import run_program
from tests.unit.workers.wheels import make_wheel, sha256_of
from tests.unit.workers.world import launch

INSTALL = """
import sys
from accordion_workers.records.contract import Launch
from accordion_workers.common.errors import WorkerError
from accordion_workers.user_code.packages import install_packages
try:
    install_packages(Launch.model_validate_json(sys.argv[1]))
except WorkerError as error:
    sys.exit(str(error))
import acc_alpha, packaging
print(acc_alpha.VERSION, acc_alpha.__file__, packaging.__file__, sys.path[-1], sep="|")
"""
"""Program of a process of its own: `sys.path` is the process's."""


def resolve(storage: Path, *wheels: Path) -> Resolution:
    """Note that the packages of a job are these wheels."""
    folder = packages_folder(storage) / WHEELS
    folder.mkdir(parents=True)
    found = []
    for wheel in wheels:
        name, number, *_ = wheel.name.split("-")
        wheel.rename(folder / wheel.name)
        sha256 = sha256_of(folder / wheel.name)
        found.append(Wheel(name=name.replace("_", "-"), version=number, sha256=sha256))
    resolution = Resolution(wheels=tuple(found))
    write_resolution(packages_folder(storage), resolution)
    return resolution


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return tmp_path / "job"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    made.mkdir()
    return made


@pytest.fixture
def alpha(tmp_path: Path, storage: Path) -> Resolution:
    """The packages of a job that has one."""
    return resolve(storage, make_wheel(tmp_path, "acc-alpha"))


@pytest.fixture
def ensure(storage: Path, root: Path) -> Callable[..., Path]:
    def call(resolution: Resolution, check: Callable[[], None] = lambda: None) -> Path:
        wheels = packages_folder(storage) / WHEELS
        return ensure_environment(resolution, wheels, root=root, raise_if_stopped=check)

    return call


def files_below(folder: Path) -> set[str]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(folder)) for path in found}


def test_wheels_are_installed_without_an_index(
    ensure: Callable[..., Path], alpha: Resolution, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Variables of the job and files of the node change nothing.
    monkeypatch.setenv("PIP_NO_DEPS", "no sense")
    monkeypatch.setenv("PIP_INDEX_URL", "https://nobody.invalid")
    folder = ensure(alpha)
    assert {"acc_alpha/__init__.py", "acc_alpha-1.0.dist-info/RECORD"} <= files_below(folder)
    assert {path.suffix for path in root.iterdir()} == {"", ".lock"}


def test_a_wheel_with_another_hash_is_not_installed(
    ensure: Callable[..., Path], alpha: Resolution, storage: Path, root: Path
) -> None:
    [wheel] = (packages_folder(storage) / WHEELS).iterdir()
    make_wheel(wheel.parent, "acc-alpha", files={"acc_alpha/more.py": "import os\n"})
    with pytest.raises(PackagesError, match=r"(?s)DO NOT MATCH THE HASHES.*Expected sha256"):
        ensure(alpha)
    assert [path for path in root.iterdir() if path.suffix == ""] == []


def test_an_environment_that_is_complete_is_taken_as_it_is(
    ensure: Callable[..., Path], alpha: Resolution
) -> None:
    folder = ensure(alpha)
    (folder / "acc_alpha" / "written-later.txt").touch()
    assert ensure(alpha) == folder
    assert (folder / "acc_alpha" / "written-later.txt").exists()


@pytest.mark.parametrize("lost", ["acc_alpha/__init__.py", "acc_alpha-1.0.dist-info/RECORD"])
def test_an_environment_that_lacks_a_file_is_made_anew(
    ensure: Callable[..., Path], alpha: Resolution, lost: str
) -> None:
    folder = ensure(alpha)
    release(folder)
    (folder / lost).unlink()
    (folder / "left.txt").touch()
    assert ensure(alpha) == folder
    assert lost in files_below(folder)
    assert "left.txt" not in files_below(folder)
    assert {path.suffix for path in folder.parent.iterdir()} == {"", ".lock"}


def test_an_environment_with_a_damaged_record_is_made_anew(
    ensure: Callable[..., Path], alpha: Resolution
) -> None:
    folder = ensure(alpha)
    release(folder)
    record = folder / "acc_alpha-1.0.dist-info" / "RECORD"
    record.write_bytes(b"\xff\0")
    assert ensure(alpha) == folder
    assert b"acc_alpha/__init__.py" in record.read_bytes()


def release(folder: Path) -> None:
    """Have no process use an environment: this one uses what had its name before."""
    used = folder.rename(folder.with_name("used"))
    shutil.copytree(used, folder)
    shutil.rmtree(used)


def test_an_environment_in_use_that_lacks_a_file_stays_and_another_one_is_made(
    ensure: Callable[..., Path], alpha: Resolution
) -> None:
    used = ensure(alpha)
    (used / "acc_alpha" / "__init__.py").unlink()
    before = files_below(used)
    other = ensure(alpha)
    assert other != used
    assert "acc_alpha/__init__.py" in files_below(other)
    assert files_below(used) == before
    assert ensure(alpha) == other


def test_an_environment_that_lacks_a_file_stays_if_no_other_can_be_installed(
    ensure: Callable[..., Path], alpha: Resolution, storage: Path
) -> None:
    folder = ensure(alpha)
    release(folder)
    (folder / "acc_alpha" / "__init__.py").unlink()
    before = files_below(folder)
    [wheel] = (packages_folder(storage) / WHEELS).iterdir()
    wheel.unlink()
    with pytest.raises(PackagesError, match="pip cannot install the packages here"):
        ensure(alpha)
    assert files_below(folder) == before


def test_an_environment_that_lacks_files_after_its_installation_is_reported(
    ensure: Callable[..., Path], alpha: Resolution, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_pip = packages.run_pip

    def install_and_lose(command: str, arguments: list[str], **named: object) -> object:
        failure = run_pip(command, arguments, **named)
        target = Path(arguments[arguments.index("--target") + 1])
        (target / "acc_alpha" / "__init__.py").unlink()
        return failure

    monkeypatch.setattr(packages, "run_pip", install_and_lose)
    with pytest.raises(PackagesError, match="files that their wheels list are missing"):
        ensure(alpha)


def test_what_a_killed_process_left_half_made_is_made_anew(
    ensure: Callable[..., Path], alpha: Resolution, root: Path
) -> None:
    folder = ensure(alpha)
    folder.rename(folder.with_suffix(".new"))
    (folder.with_suffix(".new") / "left.txt").touch()
    assert "left.txt" not in files_below(ensure(alpha))
    assert {path.suffix for path in root.iterdir()} == {"", ".lock"}


def test_processes_of_a_node_install_once_and_the_others_wait(
    ensure: Callable[..., Path], alpha: Resolution, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, waits, run_pip = [], threading.Event(), packages.run_pip

    def install_while_another_waits(*arguments: object, **named: object) -> object:
        runs.append(threading.get_ident())
        assert waits.wait(60)
        return run_pip(*arguments, **named)

    def check() -> None:
        if threading.get_ident() not in runs:
            waits.set()

    monkeypatch.setattr(packages, "run_pip", install_while_another_waits)
    with ThreadPoolExecutor(2) as threads:
        folders = list(threads.map(lambda _: ensure(alpha, check), range(2)))
    assert (len(runs), len(set(folders))) == (1, 1)


def test_a_process_waits_for_another_one_only_as_long_as_it_may(
    ensure: Callable[..., Path], alpha: Resolution
) -> None:
    folder = ensure(alpha)

    def give_up() -> None:
        raise PackagesError("too long")

    with locked(folder.with_suffix(".lock")), pytest.raises(PackagesError, match="too long"):
        ensure(alpha, give_up)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock as another process does that installs or uses an environment."""
    lock = os.open(path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield
    os.close(lock)


def test_environments_that_nobody_uses_are_removed_when_one_is_installed(
    ensure: Callable[..., Path], alpha: Resolution, root: Path
) -> None:
    names = ("old", "used", "taken", "fresh", "half.new")
    old, used, taken, fresh, half = (root / name for name in names)
    for folder in (old, used, taken, fresh, half):
        folder.mkdir()
        (folder / "file").touch()
        folder.with_suffix(".lock").touch()
    long_ago = used.stat().st_mtime - 2 * UNUSED_S
    for folder in (old, used, taken, half):
        os.utime(folder, (long_ago, long_ago))
    with locked(used), locked(taken.with_suffix(".lock")):
        made = ensure(alpha)
    left = {path for path in root.iterdir() if path.is_dir()}
    assert left == {used, taken, fresh, made}


def run_install(job: Launch, temporary: Path) -> subprocess.CompletedProcess[str]:
    temporary.mkdir(exist_ok=True)
    return run_program(
        [sys.executable, "-c", INSTALL, job.model_dump_json()],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "TMPDIR": str(temporary)},
    )


def test_packages_come_after_all_others_and_hide_none(tmp_path: Path, storage: Path) -> None:
    evil = {"packaging/__init__.py": "raise ImportError('hidden')\n"}
    resolve(storage, make_wheel(tmp_path, "acc-alpha", files=evil))
    done = run_install(launch(storage, pip=("acc-alpha",)), tmp_path / "temporary")
    assert done.returncode == 0, done.stderr
    number, alpha_file, packaging_file, last = done.stdout.strip().split("|")
    assert number == "1.0"
    assert Path(alpha_file).is_relative_to(last)
    assert Path(last).is_relative_to(tmp_path / "temporary" / f"accordion-packages-{os.getuid()}")
    assert not Path(packaging_file).is_relative_to(last)


def test_a_node_with_other_packages_than_the_head_node_is_named(
    tmp_path: Path, storage: Path
) -> None:
    resolve(storage, make_wheel(tmp_path, "acc-alpha", requires=["acc-beta", "packaging<2"]))
    done = run_install(launch(storage, pip=("acc-alpha",)), tmp_path / "temporary")
    assert "acc-beta is not installed here" in done.stderr
    assert f"packaging<2 is needed, and {version('packaging')} is installed here" in done.stderr
    assert "install the same packages on both nodes, then clone the job" in done.stderr


def test_pth_files_of_packages_are_ignored(tmp_path: Path, storage: Path) -> None:
    files = {"acc.pth": "import sys; sys.path.insert(0, '/nowhere'); print('ran')\n"}
    resolve(storage, make_wheel(tmp_path, "acc-alpha", files=files))
    done = run_install(launch(storage, pip=("acc-alpha",)), tmp_path / "temporary")
    assert (done.returncode, done.stdout.startswith("1.0|")) == (0, True), done.stderr


def test_a_temporary_directory_that_cannot_be_written_is_named(
    tmp_path: Path, storage: Path
) -> None:
    resolve(storage, make_wheel(tmp_path, "acc-alpha"))
    run_install(launch(storage, pip=("acc-alpha",)), tmp_path / "temporary")
    [lock] = (tmp_path / "temporary").glob("*/*.lock")
    lock.unlink()
    # The file to lock is a folder: permissions would not hold for root.
    lock.mkdir()
    done = run_install(launch(storage, pip=("acc-alpha",)), tmp_path / "temporary")
    assert "the temporary directory of this node cannot hold the packages" in done.stderr
    assert "Is a directory" in done.stderr


@pytest.mark.parametrize("text", ["", '{"wheels": [', '{"wheels": [{}]}', "\0\0"])
def test_a_resolution_that_is_unreadable_is_none(storage: Path, text: str) -> None:
    packages_folder(storage).mkdir(parents=True)
    (packages_folder(storage) / "resolution.json").write_text(text)
    assert read_resolution(storage) is None


def test_a_folder_that_others_could_write_to_is_refused(tmp_path: Path, storage: Path) -> None:
    resolve(storage, make_wheel(tmp_path, "acc-alpha"))
    planted = tmp_path / "temporary" / f"accordion-packages-{os.getuid()}"
    planted.mkdir(parents=True)
    planted.chmod(0o777)
    done = run_install(launch(storage, pip=("acc-alpha",)), tmp_path / "temporary")
    assert f"{planted} is not a directory that only user {os.getuid()} can write to" in done.stderr


def test_a_job_without_a_resolution_says_so(tmp_path: Path, storage: Path) -> None:
    done = run_install(launch(storage, pip=("acc-alpha",)), tmp_path / "temporary")
    assert "there is no resolution of the job's packages in" in done.stderr


def test_requirements_are_followed_through_the_packages_of_the_job_only() -> None:
    here = version("packaging")
    assert find_unmet(["packaging", f"packaging=={here}"], set()) == []
    assert find_unmet(["acc-nothing; python_version < '3'"], set()) == []
    assert find_unmet(["acc-nothing"], set()) == ["acc-nothing is not installed here"]
    # pytest stands for a package of the job with requirements and extras.
    assert find_unmet(["pytest"], {"pytest"}) == []
    assert find_unmet(["pytest>1000"], set()) == [
        f"pytest>1000 is needed, and {version('pytest')} is installed here"
    ]
