"""What the integrations refuse, and what they tell a session that a framework does not say by
itself.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import warnings
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from accordion import Config, DetectorConfig, Window, attach
from accordion.base.errors import HookError, MissingFrameworkError
from accordion.hook.attach_refusal import refuse_attach
from accordion.integrations import common
from accordion.integrations.accelerate import attach_accelerator
from accordion.integrations.common import (
    EpochReports,
    load_state,
    save_state,
    training_metrics,
)
from accordion.session.training_warnings import TrainingWarning


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
    with pytest.raises(
        HookError, match=r"a Linear that .* does not wrap; call accelerator.prepare"
    ):
        attach_accelerator(accelerator(), Config(), model=torch.nn.Linear(8, 8), optimizer=None)


def test_the_module_inside_a_compiled_one_is_attached():
    wrapped = DistributedDataParallel.__new__(DistributedDataParallel)
    assert common.distributed_module(SimpleNamespace(_orig_mod=wrapped), way_out="") is wrapped


def test_accelerate_is_refused_where_every_node_saves_for_itself():
    with pytest.raises(HookError, match="save_on_each_node=True is not supported"):
        attach_accelerator(
            accelerator(on_each_node=True), Config(), model=torch.nn.Linear(8, 8), optimizer=None
        )


def attach_to_sharded(name: str) -> None:
    """Attach in a framework that shards the model."""
    module, sharded = importlib.import_module(f"accordion.integrations.{name}"), accelerator("FSDP")
    if name == "accelerate":
        module.attach_accelerator(sharded, Config(), model=torch.nn.Linear(8, 8), optimizer=None)
    elif name == "transformers":
        trainer = SimpleNamespace(accelerator=sharded)
        module.AccordionCallback(trainer, Config()).on_train_begin(None, None, None)
    else:
        trainer = lightning_trainer("FSDPStrategy")
        module.AccordionCallback(Config()).on_train_start(trainer, None)


@pytest.mark.parametrize("name", ["accelerate", "transformers", "lightning"])
def test_an_integration_in_a_process_that_refuses_attach_says_so_first(name):
    with refuse_attach("not here"), pytest.raises(HookError, match="not here"):
        attach_to_sharded(name)


def test_attach_is_refused_in_a_block_and_in_those_around_it_only():
    model = torch.nn.Linear(8, 8)
    with refuse_attach("outer"):
        with refuse_attach("inner"), pytest.raises(HookError, match="inner"):
            attach(model, Config())
        with pytest.raises(HookError, match="outer"):
            attach(model, Config())
    attach(model, Config())


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
        (
            lightning_trainer("FSDPStrategy"),
            'trains with FSDPStrategy.*use Trainer(strategy="ddp")',
        ),
        (lightning_trainer("DeepSpeedStrategy"), "trains with DeepSpeedStrategy"),
        (lightning_trainer("SingleDeviceStrategy", 2), "gave 2 optimizers"),
    ],
)
def test_a_trainer_of_lightning_that_cannot_be_followed_is_refused(trainer, sentence):
    module = importlib.import_module("accordion.integrations.lightning")
    with pytest.raises(HookError, match=sentence.replace("(", r"\(").replace(")", r"\)")):
        module.AccordionCallback(Config()).on_train_start(trainer, None)


def transformers_run(
    *, on_each_node: bool = False
) -> tuple[object, SimpleNamespace, SimpleNamespace]:
    module = importlib.import_module("accordion.integrations.transformers")
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    trainer = SimpleNamespace(accelerator=accelerator(), model_wrapped=model, optimizer=optimizer)
    arguments = SimpleNamespace(save_on_each_node=on_each_node)
    return (
        module.AccordionCallback(trainer, Config()),
        arguments,
        SimpleNamespace(epoch=None, global_step=0),
    )


def test_a_trainer_of_transformers_that_saves_on_each_node_is_refused():
    callback, arguments, state = transformers_run(on_each_node=True)
    with pytest.raises(HookError, match="set output_dir to a folder that all nodes reach"):
        callback.on_train_begin(arguments, state, None)


def test_a_second_run_of_a_trainer_of_transformers_is_refused():
    callback, arguments, state = transformers_run()
    callback.on_train_begin(arguments, state, None)
    with pytest.raises(HookError, match="create another Trainer"):
        callback.on_train_begin(arguments, state, None)


def test_a_second_run_with_smaller_batches_names_the_setting_that_made_it():
    callback, arguments, state = transformers_run()
    arguments.auto_find_batch_size = True
    callback.on_train_begin(arguments, state, None)
    with pytest.raises(HookError, match="remove auto_find_batch_size and set per_device_train"):
        callback.on_train_begin(arguments, state, None)


class Unsized(torch.utils.data.IterableDataset):
    """Four samples, of which nobody knows the number."""

    def __iter__(self):
        return iter([{"batch": torch.ones(8)}] * 4)


class Lossy(torch.nn.Linear):
    """A layer that returns its loss, as Transformers' models do."""

    def forward(self, batch):
        return {"loss": super().forward(batch).sum()}


