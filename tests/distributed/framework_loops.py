"""Loops of other frameworks for jobs, which train as a loop of one's own, `OWN`, does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.distributed.code_jobs import run_own_script
from tests.distributed.test_own_code import order_of

DATA = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from accordion_workers import session

class Rows(torch.utils.data.Dataset):
    inputs = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
    def __len__(self):
        return len(self.inputs)
    def __getitem__(self, row):
        return {"inputs": self.inputs[row], "labels": self.inputs[row].tanh()}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 8))
    def forward(self, inputs, labels=None):
        outputs = self.layers(inputs)
        loss = None if labels is None else nn.functional.mse_loss(outputs, labels)
        return {"loss": loss, "outputs": outputs}

def tell_end(model, *more):
    print("end", float(sum(one.double().sum() for one in model.parameters())), *more)
"""
OWN = (
    DATA
    + """
from torch.nn.parallel import DistributedDataParallel
loader = DataLoader(Rows(), batch_sampler=session.batches(100))
model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=12)
session.attach(model, optimizer, scheduler=scheduler)
for epoch in session.epochs(99):
    for batch in loader:
        BODY
        session.backward(model(**batch)["loss"])
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        session.step()
        scheduler.step()
        optimizer.zero_grad()
tell_end(model)
"""
)
ACCELERATE = (
    DATA
    + """
from accelerate import Accelerator
from accordion_workers.frameworks.accelerate import attach_accelerator
accelerator = Accelerator(cpu=True)
loader = DataLoader(Rows(), batch_sampler=session.batches(100))
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=12)
model, optimizer = accelerator.prepare(model, optimizer)
attach_accelerator(accelerator, model, optimizer, scheduler=scheduler)
for epoch in session.epochs(99):
    for batch in loader:
        BODY
        optimizer.zero_grad()
        accelerator.backward(model(**batch)["loss"])
        accelerator.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        scheduler.step()
tell_end(model)
"""
)
TRAINER = (
    DATA
    + """
from transformers import Trainer, TrainerCallback, TrainingArguments
from accordion_workers.frameworks.transformers import train
class Body(TrainerCallback):
    def on_step_begin(self, *_, **__):
        BODY
arguments = TrainingArguments(
    output_dir="out", optim="sgd", learning_rate=0.1, lr_scheduler_type="linear",
    max_grad_norm=0.05, report_to="none", disable_tqdm=True, use_cpu=True, MORE
)
trainer = Trainer(model=Net(), args=arguments, train_dataset=Rows(), eval_dataset=Rows())
trainer.add_callback(Body())
train(trainer)
tell_end(trainer.model)
"""
)
LIGHTNING = (
    DATA
    + """
import pytorch_lightning as lightning
from accordion_workers.frameworks.lightning import fit, trainer_options
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()
    def training_step(self, batch, number):
        BODY
        return self.net(**batch)["loss"]
    def validation_step(self, batch, number):
        self.log("held_out", self.net(**batch)["loss"], sync_dist=True)
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=12)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]
trainer = lightning.Trainer(
    max_epochs=99, gradient_clip_val=0.05, logger=False, enable_progress_bar=False,
    enable_model_summary=False, num_sanity_val_steps=0, MORE **trainer_options(),
)
module = Module()
fit(trainer, module, DataLoader(Rows(), batch_sampler=session.batches(100)), DataLoader(Rows()))
tell_end(module)
"""
)
LOOPS = {"accelerate": ACCELERATE, "transformers": TRAINER, "lightning": LIGHTNING}
STEPS = "session.state.session.steps"


def stop_in(step: int, signal: str) -> str:
    return (
        "from accordion.compress.step_signals import Signal\n"
        f"        if {STEPS} == {step}: session.state.session.request(Signal.{signal})"
    )


def run_job(
    run_group: Any,
    folder: Path,
    source: str,
    *,
    body: str = "pass",
    more: str = "",
    workers: int = 2,
    generation: int = 1,
    **changes: Any,
) -> Any:
    """Result of rank 0 of a group."""
    text = source.replace("BODY", body).replace("MORE", more)
    order = order_of(folder, {"train.py": text}, **changes)
    return run_group(workers, run_own_script, order, None, generation)[0]


def end_of(*args: Any, **kwargs: Any) -> tuple[str, str]:
    result = run_job(*args, **kwargs)
    return result.outcome, result.said.partition("end ")[2]


def training_of(micro_batch: int) -> dict[str, int]:
    return {"epochs": 3, "global_batch": 32, "micro_batch": micro_batch}


def changed(source: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert source.count(old) == 1
        source = source.replace(old, new)
    return source
