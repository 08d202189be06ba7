"""A script under torchrun that trains and ends at once, while gloo's threads get the processor only
when it waits.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from accordion import Config, attach


def make_other_threads_late() -> None:
    """One processor for all threads of this process, and for the others only what the first one
    leaves.
    """
    allowed = sorted(os.sched_getaffinity(0))
    processor = {allowed[int(os.environ["RANK"]) % len(allowed)]}
    os.sched_setaffinity(0, processor)
    for thread in (int(task.name) for task in Path("/proc/self/task").iterdir()):
        if thread != os.getpid():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, processor)
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = attach(model, Config(method=sys.argv[1]), optimizer=optimizer, global_batch=2)
    model(torch.ones(1, 64)).sum().backward()
    session.step()
    make_other_threads_late()
    model(torch.ones(1, 64)).sum().backward()
    session.step()
    if dist.get_rank() == 0:
        print("trained")


if __name__ == "__main__":
    main()