def test_each_pass_through_a_dataset_without_length_is_an_epoch(tmp_path):
    transformers = importlib.import_module("transformers")
    module = importlib.import_module("accordion.integrations.transformers")
    quiet = {"use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=6, per_device_train_batch_size=2, **quiet
    )
    trainer = transformers.Trainer(model=Lossy(8, 8), args=arguments, train_dataset=Unsized())
    callback = module.AccordionCallback(trainer, Config())
    trainer.add_callback(callback)
    trainer.train()
    assert (callback.session.steps, callback.session.epoch) == (6, 2)


def test_an_optimizer_without_a_rate_trains_where_a_framework_ends_epochs():
    model, optimizer, session, config = small_session(Window(steps=2))
    optimizer.param_groups[0]["lr"] = None  # as of an Adafactor that chooses its steps
    epochs = EpochReports(session, config, optimizer, epoch=0)
    for epoch in (0, 1):
        epochs.begin(epoch)
        model(torch.ones(2, 8)).sum().backward()
        session.pass_boundary()
    assert (session.steps, session.epoch) == (2, 1)


@pytest.mark.parametrize("given", [None, True, "True", "checkpoint-1"])
def test_a_resumed_trainer_of_transformers_takes_the_state_of_its_own_step(
    tmp_path, monkeypatch, given
):
    """The argument may be `True`, or name another checkpoint than the one that `train()`
    resumed.
    """
    monkeypatch.chdir(tmp_path)
    for step in (1, 2):
        _, _, saved, _ = small_session(Window(steps=2))
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        saved.steps = step
        save_state(saved, folder)
    callback, arguments, state = transformers_run()
    arguments.output_dir, arguments.resume_from_checkpoint, state.global_step = (
        str(tmp_path),
        given,
        2,
    )
    callback.on_train_begin(arguments, state, None)
    assert callback.session.steps == 2


def test_the_state_of_another_step_than_the_trainers_is_warned_of(tmp_path):
    _, _, saved, _ = small_session(Window(steps=2))
    save_state(saved, tmp_path)
    (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 100}))
    callback, arguments, state = transformers_run()
    arguments.output_dir, arguments.resume_from_checkpoint, state.global_step = (
        "elsewhere",
        str(tmp_path),
        500,
    )
    with pytest.warns(TrainingWarning, match="resumed at step 500.*saved at step 100"):
        callback.on_train_begin(arguments, state, None)


def lightning_fit(
    callback, *others, trainer=None, module=None, epochs=1, skipped=None, log_every=50
):
    """Train on one device for epochs of four batches; leave the batch `skipped` out."""
    lightning = importlib.import_module("accordion.integrations.lightning").import_lightning()

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.backbone, self.layer = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def training_step(self, batch, index):
            return None if index == skipped else self.layer(self.backbone(batch)).sum()

        def configure_optimizers(self):
            trained = [one for one in self.parameters() if one.requires_grad]
            return torch.optim.SGD(trained, lr=0.1)

    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer = trainer or lightning.Trainer(
        accelerator="cpu",
        devices=1,
        callbacks=[callback, *others],
        log_every_n_steps=log_every,
        **quiet,
    )
    trainer.fit_loop.max_epochs = epochs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module or Module(), torch.utils.data.DataLoader(torch.ones(8, 8), batch_size=2))
    return trainer


