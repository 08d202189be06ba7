"""A stock Ray Train script: a perceptron on scikit-learn's handwritten digits."""

import argparse
import tempfile
from pathlib import Path

import ray.train
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def load_data():
    digits = load_digits()
    inputs = torch.tensor(digits.data, dtype=torch.float32) / 16
    targets = torch.tensor(digits.target)
    train, test = slice(0, 1437), slice(1437, None)
    return TensorDataset(inputs[train], targets[train]), (inputs[test], targets[test])


def train(config):
    torch.manual_seed(0)
    train_data, (test_inputs, test_targets) = load_data()
    loader = prepare_data_loader(
        DataLoader(train_data, batch_size=config["batch_size"], shuffle=True)
    )
    model = nn.Sequential(
        nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )
    model = prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    first_epoch = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"] + 1

    rank = ray.train.get_context().get_world_rank()
    for epoch in range(first_epoch, config["epochs"]):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        total = 0.0
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        with torch.no_grad():
            accuracy = (model(test_inputs).argmax(1) == test_targets).float().mean().item()
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if rank == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "epoch": epoch,
                }
                torch.save(state, Path(folder) / "state.pt")
                checkpoint = Checkpoint.from_directory(folder)
            ray.train.report(
                {"loss": total / len(loader), "accuracy": accuracy}, checkpoint=checkpoint
            )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="ray-train-digits")
    parser.add_argument("--storage", help="directory or URL that all nodes can reach")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16, help="samples per step and worker")
    options = parser.parse_args()
    result = TorchTrainer(
        train,
        train_loop_config={"epochs": options.epochs, "batch_size": options.batch_size},
        scaling_config=ScalingConfig(num_workers=options.workers),
        run_config=RunConfig(
            name=options.name,
            storage_path=options.storage,
            failure_config=FailureConfig(max_failures=3),
        ),
    ).fit()
    print(result.metrics)


if __name__ == "__main__":
    main()
