"""LoRA: a model that stays as it is, with small trained additions; only theirs are exchanged."""

import torch
from pictures import accuracy, trained
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from accordion_workers import session


class Adapted(nn.Module):
    """A linear layer with an addition of low rank, which begins at zero."""

    def __init__(self, layer: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(requires_grad=False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs) + self.up(self.down(inputs))


session.init_process_group("gloo")
torch.manual_seed(0)
given = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
model = DistributedDataParallel(nn.Sequential(Adapted(given[0]), nn.ReLU(), Adapted(given[2])))
changed = [one for one in model.parameters() if one.requires_grad]
optimizer = torch.optim.AdamW(changed, lr=1e-2)
loader = DataLoader(trained, batch_sampler=session.batches(len(trained)))
session.attach(model, optimizer)

for _epoch in session.epochs(10):
    for inputs, wanted in loader:
        optimizer.zero_grad()
        session.backward(nn.functional.cross_entropy(model(inputs), wanted))
        session.step()
    session.end_epoch(accuracy=accuracy(model.module))
