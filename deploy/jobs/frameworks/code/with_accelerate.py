"""Handwritten digits with Accelerate, as a job: the loop stays as it is."""

import torch
from accelerate import Accelerator
from digits import Net, accuracy, held_out, trained
from torch.utils.data import DataLoader

from accordion_workers import session
from accordion_workers.frameworks.accelerate import attach_accelerator

accelerator = Accelerator(cpu=not torch.cuda.is_available())
torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [6])
loader = DataLoader(trained, batch_sampler=session.batches(len(trained)))  # not prepared
model, optimizer = accelerator.prepare(model, optimizer)
attach_accelerator(accelerator, model, optimizer, scheduler=scheduler)

for _ in session.epochs(10):
    model.train()
    for batch in loader:
        batch = {name: value.to(accelerator.device) for name, value in batch.items()}
        optimizer.zero_grad()
        accelerator.backward(model(**batch)["loss"])
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    scheduler.step()
    model.eval()
    with torch.no_grad():
        inputs, labels = held_out.images.to(accelerator.device), held_out.labels
        logits = model(inputs, labels.to(accelerator.device))["logits"]
    found = accuracy(logits.cpu(), labels)
    session.end_epoch(accuracy=found)