def lightning_callback():
    config = Config(detector=DetectorConfig(window=Window(steps=2)))
    return importlib.import_module("accordion.integrations.lightning").AccordionCallback(config)


def test_a_trainer_of_lightning_that_logs_no_steps_trains():
    callback = lightning_callback()
    lightning_fit(callback, log_every=0)
    assert callback.session.steps == 4


def test_a_checkpoint_of_lightning_without_a_state_is_resumed_with_a_warning():
    callback, trainer = lightning_callback(), lightning_trainer("SingleDeviceStrategy")
    trainer.optimizers = [torch.optim.SGD(trainer.strategy.model.parameters(), lr=0.1)]
    trainer.current_epoch, trainer.global_step, trainer.precision_plugin = 1, 5, None
    with pytest.warns(TrainingWarning, match="goes on at step 5 .* start from the beginning"):
        callback.on_train_start(trainer, None)


def test_a_batch_that_lightning_leaves_out_is_no_step():
    callback = lightning_callback()
    lightning_fit(callback, skipped=1)
    assert callback.session.steps == 3


def test_a_trainer_of_lightning_that_goes_on_keeps_the_state():
    callback = lightning_callback()
    trainer = lightning_fit(callback)
    first = callback.session
    lightning_fit(callback, trainer=trainer, module=trainer.lightning_module, epochs=3)
    assert callback.session is not first
    assert (first.steps, callback.session.steps, callback.session.epoch) == (4, 12, 2)


def test_a_backbone_that_lightning_unfreezes_is_named_with_the_way_out():
    lightning = importlib.import_module("accordion.integrations.lightning").import_lightning()
    unfreezing = lightning.callbacks.BackboneFinetuning(unfreeze_backbone_at_epoch=1)
    callback = lightning_callback()
    with pytest.raises(HookError, match=r"layers backbone\.weight, backbone\.bias became"):
        lightning_fit(callback, unfreezing, epochs=2)
    assert callback.session.steps == 4


def test_another_trainer_of_lightning_trains_a_module_again():
    module = lightning_fit(lightning_callback()).lightning_module
    callback = lightning_callback()
    lightning_fit(callback, module=module)
    assert callback.session.steps == 4


def test_a_checkpoint_after_an_exception_does_not_wait_for_other_workers(monkeypatch):
    callback = lightning_callback()
    _, _, callback.session, _ = small_session(Window(steps=2))
    callback.session.world_size = 2
    monkeypatch.setattr(callback.session, "gather_state_dict", lambda: pytest.fail("it waits"))
    callback.on_exception(None, None, ValueError())
    with pytest.warns(TrainingWarning, match="saved after an exception"):
        assert callback.state_dict() == {}


