"""What the integrations refuse, and what they tell a session that a framework does not say by itself."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from accordion import Config, DetectorConfig, Window, attach
from accordion.errors import HookError, MissingFrameworkError
from accordion.integrations import common
from accordion.integrations.accelerate import attach_accelerator
from accordion.integrations.common import EpochReports, load_state, save_state
from accordion.training_warnings import TrainingWarning


def accelerator(kind: str = "MULTI_CPU", *, on_each_node: bool = False) -> SimpleNamespace:
    project = SimpleNamespace(save_on_each_node=on_each_node)
    return SimpleNamespace(distributed_type=kind, scaler=None, project_configuration=project)


def small_session(window: Window) -> tuple[torch.nn.Module, torch.optim.Optimizer, object, Config]:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    config = Config(method="powersgd", detector=DetectorConfig(window=window))
    return model, optimizer, attach(model, config, optimizer=optimizer, step="optimizer"), config


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED", "MEGATRON_LM", "TP"])
def test_accelerate_is_refused_where_it_shards_the_model(kind):
    model = torch.nn.Linear(8, 8)
    with pytest.raises(HookError, match=f"trains with {kind}.*choose multi-CPU or multi-GPU"):
        attach_accelerator(accelerator(kind), Config(), model=model, optimizer=None)


def test_a_model_that_accelerate_has_not_prepared_is_refused(monkeypatch):
    monkeypatch.setattr(common, "has_peers", lambda: True)
    with pytest.raises(HookError, match=r"a Linear that .* does not wrap; call accelerator.prepare"):
        attach_accelerator(accelerator(), Config(), model=torch.nn.Linear(8, 8), optimizer=None)


def test_the_module_inside_a_compiled_one_is_attached():
    wrapped = DistributedDataParallel.__new__(DistributedDataParallel)
    assert common.distributed_module(SimpleNamespace(_orig_mod=wrapped), way_out="") is wrapped


def test_accelerate_is_refused_where_every_node_saves_for_itself():
    with pytest.raises(HookError, match="save_on_each_node=True is not supported"):
        attach_accelerator(accelerator(on_each_node=True), Config(), model=torch.nn.Linear(8, 8), optimizer=None)


@pytest.mark.parametrize("name", ["transformers", "lightning"])
def test_an_integration_without_its_framework_names_the_command(monkeypatch, name):
    for package in ("transformers", "lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"accordion.integrations.{name}", raising=False)
    with pytest.raises(MissingFrameworkError, match=f"pip install .*{name}"):
        importlib.import_module(f"accordion.integrations.{name}")


def lightning_trainer(strategy: str, num_optimizers: int = 1) -> SimpleNamespace:
    made = type(strategy, (), {"model": torch.nn.Linear(8, 8)})()
    return SimpleNamespace(strategy=made, optimizers=[object()] * num_optimizers)


@pytest.mark.parametrize(
    ("trainer", "sentence"),
    [
        (lightning_trainer("FSDPStrategy"), 'trains with FSDPStrategy.*use Trainer(strategy="ddp")'),
        (lightning_trainer("DeepSpeedStrategy"), "trains with DeepSpeedStrategy"),
        (lightning_trainer("SingleDeviceStrategy", 2), "gave 2 optimizers"),
    ],
)
def test_a_trainer_of_lightning_that_cannot_be_followed_is_refused(trainer, sentence):
    module = importlib.import_module("accordion.integrations.lightning")
    with pytest.raises(HookError, match=sentence.replace("(", r"\(").replace(")", r"\)")):
        module.AccordionCallback(Config()).on_train_start(trainer, None)


def transformers_run(*, on_each_node: bool = False) -> tuple[object, SimpleNamespace, SimpleNamespace]:
    module = importlib.import_module("accordion.integrations.transformers")
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    trainer = SimpleNamespace(accelerator=accelerator(), model_wrapped=model, optimizer=optimizer)
    arguments = SimpleNamespace(save_on_each_node=on_each_node)
    return module.AccordionCallback(trainer, Config()), arguments, SimpleNamespace(epoch=None, global_step=0)


def test_a_trainer_of_transformers_that_saves_on_each_node_is_refused():
    callback, arguments, state = transformers_run(on_each_node=True)
    with pytest.raises(HookError, match="set output_dir to a folder that all nodes reach"):
        callback.on_train_begin(arguments, state, None)


def test_a_second_run_of_a_trainer_of_transformers_is_refused():
    callback, arguments, state = transformers_run()
    callback.on_train_begin(arguments, state, None)
    with pytest.raises(HookError, match="create another Trainer"):
        callback.on_train_begin(arguments, state, None)


def test_the_start_of_an_epoch_ends_the_one_before_at_its_rate():
    model, optimizer, session, config = small_session(Window(epochs=1))
    reports = EpochReports(session, config, optimizer, epoch=3)
    reports.begin(3)
    assert (session.epoch, session.lr) == (3, 0.5)
    train_step(model, optimizer)
    optimizer.param_groups[0]["lr"] = 0.05
    reports.begin(4)
    assert (session.epoch, session.lr) == (4, 0.05)
    assert session.controller.decision.epoch == 4


def test_windows_in_steps_read_the_rate_of_the_optimizer():
    model, optimizer, session, config = small_session(Window(steps=2))
    reports = EpochReports(session, config, optimizer, epoch=0)
    train_step(model, optimizer)
    reports.begin(1)
    assert (session.epoch, session.lr) == (1, None)


def test_a_checkpoint_without_a_state_is_resumed_with_a_warning(tmp_path):
    _, _, session, _ = small_session(Window(steps=2))
    with pytest.warns(TrainingWarning, match="start from the beginning"):
        load_state(session, tmp_path)


def test_a_state_in_a_checkpoint_folder_is_loaded_again(tmp_path):
    model, optimizer, session, _ = small_session(Window(steps=2))
    train_step(model, optimizer)
    save_state(session, tmp_path)
    _, _, other, _ = small_session(Window(steps=2))
    load_state(other, tmp_path)
    assert other.steps == 1
    assert [path.name for path in tmp_path.iterdir()] == ["accordion.pt"]
