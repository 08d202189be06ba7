"""One of three processes, each alone in its namespace: trains a few steps and prints the time in
which each rank received a message.

Uncompressed gradients of 8 MB pay for the messages.

usage: slow_link_worker.py RANK ADDRESS
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from accordion.config import Config
from accordion.session.session import attach

WORLD_SIZE = 3


def main(rank: int, address: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=WORLD_SIZE)
    ddp = DistributedDataParallel(torch.nn.Linear(1024, 1024))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    session = attach(ddp, Config(method="none"), optimizer=optimizer)
    for _ in range(2):
        ddp(torch.ones(4, 1024)).square().mean().backward()
        session.step()
        ddp.zero_grad()
    session.end_epoch(lr=0.1, next_lr=0.1)
    print(json.dumps(session.receive_s_by_rank), flush=True)
    dist.barrier()


main(int(sys.argv[1]), sys.argv[2])
