"""Handwritten digits with Accelerate: torchrun --nproc-per-node 2 train_with_accelerate.py"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from accordion import Config, DetectorConfig, Session, Window
from accordion.integrations.accelerate import attach_accelerator

pixels, digits = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
TRAINED = 1408
"""Images for training; the others are for the accuracy."""


def train(
    folder: Path, *, epochs: int = 8, resume: bool = False, compress: bool = True
) -> tuple[nn.Module, Session | None]:
    sampling = DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, dataloader_config=sampling)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [6])
    data = DataLoader(
        TensorDataset(images[:TRAINED], labels[:TRAINED]), batch_size=16, shuffle=True
    )
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    accelerator.register_for_checkpointing(schedule)
    session = None
    if compress:
        config = Config(method="powersgd", detector=DetectorConfig(window=Window(steps=44)))
        session = attach_accelerator(accelerator, config, model=model, optimizer=optimizer)
    if resume:
        accelerator.load_state(str(folder))

    for epoch in range(schedule.last_epoch, epochs):
        data.set_epoch(epoch)
        for inputs, wanted in data:
            with accelerator.accumulate(model):
                accelerator.backward(cross_entropy(model(inputs), wanted))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        schedule.step()
        accelerator.save_state(str(folder))
    return accelerator.unwrap_model(model), session


def accuracy_of(model: nn.Module) -> float:
    with torch.no_grad():
        return float((model(images[TRAINED:]).argmax(dim=1) == labels[TRAINED:]).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    model, session = train(options.folder, epochs=options.epochs, resume=options.resume)
    if session.rank == 0:
        total = session.ledger.total
        print(
            f"accuracy {accuracy_of(model):.3f}, sent {total.wire:,} bytes, dense"
            f" {total.dense_wire:,}"
        )


if __name__ == "__main__":
    main()
