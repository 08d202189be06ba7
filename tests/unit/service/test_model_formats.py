"""Formats of `accordion download`: what Transformers and torch read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from accordion_client import Client
from accordion_workers.checkpoint.model_export import export_model
from accordion_workers.checkpoint.storage import LocalStorage
from accordion_workers.training.pretrained import read_configs
from tests.unit.service.conftest import Accordion
from tests.unit.workers.test_model_export import JOB, save


def language_model() -> GPT2LMHeadModel:
    """A model of Transformers with tied weights and random parameters."""
    return GPT2LMHeadModel(
        GPT2Config(n_layer=1, n_head=2, n_embd=8, n_positions=16, vocab_size=32, bos_token_id=1)
    ).eval()


@pytest.fixture
def group() -> Iterator[None]:
    """Process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Lets every job have this model."""

    def serve(model: nn.Module) -> None:
        def download_model(
            self: Client, job_id: str, file: Path, *, checkpoint: str | None = None
        ) -> str:
            del self, job_id, checkpoint
            name = save(tmp_path / "storage", 1, model, configs=read_configs(model))
            storage = LocalStorage(tmp_path / "storage")
            return export_model(storage, [name], job_id=JOB, file=file).name

        monkeypatch.setattr(Client, "download_model", download_model)

    return serve


def test_transformers_reads_the_folder(
    accordion: Accordion, running: str, serve, tmp_path: Path
) -> None:
    model = language_model()
    serve(model)
    folder = tmp_path / "model"
    said = accordion("download", running, "--format", "hf", "--to", folder)
    assert said.code == 0, said.err
    names = {file.name for file in folder.iterdir()}
    assert names == {"config.json", "generation_config.json", "model.safetensors"}
    loaded = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    assert loaded.generation_config.bos_token_id == 1


def test_the_distributed_checkpoint_of_torch_reads_the_folder(
    accordion: Accordion, running: str, serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    serve(model)
    monkeypatch.chdir(tmp_path)
    said = accordion("download", running, "--format", "dcp", "--json")
    told = said.json()
    folder = tmp_path / told["folder"]
    assert folder.name.endswith("-dcp")
    assert told["format"] == "dcp"
    assert told["bytes"] == sum(file.stat().st_size for file in folder.iterdir())
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    assert torch.equal(other.weight, model.weight)
    assert not list(folder.glob("*.safetensors"))


def test_a_model_of_another_kind_has_no_folder_for_transformers(
    accordion: Accordion, running: str, serve, tmp_path: Path
) -> None:
    serve(nn.Linear(3, 2))
    said = accordion("download", running, "--format", "hf", "--to", tmp_path / "model")
    assert said.code == 2
    assert "is no PreTrainedModel of Transformers" in " ".join(said.err.replace("│", " ").split())
    assert {path.name for path in tmp_path.glob("*model*")} == set()


def test_a_folder_that_exists_is_kept_without_force(
    accordion: Accordion, running: str, serve, tmp_path: Path
) -> None:
    serve(language_model())
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    command = ("download", running, "--format", "hf", "--to", folder)
    assert accordion(*command).code == 2
    assert [file.name for file in folder.iterdir()] == ["tokenizer.json"]
    told = accordion(*command, "--force", "--json").json()
    written = set(folder.iterdir()) - {folder / "tokenizer.json"}
    assert len(written) == 3
    assert told["bytes"] == sum(file.stat().st_size for file in written)
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["GPT2LMHeadModel"]


def test_configs_are_those_of_the_model() -> None:
    model = language_model()
    files = read_configs(model)
    assert json.loads(files["config.json"])["n_embd"] == 8
    assert model.config.architectures is None  # the model itself is not changed
    assert read_configs(nn.Linear(1, 1)) == {}
    model._hf_peft_config_loaded = True  # as `add_adapter` sets it
    assert read_configs(model) == {}


def test_a_configuration_that_is_no_json_does_not_stop_a_checkpoint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = language_model()
    model.config.activation = torch.relu
    assert read_configs(model) == {}
    assert "the configuration of the model cannot be saved as JSON" in caplog.text


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_configuration_has_the_type_of_the_parameters(dtype: torch.dtype) -> None:
    model = language_model().to(dtype)
    model.config.dtype = torch.float16  # as it was loaded
    assert json.loads(read_configs(model)["config.json"])["dtype"] == str(dtype)[6:]
    assert model.config.dtype == torch.float16


def test_a_sharded_model_has_the_name_of_its_class(group: None) -> None:
    files = read_configs(fully_shard(language_model(), mesh=init_device_mesh("cpu", (1,))))
    assert json.loads(files["config.json"])["architectures"] == ["GPT2LMHeadModel"]


def test_a_conversion_that_fails_leaves_nothing(
    accordion: Accordion, running: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download_model(
        self: Client, job_id: str, file: Path, *, checkpoint: str | None = None
    ) -> str:
        del self, job_id, checkpoint
        file.write_bytes(b"no tensors")
        return "newest"

    monkeypatch.setattr(Client, "download_model", download_model)
    said = accordion("download", running, "--format", "dcp", "--to", tmp_path / "model")
    assert said.code == 2
    assert "was not written as a distributed checkpoint (" in said.err
    assert list(tmp_path.glob("*model*")) == []
