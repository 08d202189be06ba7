"""Handwritten digits on several processes: torchrun --nproc-per-node 2 FILE"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import MultiStepLR
from torch.utils.data import DataLoader, TensorDataset

from accordion_workers import session


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=128)
    options = parser.parse_args()
    session.init_process_group("gloo")

    pixels, labels = load_digits(return_X_y=True)
    images, targets = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    train = TensorDataset(images[:1437], targets[:1437])
    loader = DataLoader(train, batch_sampler=session.batches(len(train)))

    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, options.hidden), nn.ReLU(), nn.Linear(options.hidden, 10))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = MultiStepLR(optimizer, milestones=[6, 8], gamma=0.1)
    session.attach(model, optimizer, scheduler=scheduler)

    for epoch in session.epochs(options.epochs):
        for inputs, wanted in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), wanted)
            session.backward(loss)
            session.step()
        scheduler.step()
        with torch.no_grad():
            accuracy = (model.module(images[1437:]).argmax(dim=1) == targets[1437:]).float().mean()
        session.end_epoch(accuracy=accuracy)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
