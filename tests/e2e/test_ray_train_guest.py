"""The example of a stock Ray Train script, with the lines of `accordion_ray` and without, on real
Ray.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import ray

from accordion.base.messages import Override
from accordion_workers.hub.actor_client import RayActorClient
from accordion_workers.records.contract import (
    AcksRecord,
    Cursor,
    DesiredState,
    EndRecord,
    EpochRecord,
    Guest,
    Record,
    RejectedRecord,
    Started,
)
from tests.e2e.guest_driver import EPOCHS, NAME

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "deploy" / "jobs" / "ray-train-guest"
INSTALLATION = "0123456789ab"
STEPS_PER_EPOCH = 45
"""1,437 pictures for two workers, 16 a step."""
HIGH = Override(id="high", level="high", number=1)
STRANGE = Override(id="strange", level="high", layers=("conv*",), number=2)


class Run:
    """One run of an example, in a process of its own."""

    def __init__(self, address: str, script: str, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.log = folder / "log"
        command = [
            sys.executable,
            "-m",
            "tests.e2e.guest_driver",
            address,
            str(EXAMPLE / script),
            str(folder),
        ]
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file)

    def shut(self, epoch: int) -> None:
        (self.folder / f"shut-{epoch}").touch()

    def open(self, epoch: int) -> None:
        (self.folder / f"open-{epoch}").touch()

    def has_reached(self, epoch: int) -> bool:
        return all((self.folder / f"reached-{epoch}-{rank}").exists() for rank in range(2))

    def kill(self, rank: int) -> None:
        os.kill(int((self.folder / f"pid-{rank}").read_text()), signal.SIGKILL)

    def accuracy(self) -> float:
        return json.loads((self.folder / "metrics").read_text())["accuracy"]

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait for a condition; the limit only ends a test that failed."""
        deadline = time.monotonic() + 480
        while not (found := condition()):
            is_over = self.process.poll() is not None and not condition()
            if is_over or time.monotonic() > deadline:
                pytest.fail(f"{what}: it did not come\n{self.log.read_text()[-6000:]}")
            time.sleep(0.05)
        return found

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)


class Service:
    """What the scheduler does: lists guests, drains their records, gives orders."""

    def __init__(self) -> None:
        self._ask = RayActorClient(INSTALLATION)
        self._known = {guest.job_id for guest in self.call("guests")}
        """Guests of earlier tests on the same cluster."""

    def call(self, method: str, *arguments: Any) -> Any:
        return self._ask(method, *arguments, timeout_s=30.0)

    def guest(self) -> Guest | None:
        guests = self.call("guests")
        return next((guest for guest in guests if guest.job_id not in self._known), None)

    def records(self, guest: Guest) -> list[Record]:
        return list(self.call("drain", guest.job_id, Cursor()).records)

    def payloads(self, guest: Guest, kind: type, *, generation: int | None = None) -> list[Any]:
        records = self.records(guest)
        return [
            record.payload
            for record in records
            if isinstance(record.payload, kind) and generation in (None, record.generation)
        ]


@pytest.fixture
def cluster(ray_cluster: str) -> Iterator[str]:
    ray.init(address=ray_cluster, log_to_driver=False, ignore_reinit_error=True)
    yield ray_cluster
    ray.shutdown()


def test_two_lines_compress_a_stock_run_and_show_it_to_the_service(
    cluster: str, tmp_path: Path
) -> None:
    service = Service()
    with ExitStack() as stack:
        run = stack.enter_context(closing(Run(cluster, "train_compressed.py", tmp_path / "guest")))
        run.shut(2)
        run.shut(4)
        guest = run.wait(service.guest, "the guest run registers")
        # Ray Train gives up a group of workers that takes more than a minute to start, so the two
        # runs do not start together.
        plain = stack.enter_context(closing(Run(cluster, "train.py", tmp_path / "plain")))
        assert (guest.name, guest.generation, guest.spec.workers.max) == (NAME, 1, 2)
        run.wait(lambda: run.has_reached(2), "epoch 2 ends")

        # people override every layer in mid-run; a layer that is not there is rejected
        service.call("order", guest.job_id, DesiredState(version=1, overrides=(HIGH, STRANGE)))
        rejected = run.wait(lambda: service.payloads(guest, RejectedRecord), "the rejection")
        assert [one.override_id for one in rejected] == ["strange"]
        run.open(2)
        acks = run.wait(lambda: _acks_of(service, guest, 1), "both ranks acknowledge")
        assert [ack.rank for ack in acks.acks] == [0, 1]
        assert {ack.digest for ack in acks.acks} == {acks.digest}

        # Ray Train restarts the run when a worker dies, and state and overrides go on
        run.wait(lambda: run.has_reached(4), "epoch 4 ends")
        run.kill(1)
        run.open(4)
        started = run.wait(
            lambda: service.payloads(guest, Started, generation=2), "the second group"
        )[0]
        assert started.cause == "recovery"
        # the death may come before Ray Train has taken the newest checkpoint over
        assert (started.epoch, started.step) in [
            (epoch, epoch * STEPS_PER_EPOCH) for epoch in (3, 4)
        ]
        assert started.resumed_from is not None
        run.wait(lambda: _acks_of(service, guest, 2), "the second group's acknowledgements")

        end = run.wait(lambda: service.payloads(guest, EndRecord), "the end")[0]
        assert end.status == "SUCCEEDED"
        assert run.process.wait(60) == 0
        plain.process.wait(480)
        _check_epochs(service, guest)
        # accuracy moves by up to 5 points from one epoch to the next, in either run
        assert run.accuracy() == pytest.approx(plain.accuracy(), abs=0.06)


def _acks_of(service: Service, guest: Guest, generation: int) -> AcksRecord | None:
    acks = service.payloads(guest, AcksRecord, generation=generation)
    return next((one for one in acks if one.override_ids == ("high",)), None)


def _check_epochs(service: Service, guest: Guest) -> None:
    """Every epoch is recorded with the script's own metrics, and few of its bytes were sent."""
    epochs = {one.epoch: one for one in service.payloads(guest, EpochRecord)}
    assert sorted(epochs) == list(range(EPOCHS))
    last = epochs[EPOCHS - 1]
    assert last.metrics["accuracy"] > 0.85
    assert last.loss == last.metrics["loss"]
    assert set(last.level_by_layer.values()) == {"high"}
    sent, dense = (
        sum(getattr(one.bytes, kind) for one in epochs.values()) for kind in ("payload", "dense")
    )
    assert sent < dense / 4
