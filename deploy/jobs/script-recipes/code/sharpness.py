"""Sharpness-aware minimization (SAM, arXiv 2010.01412): each worker takes the gradient where its
own samples have more loss, and only that gradient is exchanged.
"""

import torch
from pictures import accuracy, trained
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from accordion_workers import session

RADIUS = 0.05

session.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(trained, batch_sampler=session.batches(len(trained)))
session.attach(model, optimizer)

for _epoch in session.epochs(10):
    for inputs, wanted in loader:
        parameters = list(model.parameters())
        loss = nn.functional.cross_entropy(model.module(inputs), wanted)
        climb = torch.autograd.grad(loss, parameters)  # nothing is exchanged, nor kept in .grad
        scale = RADIUS / (torch.nn.utils.get_total_norm(climb) + 1e-12)
        kept = [one.detach().clone() for one in parameters]
        with torch.no_grad():
            for one, direction in zip(parameters, climb, strict=True):
                one.add_(direction, alpha=scale.item())
        optimizer.zero_grad()
        session.backward(nn.functional.cross_entropy(model(inputs), wanted))
        with torch.no_grad():
            for one, before in zip(parameters, kept, strict=True):
                one.copy_(before)
        session.step()
    session.end_epoch(accuracy=accuracy(model.module))
