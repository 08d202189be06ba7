"""Our driver: what the scheduler does for one job.

`python -m tests.bench.recovery_ours ADDRESS FOLDER MIN MAX ENGINE`

A line `resize N` on standard input orders another size.
"""

from __future__ import annotations

import select
import sys
import time
import uuid

from accordion_service.runtime.ray_backend import RayBackend
from accordion_workers.records.contract import Cursor, DesiredState, JobSpec, Launch, Size
from tests.bench.recovery_stage import ORDERED
from tests.bench.recovery_task import EVERY_STEPS, GLOBAL_BATCH, HIDDEN, LR, MICRO_BATCH, MOMENTUM

LOOK_S = 0.25
"""The scheduler's pace."""


def main(address: str, folder: str, *size: int, engine: str) -> None:
    """Run the job until somebody ends this process."""
    least, most = size
    backend = RayBackend(address=address)
    backend.nodes()
    job_id = uuid.uuid4().hex
    spec = JobSpec.model_validate(
        {
            "task": {
                "name": "tests.bench.recovery_task:LoggedDigits",
                "options": {"hidden": HIDDEN, "folder": folder},
            },
            "workers": {"min": least, "max": most, "engine": engine},
            "training": {
                "epochs": 100_000,
                "global_batch": GLOBAL_BATCH,
                "micro_batch": MICRO_BATCH,
                "optimizer": {"lr": LR, "momentum": MOMENTUM},
            },
            "compression": {"method": "none"},
            "checkpoint": {"every_epochs": 1000, "every_steps": EVERY_STEPS},
        }
    )
    print(f"{ORDERED}{time.time()}", flush=True)
    backend.start(
        Launch(job_id=job_id, attempt=1, workers=most, storage=f"{folder}/storage", spec=spec)
    )
    orders, cursor = DesiredState(version=1, size=Size(min=least, target=most)), Cursor()
    while backend.read_outcome(job_id, f"{folder}/storage") is None:
        if select.select([sys.stdin], [], [], LOOK_S)[0] and (line := sys.stdin.readline()):
            size = Size(min=least, target=int(line.split()[1]))
            orders = DesiredState(version=orders.version + 1, size=size)
        drained = backend.drain(job_id, cursor)
        for record in drained.records:
            cursor = Cursor(attempt=record.attempt, generation=record.generation, seq=record.seq)
            print(record.payload.model_dump_json()[:300], flush=True)
        for log in drained.logs:
            print(log.text, flush=True)
        if drained.orders_version < orders.version:
            backend.send_orders(job_id, orders)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), engine=sys.argv[5])
