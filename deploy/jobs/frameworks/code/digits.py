"""Handwritten digits, and a model of them."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset

pixels, digits = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
TRAINED = 1408
"""Images for training; the others are for the accuracy."""


class Digits(Dataset[dict[str, Tensor]]):
    def __init__(self, part: slice) -> None:
        self.images, self.labels = images[part], labels[part]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return {"inputs": self.images[number], "labels": self.labels[number]}


trained, held_out = Digits(slice(None, TRAINED)), Digits(slice(TRAINED, None))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layers(inputs)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def accuracy(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(dim=1) == labels).float().mean())
