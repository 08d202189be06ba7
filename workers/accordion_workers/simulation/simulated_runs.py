"""Folders of simulated runs, one for each seed: what runs there, and what it recorded; loads no
torch.

    FOLDER/seed-0/run.json       name, spec, workers and status
    FOLDER/seed-0/records/       the records of a job
    FOLDER/seed-0/checkpoints/
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from accordion_workers.hub.journal import read_records
from accordion_workers.records.contract import EpochRecord, Record

_FILE = "run.json"


class SimulatedStatus(StrEnum):
    """How a simulated run ended."""

    STOPPED = "STOPPED"
    """It goes on where it was when it is started again."""
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


class RunError(ValueError):
    """A folder does not fit what is to run in it, or is in use; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """A simulation with one seed."""

    name: str
    spec: Mapping[str, Any]
    workers: int
    seed: int
    status: SimulatedStatus = SimulatedStatus.STOPPED
    message: str = ""
    """Why it failed."""

    def place_in(self, folder: Path) -> Path:
        """Return the folder of this run, in that of all seeds."""
        return folder / f"seed-{self.seed}"

    def write(self, folder: Path) -> None:
        """Write it into its folder, which exists.

        Raises:
            OSError: the folder cannot be written.
        """
        draft = folder / f"{_FILE}.draft"
        draft.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        draft.replace(folder / _FILE)


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Keep other commands from running in a folder, which is created.

    Raises:
        RunError: another command runs there.
        OSError: the folder cannot be created.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def claim_runs(folder: Path, wanted: Sequence[SimulatedRun]) -> dict[Path, SimulatedRun]:
    """Return the runs of some seeds in a folder, by place; wanted ones that are missing are
    written.

    Raises:
        RunError: the folder has a run, of any seed, with another spec or number of workers; nothing
            is written.
        OSError: it cannot be read or written.
    """
    found = dict(list_runs(folder))
    for place, run in found.items():
        _check_alike(place, run, wanted[0])
    claimed = {}
    for one in wanted:
        place = one.place_in(folder)
        if place not in found:
            one.write(place)
        claimed[place] = found.get(place, one)
    return claimed


def read_run(folder: Path) -> SimulatedRun | None:
    """Return the run in a folder; None if there is none.

    Raises:
        RunError: what is there is damaged.
    """
    file = folder / _FILE
    if not file.is_file():
        return None
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        run = SimulatedRun(**{**fields, "status": SimulatedStatus(fields["status"])})
        _check_types(run)
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{file} is damaged ({error}); remove its folder") from error
    return run


def list_runs(folder: Path) -> list[tuple[Path, SimulatedRun]]:
    """Return the run in a folder, or those in the folders of its seeds.

    Raises:
        RunError: one is damaged.
    """
    places = [folder, *sorted(folder.glob("seed-*"), key=_read_seed)]
    found = ((place, read_run(place)) for place in places)
    return [(place, run) for place, run in found if run is not None]


def end_run(
    folder: Path, run: SimulatedRun, status: SimulatedStatus, *, message: str = ""
) -> SimulatedRun:
    """Write how a run ended; return it so.

    Raises:
        OSError: the folder cannot be written.
    """
    ended = replace(run, status=status, message=message)
    ended.write(folder)
    return ended


def read_history(folder: Path) -> list[Record]:
    """Return all records of a run, in order."""
    return read_records(folder)


def read_epochs(folder: Path) -> list[EpochRecord]:
    """Return the finished epochs of a run; of one that was trained again, the last record."""
    payloads = (record.payload for record in read_records(folder))
    by_epoch = {one.epoch: one for one in payloads if isinstance(one, EpochRecord)}
    return [by_epoch[epoch] for epoch in sorted(by_epoch)]


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunError(
            f"another command runs the simulation in {folder}; wait for its end, or give --out"
            " another folder"
        ) from None


def _check_types(run: SimulatedRun) -> None:
    """Check the types of a run's fields.

    Raises:
        TypeError: one has another type.
    """
    types = {"name": str, "spec": dict, "workers": int, "seed": int, "message": str}
    for name, expected in types.items():
        value = getattr(run, name)
        if type(value) is not expected:
            raise TypeError(f"{name} is {value!r}")


def _check_alike(folder: Path, found: SimulatedRun, wanted: SimulatedRun) -> None:
    """Check that two runs differ in nothing but their seeds.

    Raises:
        RunError: they do.
    """
    for place, prefix in (("workers", "workers"), ("spec", "")):
        before, now = (_without_seed(asdict(run))[place] for run in (found, wanted))
        if before != now and (different := _list_differences(before, now, prefix)):
            raise RunError(
                f"{folder} has a simulation with another {different}; give --out another folder, or"
                " remove this one"
            )


def _without_seed(run: Mapping[str, Any]) -> dict[str, Any]:
    training = run["spec"].get("training")
    if not isinstance(training, Mapping):
        return dict(run)
    kept = {name: value for name, value in training.items() if name != "seed"}
    return {**run, "spec": {**run["spec"], "training": kept}}


def _list_differences(found: Any, wanted: Any, prefix: str = "") -> str:
    """Return the first few values that differ, such as `training.epochs (3, now 5)`; null is as
    good as none.
    """
    if not (isinstance(found, Mapping) and isinstance(wanted, Mapping)):
        return f"{prefix.rstrip('.')} ({json.dumps(found)}, now {json.dumps(wanted)})"
    places = [key for key in {**found, **wanted} if found.get(key) != wanted.get(key)]
    parts = (
        _list_differences(found.get(key), wanted.get(key), f"{prefix}{key}.") for key in places
    )
    return ", ".join(list(filter(None, parts))[:3])


def _read_seed(folder: Path) -> tuple[int, str]:
    number = folder.name.removeprefix("seed-")
    return (int(number) if number.isdecimal() else 0, number)
