"""Private temporary folders, and those that a killed process left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from accordion_service.process.temp_folders import private_folder, remove_abandoned_folders

HOLDING = """
import pathlib, sys
from accordion_service.process.temp_folders import private_folder
with private_folder("mine-", pathlib.Path(sys.argv[1])) as folder:
    print(folder, flush=True)
    sys.stdin.readline()
"""


def test_a_folder_is_its_owners_only_and_goes_at_the_end(tmp_path: Path) -> None:
    with private_folder("mine-", tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_a_living_process_stays_and_goes_when_that_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDING, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        folder = Path(holder.stdout.readline().strip())
        remove_abandoned_folders("mine-", tmp_path, now=2e9)
        assert folder.exists()
        holder.kill()
    remove_abandoned_folders("mine-", tmp_path, now=2e9)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_just_being_made_and_a_link_of_its_name_stay(tmp_path: Path) -> None:
    (tmp_path / "mine-new").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "mine-link").symlink_to(tmp_path / "other")
    remove_abandoned_folders("mine-", tmp_path, now=(tmp_path / "mine-new").stat().st_mtime + 1.0)
    assert len(list(tmp_path.iterdir())) == 3
