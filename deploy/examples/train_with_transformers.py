"""Handwritten digits with Transformers' Trainer: torchrun --nproc-per-node 2
train_with_transformers.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainingArguments

from accordion import Config, DetectorConfig, Session, Window
from accordion.integrations.transformers import AccordionCallback

pixels, digits = load_digits(return_X_y=True)
images, targets = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
TRAINED = 1408
"""Images for training; the others are for the accuracy."""


class Digits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layers(inputs)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


def train(
    folder: Path, *, epochs: int = 8, resume: bool = False, compress: bool = True
) -> tuple[nn.Module, Session | None]:
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        max_grad_norm=1.0,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        save_strategy="epoch",
        save_total_limit=2,
        logging_steps=22,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    torch.manual_seed(0)
    data = [
        {"inputs": image, "labels": target}
        for image, target in zip(images[:TRAINED], targets, strict=False)
    ]
    trainer = Trainer(model=Digits(), args=arguments, train_dataset=data)
    session = None
    if compress:
        config = Config(method="powersgd", detector=DetectorConfig(window=Window(epochs=2)))
        callback = AccordionCallback(trainer, config)
        trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=resume)
    return trainer.model, callback.session if compress else session


def accuracy_of(model: nn.Module) -> float:
    with torch.no_grad():
        found = model.layers(images[TRAINED:]).argmax(dim=1)
    return float((found == targets[TRAINED:]).float().mean())


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
