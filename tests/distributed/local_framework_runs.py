"""Local steps in frameworks, several runs in one pair of processes: `local_framework_runs.py NAME
FOLDER`.

Rank 0 prints what the runs gave as one JSON line behind an `@`. A run has two epochs of eight steps
of the optimizer, with accumulation over two batches and clipping; rounds have three steps.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from accordion import Config, DetectorConfig, Session, Window, attach
from accordion.base.errors import HookError
from accordion.base.local_steps import LocalSteps

EPOCHS, EPOCH_STEPS, PIECES, RATE = 2, 8, 2, 0.1
START, LENGTH = 2, 3
CONFIG = Config(
    method="half",
    local_steps=LocalSteps(low=LENGTH, high=LENGTH, start_steps=START),
    detector=DetectorConfig(window=Window(steps=5)),
)


def draw_samples() -> list[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(7)
    count = EPOCH_STEPS * PIECES * 2 * 2  # two workers, two samples in a batch
    inputs, labels = torch.randn(count, 6, generator=draw), torch.randn(count, 3, generator=draw)
    return [{"inputs": one, "labels": label} for one, label in zip(inputs, labels, strict=True)]


class Net(nn.Module):
    """A model that remembers the parameters of each forward pass, and the batches of training."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.batches: list[tuple[Tensor, Tensor]] = []
        self.trained: list[Tensor] = []
        self.evaluated: list[Tensor] = []

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        seen = self.trained if self.training else self.evaluated
        seen.append(flat(self.layers.state_dict()))
        if self.training:
            self.batches.append((inputs.clone(), labels.clone()))
        outputs = self.layers(inputs)
        return {"loss": nn.functional.mse_loss(outputs, labels), "logits": outputs}


@dataclass
class Run:
    """What a run of a framework gave."""

    model: Net
    session: Session
    ends: set[int] = field(default_factory=set)
    """Steps after which the framework has to have ended a round early."""
    saved: dict[int, Tensor] = field(default_factory=dict)
    """Parameters in the checkpoints, by step."""
    told: str = ""


def flat(state: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for _, value in sorted(state.items())])


