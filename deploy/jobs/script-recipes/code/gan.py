"""A generator against a discriminator: one module, one backward pass, two optimizers."""

import torch
from pictures import trained
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from accordion_workers import session


class Rivals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 64), nn.Sigmoid()
        )
        self.discriminator = nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))

    def forward(self, real: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return both losses; the gradients of each reach its own part only."""
        made = self.generator(noise)
        yes, no = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        judged = binary_cross_entropy_with_logits(
            self.discriminator(real), yes
        ) + binary_cross_entropy_with_logits(self.discriminator(made.detach()), no)
        frozen = {name: one.detach() for name, one in self.discriminator.named_parameters()}
        fooled = binary_cross_entropy_with_logits(
            functional_call(self.discriminator, frozen, (made,)), yes
        )
        return judged, fooled


session.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Rivals())
optimizers = [
    torch.optim.Adam(model.module.generator.parameters(), lr=1e-3, betas=(0.5, 0.999)),
    torch.optim.Adam(model.module.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999)),
]
torch.manual_seed(session.rank)  # noise of its own for each worker
loader = DataLoader(trained, batch_sampler=session.batches(len(trained)))
session.attach(model, optimizers)

for _epoch in session.epochs(10):
    for real, _ in loader:
        for optimizer in optimizers:
            optimizer.zero_grad()
        judged, fooled = model(real, torch.randn(len(real), 16))
        session.backward(judged + fooled)
        session.step()
    session.end_epoch(judged=judged.item(), fooled=fooled.item())
