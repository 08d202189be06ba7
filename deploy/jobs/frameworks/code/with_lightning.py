"""Handwritten digits with Lightning, as a job: `fit(trainer, module, loader)` in place of
`trainer.fit(module, loader)`.
"""

import torch
from digits import Net, accuracy, held_out, trained
from pytorch_lightning import LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader

from accordion_workers import session
from accordion_workers.frameworks.lightning import fit, trainer_options


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        return self.net(**batch)["loss"]

    def validation_step(self, batch: dict[str, Tensor]) -> None:
        found = accuracy(self.net(**batch)["logits"], batch["labels"])
        self.log("accuracy", found, batch_size=len(batch["labels"]))

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [6])
        return {"optimizer": optimizer, "lr_scheduler": schedule}


torch.manual_seed(0)
trainer = Trainer(
    gradient_clip_val=1.0,
    logger=False,
    enable_progress_bar=False,
    **trainer_options(),
)
loader = DataLoader(trained, batch_sampler=session.batches(len(trained)))
fit(trainer, Module(), loader, DataLoader(held_out, batch_size=128))
