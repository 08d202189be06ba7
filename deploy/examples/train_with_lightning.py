"""Handwritten digits with Lightning: torchrun --nproc-per-node 2 train_with_lightning.py"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from accordion import Config, DetectorConfig, Session, Window
from accordion.integrations.lightning import AccordionCallback

pixels, digits = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
TRAINED = 1408
"""Images for training; the others are for the accuracy."""


class Digits(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))

    def training_step(self, batch: list[Tensor]) -> Tensor:
        inputs, wanted = batch
        return cross_entropy(self.layers(inputs), wanted)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": torch.optim.lr_scheduler.MultiStepLR(optimizer, [6]),
        }


def train(
    folder: Path,
    *,
    epochs: int = 8,
    resume: bool = False,
    compress: bool = True,
    processes: int = 2,
) -> tuple[nn.Module, Session | None]:
    checkpoints = ModelCheckpoint(dirpath=folder, save_last=True, save_top_k=0)
    config = Config(method="powersgd", detector=DetectorConfig(window=Window(epochs=2)))
    accordion = AccordionCallback(config)
    trainer = Trainer(
        accelerator="cpu",
        devices=processes,
        strategy="ddp" if processes > 1 else "auto",
        max_epochs=epochs,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        callbacks=[checkpoints, accordion] if compress else [checkpoints],
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    torch.manual_seed(0)
    data = DataLoader(
        TensorDataset(images[:TRAINED], labels[:TRAINED]), batch_size=16, shuffle=True
    )
    model = Digits()
    trainer.fit(model, data, ckpt_path=str(folder / "last.ckpt") if resume else None)
    return model, accordion.session


def accuracy_of(model: nn.Module) -> float:
    with torch.no_grad():
        found = model.layers(images[TRAINED:]).argmax(dim=1)
    return float((found == labels[TRAINED:]).float().mean())


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
