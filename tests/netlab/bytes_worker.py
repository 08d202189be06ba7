"""One of two plain processes, each alone in its namespace: trains a few steps and prints ledger and
interface bytes.

usage: bytes_worker.py RANK ADDRESS METHOD OPTIONS_JSON
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from accordion.config import Config
from accordion.session.session import Session, attach

COUNTER = Path("/sys/class/net/eth0/statistics/tx_bytes")
WIDTH = 1536
"""A layer of 9.4 MB, so that every collective of a step but the step signals is above 400 KB."""
WARM_UP_STEPS, ROUNDS, STEPS = 2, 12, 3


def interface_bytes() -> int:
    """Bytes sent so far, once the counter has come to rest."""
    last = -1
    while (now := int(COUNTER.read_text())) != last:
        last = now
        time.sleep(0.05)
    return now


def sent_and_booked(session: Session) -> tuple[int, int]:
    """Bytes on the interface and in the ledger, when every rank has received all and before any
    sends more.

    What a collective has sent may still wait in a socket for a peer that has no time to read it.
    """
    dist.barrier()
    found = interface_bytes(), session.ledger.total.wire
    dist.barrier()
    return found


def train(session: Session, ddp: DistributedDataParallel, steps: int) -> None:
    for step in range(steps):
        draw = torch.Generator().manual_seed(step)
        ddp(torch.randn(4, WIDTH, generator=draw)).square().mean().backward()
        session.step()
        ddp.zero_grad()


def main(rank: int, address: str, method: str, options: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    ddp = DistributedDataParallel(torch.nn.Linear(WIDTH, WIDTH, bias=False))
    level = json.loads(options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    session = attach(ddp, Config(method=method, low=level, high=level), optimizer=optimizer)
    train(session, ddp, WARM_UP_STEPS)
    rounds = []
    for _ in range(ROUNDS):
        sent, booked = sent_and_booked(session)
        train(session, ddp, STEPS)
        now_sent, now_booked = sent_and_booked(session)
        rounds.append({"interface": now_sent - sent, "ledger": now_booked - booked})
    print(json.dumps(rounds), flush=True)


main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4])
