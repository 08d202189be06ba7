"""A loop that counts steps in place of epochs: it begins at the job's step."""

import torch
from pictures import accuracy, trained
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from accordion_workers import session

STEPS = 230

session.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(trained, batch_sampler=session.batches(len(trained)))
attached = session.attach(model, optimizer)

while attached.steps < STEPS:
    for inputs, wanted in loader:
        optimizer.zero_grad()
        session.backward(nn.functional.cross_entropy(model(inputs), wanted))
        session.step()
    session.end_epoch(accuracy=accuracy(model.module))
