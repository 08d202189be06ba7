"""Models of Transformers as jobs: their checkpoints hold what `from_pretrained` reads."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GPT2LMHeadModel

from accordion_client.commands.model_formats import choose_converter
from accordion_workers.checkpoint.model_export import MODEL_FILE, export_model
from accordion_workers.checkpoint.saved_model import read_model
from accordion_workers.checkpoint.storage import LocalStorage
from tests.distributed.code_jobs import launch, packed, run_own_script
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


SHARDED = """
import json, torch
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel
from accordion_workers import session

session.init_process_group("gloo")
torch.manual_seed(0)
tokens = torch.randint(32, (16, 8))
loader = DataLoader(TensorDataset(tokens), batch_sampler=session.batches(len(tokens)))
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, n_positions=8, vocab_size=32))
model.to(torch.bfloat16)
fully_shard(model, mesh=session.mesh["shard"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session.attach(model, optimizer)
for _epoch in session.epochs(2):
    for (rows,) in loader:
        optimizer.zero_grad()
        session.backward(model(rows, labels=rows).loss)
        session.step()
print(model.transformer.wte.weight.full_tensor().tolist())
"""


def test_a_sharded_model_is_downloaded_for_transformers(run_group, tmp_path: Path) -> None:
    spec = {
        "task": {"name": "script"},
        "workers": {"min": 2, "max": 2},
        "training": {"epochs": 2, "global_batch": 8, "micro_batch": 4},
        "compression": {"method": "none"},
        "parallelism": {"shard": 2},
    }
    order = launch(tmp_path / "storage", spec, packed(tmp_path, {"train.py": SHARDED}))
    results = run_group(2, run_own_script, order)
    storage, file = LocalStorage(tmp_path / "storage" / "checkpoints"), tmp_path / MODEL_FILE
    export_model(storage, sorted(storage.names(), reverse=True), job_id="job-1", file=file)
    choose_converter("hf")(file)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert (type(loaded), loaded.dtype) == (GPT2LMHeadModel, torch.bfloat16)
    trained = json.loads(results[0].said.splitlines()[-1])
    assert loaded.transformer.wte.weight.tolist() == trained
    assert loaded.lm_head.weight.tolist() == trained
