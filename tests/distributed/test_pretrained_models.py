"""Models of Transformers as jobs: their checkpoints hold what `from_pretrained` reads."""

from __future__ import annotations

import json
from pathlib import Path

from accordion_workers.checkpoint.saved_model import read_model
from accordion_workers.checkpoint.storage import LocalStorage
from tests.distributed.code_jobs import run_own_script
from tests.distributed.test_own_code import order_of

SCRIPT = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from accordion_workers.frameworks.transformers import train

class Lines(torch.utils.data.Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, row):
        tokens = torch.arange(row, row + 8)
        return {"input_ids": tokens, "labels": tokens}

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, n_positions=8, vocab_size=32))
arguments = TrainingArguments(output_dir="out", report_to="none", disable_tqdm=True, use_cpu=True)
train(Trainer(model=model, args=arguments, train_dataset=Lines()))
"""


def test_a_checkpoint_keeps_what_from_pretrained_reads(run_group, tmp_path: Path) -> None:
    order = order_of(tmp_path, {"train.py": SCRIPT})
    assert {one.outcome for one in run_group(2, run_own_script, order)} == {"completed"}
    storage = LocalStorage(tmp_path / "storage" / "checkpoints")
    found = read_model(storage, sorted(storage.names(), reverse=True), job_id="job-1")
    assert json.loads(found.configs["config.json"])["architectures"] == ["GPT2LMHeadModel"]
    assert found.state["transformer.wte.weight"].shape == (32, 8)
