"""Handwritten digits, sharded by FSDP2, with checkpoints that any grid of workers resumes:
torchrun --nproc-per-node 4 train_with_fsdp2.py --checkpoint FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Optimizer

from accordion import (
    Config,
    DetectorConfig,
    Session,
    Window,
    attach,
    distributed_state,
    load_distributed_state,
)

pixels, digits = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
TRAINED, BATCH, LR = 1408, 64, 3e-3


def save(folder: Path, model: nn.Module, optimizer: Optimizer, session: Session) -> None:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    states = {"model": model_state, "optimizer": optimizer_state}
    dcp.save({**states, "accordion": distributed_state(session)}, checkpoint_id=folder)


def load(folder: Path, model: nn.Module, optimizer: Optimizer, session: Session) -> None:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    load_distributed_state(session, folder)


def train(epochs: int, *, shards: int, checkpoint: Path | None) -> None:
    dist.init_process_group("gloo")
    rank, workers = dist.get_rank(), dist.get_world_size()
    if workers % shards:
        raise SystemExit(f"{workers} workers are no replicas of {shards}; start a multiple")
    mesh = init_device_mesh("cpu", (workers // shards, shards), mesh_dim_names=("replica", "shard"))
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(2)]
    model = nn.Sequential(nn.Linear(64, 256), *blocks, nn.Linear(256, 10))
    for part in (*blocks, model):
        fully_shard(part, mesh=mesh["shard"])
    optimizer = AdamW(model.parameters(), lr=LR)
    detector = DetectorConfig(window=Window(epochs=2))
    config = Config(method="powersgd", low={"rank": 4}, high={"rank": 1}, detector=detector)
    replicas = mesh["replica"].get_group()
    session = attach(model, config, optimizer=optimizer, replicate_group=replicas)
    if checkpoint is not None and checkpoint.exists():
        load(checkpoint, model, optimizer, session)
    for epoch in range(session.epoch, epochs):
        order = torch.randperm(TRAINED, generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH):
            mine = batch[rank::workers]
            cross_entropy(model(images[mine]), labels[mine]).backward()
            session.step()
            optimizer.zero_grad()
        session.end_epoch(lr=LR, next_lr=LR)
        if checkpoint is not None:
            save(checkpoint, model, optimizer, session)
    with torch.no_grad():
        right = (model(images[TRAINED:]).argmax(1) == labels[TRAINED:]).float().mean()
    if rank == 0:
        total = session.ledger.total
        print(f"accuracy {float(right):.6f}, sent {total.wire:,} bytes, dense {total.dense_wire:,}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--shards", type=int, default=2, help="workers that hold one model")
    parser.add_argument("--checkpoint", type=Path, help="folder to resume from, and to save to")
    chosen = parser.parse_args()
    train(chosen.epochs, shards=chosen.shards, checkpoint=chosen.checkpoint)
