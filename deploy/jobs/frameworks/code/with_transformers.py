"""Handwritten digits with Transformers' Trainer, as a job: `train(trainer)` in place of
`trainer.train()`.
"""

import torch
from digits import Net, accuracy, held_out, trained
from transformers import EvalPrediction, Trainer, TrainingArguments

from accordion_workers.frameworks.transformers import train


def measure(found: EvalPrediction) -> dict[str, float]:
    return {"accuracy": accuracy(torch.tensor(found.predictions), torch.tensor(found.label_ids))}


torch.manual_seed(0)
arguments = TrainingArguments(
    output_dir="checkpoints",
    learning_rate=1e-2,
    lr_scheduler_type="cosine",
    max_grad_norm=1.0,
    eval_strategy="epoch",
    report_to="none",
    disable_tqdm=True,
    use_cpu=not torch.cuda.is_available(),
)
trainer = Trainer(
    model=Net(),
    args=arguments,
    train_dataset=trained,
    eval_dataset=held_out,
    compute_metrics=measure,
)
train(trainer)
