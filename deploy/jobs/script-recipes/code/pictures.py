"""Handwritten digits: images to train on, and others to test with."""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

pixels, digits = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
trained = TensorDataset(images[:1437], labels[:1437])
held_out, answers = images[1437:], labels[1437:]


def accuracy(model: torch.nn.Module) -> float:
    with torch.no_grad():
        return float((model(held_out).argmax(dim=1) == answers).float().mean())
