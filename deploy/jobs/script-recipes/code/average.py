"""An exponential average of the parameters (EMA), which is evaluated and saved with the job."""

import torch
from pictures import accuracy, trained
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from accordion_workers import session

session.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
averaged = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.98))
loader = DataLoader(trained, batch_sampler=session.batches(len(trained)))
session.attach(model, optimizer, averaged=averaged)

for _epoch in session.epochs(10):
    for inputs, wanted in loader:
        optimizer.zero_grad()
        session.backward(nn.functional.cross_entropy(model(inputs), wanted))
        session.step()
        averaged.update_parameters(model.module)
    session.end_epoch(accuracy=accuracy(averaged), accuracy_of_last=accuracy(model.module))
