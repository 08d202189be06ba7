"""A transformer over characters that FSDP2 shards, in a job or by torchrun.

ACCORDION_DATA_TEXT=FILE torchrun --nproc-per-node 4 train.py
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from accordion_workers import session

SHARDS = {"parallelism": {"shard": 2}}


class Transformer(nn.Module):
    """[N, T] characters to [N, T, V] scores of the next one."""

    def __init__(self, characters: int, length: int, *, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.output = nn.Linear(width, characters)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        hidden = self.embedding(tokens) + self.places.weight[:length]
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        return self.output(hidden)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--characters", type=int, default=100_000)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    options = parser.parse_args()
    session.init_process_group(job=SHARDS)
    device = torch.device(session.device)

    text = session.data_path("text").read_text()[: options.characters]
    kinds = {character: number for number, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([kinds[one] for one in text])
    windows = tokens.unfold(0, options.length + 1, options.length)
    train = TensorDataset(windows[: len(windows) * 9 // 10])
    held_out = windows[len(train) :]
    loader = DataLoader(train, batch_sampler=session.batches(len(train)))

    torch.manual_seed(0)
    model = Transformer(len(kinds), options.length, width=options.width, layers=options.layers)
    model = model.to(device)
    for part in (*model.blocks, model):
        fully_shard(part, mesh=session.mesh["shard"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    session.attach(model, optimizer)

    def mean_loss(batch: Tensor) -> Tensor:
        batch = batch.to(device)
        return cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    for epoch in session.epochs(options.epochs):
        model.train()
        for (batch,) in loader:
            optimizer.zero_grad()
            session.backward(mean_loss(batch))
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            session.step()
        model.eval()
        with torch.no_grad():
            loss = float(mean_loss(held_out))  # on all workers: each has a part of the model
        session.end_epoch(held_out_loss=loss)
        if session.rank == 0:
            print(f"epoch {epoch}: loss {loss:.3f}")


if __name__ == "__main__":
    main()