def test_checkpoints_of_accelerate_can_be_read_with_and_without_accordion(tmp_path):
    accelerate = importlib.import_module("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = torch.nn.Linear(8, 8)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    accelerator.save_state(str(tmp_path / "before"))
    session = attach_accelerator(accelerator, Config(), model=model, optimizer=optimizer)
    with pytest.warns(TrainingWarning, match="start from the beginning"):
        accelerator.load_state(str(tmp_path / "before"))
    session.steps = 7
    accelerator.save_state(str(tmp_path / "after"))
    session.steps = 0
    accelerator.load_state(str(tmp_path / "after"))
    assert session.steps == 7
    accelerator._load_model_state_pre_hook.clear()
    accelerator.load_state(str(tmp_path / "after"))


def test_two_optimizers_of_accelerate_take_one_step_of_the_session():
    accelerator = importlib.import_module("accelerate").Accelerator(cpu=True)
    model = torch.nn.Linear(8, 8)
    parts = [torch.optim.SGD([part], lr=0.5) for part in model.parameters()]
    model, *optimizers = accelerator.prepare(model, *parts)
    config = Config(detector=DetectorConfig(window=Window(steps=2)))
    session = attach_accelerator(accelerator, config, model=model, optimizer=optimizers)
    model(torch.ones(2, 8)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    assert session.steps == 1


def test_two_optimizers_of_accelerate_and_a_scaler_are_refused():
    accelerator = importlib.import_module("accelerate").Accelerator(cpu=True)
    accelerator.scaler = torch.amp.GradScaler("cpu")
    model = torch.nn.Linear(8, 8)
    optimizers = [torch.optim.SGD([part], lr=0.5) for part in model.parameters()]
    with pytest.raises(HookError, match="use bf16, or one optimizer with groups"):
        attach_accelerator(accelerator, Config(), model=model, optimizer=optimizers)


def prepared_session(accelerator, *, size=8, **named):
    """A session of a model of its own, as `accelerator.prepare` returned it."""
    model = torch.nn.Linear(size, size)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    config = Config(detector=DetectorConfig(window=Window(steps=2)))
    return attach_accelerator(accelerator, config, model=model, optimizer=optimizer, **named)


def test_sessions_of_several_models_of_accelerate_keep_their_states_apart(tmp_path):
    accelerator = importlib.import_module("accelerate").Accelerator(cpu=True)
    encoder = prepared_session(accelerator, name="encoder")
    decoder = prepared_session(accelerator, name="decoder")
    encoder.steps, decoder.steps = 7, 9
    accelerator.save_state(str(tmp_path))
    encoder.steps = decoder.steps = 0
    accelerator.load_state(str(tmp_path))
    assert (encoder.steps, decoder.steps) == (7, 9)


@pytest.mark.parametrize("name", ["", "encoder"])
def test_a_second_session_of_an_accelerator_with_the_same_name_is_refused(name):
    accelerator = importlib.import_module("accelerate").Accelerator(cpu=True)
    first = prepared_session(accelerator, name=name)
    with pytest.raises(HookError, match=r"give each model its own name=.*free_memory"):
        prepared_session(accelerator, name=name)
    assert first.steps == 0


@pytest.mark.parametrize("name", ["a/b", "../a", "a b"])
def test_a_session_name_that_no_file_can_have_is_refused(name):
    accelerator = importlib.import_module("accelerate").Accelerator(cpu=True)
    with pytest.raises(HookError, match="letters, digits"):
        prepared_session(accelerator, name=name)


def test_a_second_training_of_an_accelerator_saves_and_loads_its_own_state(tmp_path):
    accelerator = importlib.import_module("accelerate").Accelerator(cpu=True)
    first = prepared_session(accelerator)
    accelerator.free_memory()
    second = prepared_session(accelerator, size=4)
    first.steps, second.steps = 7, 9
    accelerator.save_state(str(tmp_path))
    first.steps = second.steps = 0
    accelerator.load_state(str(tmp_path))
    assert (first.steps, second.steps) == (0, 9)


def test_a_second_training_of_one_model_with_accelerate_gets_a_session_of_its_own():
    accelerator = importlib.import_module("accelerate").Accelerator(cpu=True)
    model, sessions = torch.nn.Linear(8, 8), []
    for _ in range(2):
        optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.5))
        model = accelerator.prepare(model)
        config = Config(detector=DetectorConfig(window=Window(steps=2)))
        sessions.append(attach_accelerator(accelerator, config, model=model, optimizer=optimizer))
        train_step(model, optimizer)
        accelerator.free_memory()
    assert [session.steps for session in sessions] == [1, 1]


def test_a_session_of_accelerate_does_not_outlive_its_training():
    accelerator = importlib.import_module("accelerate").Accelerator(cpu=True)
    session = weakref.ref(prepared_session(accelerator))
    accelerator.free_memory()
    gc.collect()
    assert session() is None


def test_metrics_of_a_named_session_have_its_name():
    _, _, session, _ = small_session(Window(steps=2))
    plain = training_metrics(session)
    session.name = "encoder"
    assert {key.replace("/encoder/", "/") for key in training_metrics(session)} == plain.keys()
    assert "accordion/encoder/sent_bytes" in training_metrics(session)


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
