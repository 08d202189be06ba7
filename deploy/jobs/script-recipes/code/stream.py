"""Data without rows by number, as from a queue or a tar file: each worker reads a part of the
stream. An epoch that is interrupted starts again.
"""

from collections.abc import Iterator

import torch
from pictures import accuracy, trained
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from accordion_workers import session


class Part(IterableDataset[tuple[Tensor, Tensor]]):
    """Every `world_size`-th sample; all workers have as many, because all take the same steps."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        even = len(trained) // session.world_size * session.world_size
        for number in range(session.rank, even, session.world_size):
            yield trained[number]


session.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(Part(), batch_size=session.global_batch // session.world_size)
session.attach(model, optimizer, samples=len(trained))

for _epoch in session.epochs(10):
    for inputs, wanted in loader:
        optimizer.zero_grad()
        session.backward(nn.functional.cross_entropy(model(inputs), wanted))
        session.step()
    session.end_epoch(accuracy=accuracy(model.module))
