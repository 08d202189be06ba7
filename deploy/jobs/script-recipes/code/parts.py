"""A batch that does not fit into memory at once: the gradients of its parts add up, and are
exchanged with the last one.
"""

from contextlib import nullcontext

import torch
from pictures import accuracy, trained
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from accordion_workers import session

PART = 10

session.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(trained, batch_sampler=session.batches(len(trained)))
session.attach(model, optimizer)

for _epoch in session.epochs(10):
    for batch in loader:
        optimizer.zero_grad()
        parts = list(zip(*(one.split(PART) for one in batch), strict=True))
        for number, (inputs, wanted) in enumerate(parts, start=1):
            share = len(inputs) / len(batch[0])
            with nullcontext() if number == len(parts) else model.no_sync():
                session.backward(nn.functional.cross_entropy(model(inputs), wanted) * share)
        session.step()
    session.end_epoch(accuracy=accuracy(model.module))