def run_accelerate(folder: Path, *, resume: bool = False) -> Run:
    """Save within a round; evaluate in another one, which only the script can end."""
    from accelerate import Accelerator
    from safetensors.torch import load_file

    from accordion.integrations.accelerate import attach_accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=PIECES)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    data = DataLoader(draw_samples(), batch_size=2)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    session = attach_accelerator(accelerator, CONFIG, model=model, optimizer=optimizer)
    run = Run(accelerator.unwrap_model(model), session, ends={6, 13, 16})
    if resume:
        accelerator.load_state(str(folder / "6"))
    for _ in range(session.steps // EPOCH_STEPS, EPOCHS):
        done = session.steps % EPOCH_STEPS
        rest = accelerator.skip_first_batches(data, PIECES * done) if done else data
        for batch in rest:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            if session.steps == 6:
                accelerator.save_state(str(folder / "6"))
                accelerator.wait_for_everyone()
                run.saved[6] = flat(load_file(folder / "6" / "model.safetensors"))
            if session.steps == 13:
                run.told = evaluate(model, session, batch)
    session.finish_round()
    return run


def evaluate(model: nn.Module, session: Session, batch: dict[str, Tensor]) -> str:
    """Evaluate within a round and after it; return what the first was told."""
    told = ""
    model.eval()
    with torch.no_grad():
        try:
            model(**batch)
        except HookError as error:
            told = str(error)
        session.finish_round()
        model(**batch)
    model.train()
    return told


def run_transformers(folder: Path, *, resume: bool = False) -> Run:
    """Evaluate and save within rounds, also where another callback asks for it."""
    from safetensors.torch import load_file
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from accordion.integrations.transformers import AccordionCallback

    class EvaluateAtTen(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_evaluate |= state.global_step == 10

    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=PIECES,
        max_grad_norm=1.0,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        optim="sgd",
        save_strategy="steps",
        save_steps=6,
        eval_strategy="steps",
        eval_steps=7,
        train_sampling_strategy="sequential",
        ddp_find_unused_parameters=False,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    samples = draw_samples()
    model = Net()
    trainer = Trainer(model=model, args=arguments, train_dataset=samples, eval_dataset=samples[:8])
    callback = AccordionCallback(trainer, CONFIG)
    trainer.add_callback(callback)
    trainer.add_callback(EvaluateAtTen())
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-6") if resume else None)
    run = Run(model, callback.session, ends={6, 7, 8, 10, 12, 14, 16})
    for step in (6, 12):
        run.saved[step] = flat(load_file(folder / f"checkpoint-{step}" / "model.safetensors"))
    return run


def run_lightning(folder: Path, *, resume: bool = False) -> Run:
    """Validate and save within rounds, and resume at the end of an epoch."""
    from pytorch_lightning import LightningModule, Trainer
    from pytorch_lightning.callbacks import ModelCheckpoint

    from accordion.integrations.lightning import AccordionCallback

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: dict[str, Tensor]) -> Tensor:
            return self.net(**batch)["loss"]

        def validation_step(self, batch: dict[str, Tensor]) -> None:
            self.net(**batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=RATE)

    names = {"filename": "{step}", "auto_insert_metric_name": False, "save_top_k": -1}
    within = ModelCheckpoint(dirpath=folder / "within", every_n_train_steps=7, **names)
    by_epoch = ModelCheckpoint(dirpath=folder, save_on_train_epoch_end=True, **names)
    callback = AccordionCallback(CONFIG)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=EPOCHS,
        accumulate_grad_batches=PIECES,
        gradient_clip_val=1.0,
        val_check_interval=12,  # batches, of which two are a step
        num_sanity_val_steps=0,
        callbacks=[callback, within, by_epoch],
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    samples, module = draw_samples(), Module()
    data = DataLoader(samples, batch_size=2), DataLoader(samples[:8], batch_size=2)
    trainer.fit(module, *data, ckpt_path=str(folder / "8.ckpt") if resume else None)
    run = Run(module.net, callback.session, ends={6, 7, 8, 14, 16})
    for step, file in ((7, "within/7"), (14, "within/14"), (8, "8")):
        saved = torch.load(folder / f"{file}.ckpt", weights_only=True)
        run.saved[step] = flat(saved["state_dict"])
    return run


def replay(run: Run) -> tuple[Tensor, int]:
    """Return the parameters and wire bytes of a plain loop on the batches of a run."""
    ddp = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=RATE)
    session = attach(ddp, CONFIG, optimizer)
    for number, (inputs, labels) in enumerate(list(run.model.batches), start=1):
        ddp.require_backward_grad_sync = number % PIECES == 0
        (ddp(inputs, labels)["loss"] / PIECES).backward()
        if number % PIECES:
            continue
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        session.step()
        optimizer.zero_grad()
        if session.steps in run.ends:
            session.finish_round()
    return flat(ddp.module.state_dict()), session.ledger.gradient_wire


def equal_on_workers(values: list[Tensor]) -> list[bool]:
    """Return which of some tensors both workers have equal."""
    mine = torch.stack(values)
    others = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(others, mine)
    return [torch.equal(*pair) for pair in zip(*others, strict=True)]


def compare(run: Callable[..., Run], folder: Path) -> dict[str, Any]:
    whole, resumed = run(folder), run(folder, resume=True)
    parameters, sent = replay(whole)
    end, steps = flat(whole.model.state_dict()), whole.model.trained[::PIECES]
    found = {
        "as in a plain loop": torch.equal(end, parameters),
        "as resumed": torch.equal(end, flat(resumed.model.state_dict())),
        "saved as trained on": all(
            torch.equal(saved, steps[step]) for step, saved in whole.saved.items()
        ),
    }
    flags = torch.tensor([int(one) for one in found.values()])
    dist.all_reduce(flags, dist.ReduceOp.MIN)
    return {
        **{name: bool(flag) for name, flag in zip(found, flags, strict=True)},
        "gradient bytes": [whole.session.ledger.gradient_wire, sent],
        "equal before step": equal_on_workers(steps),
        "equal in evaluations": equal_on_workers(whole.model.evaluated),
        "equal at the end": equal_on_workers([end]),
        "ends": sorted(whole.ends),
        "steps": [whole.session.steps, resumed.session.steps],
        "told": whole.told,
    }


RUNS = {
    "accelerate": run_accelerate,
    "transformers": run_transformers,
    "lightning": run_lightning,
}


def main(name: str, folder: Path) -> None:
    found = compare(RUNS[name], folder)
    if dist.get_rank() == 0:
        print(f"@{json.dumps(found)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
