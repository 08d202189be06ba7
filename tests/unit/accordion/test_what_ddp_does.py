"""Features of plain DDP that are supported or refused, as listed in the table of
docs/reference/ddp_features.md.
"""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate import replicate as replicate_by_ddp
from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_by_fsdp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from accordion.base.errors import ConfigError, HookError
from accordion.config import Config
from accordion.session.session import Session, attach

ROOT = Path(__file__).parents[3]
THREADS = Path("/proc/self/task")
PAGE = ROOT / "docs" / "reference" / "ddp_features.md"


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _trained() -> tuple[DistributedDataParallel, Session]:
    """A module and its session after one step."""
    ddp = DistributedDataParallel(nn.Linear(6, 6))
    session = attach(
        ddp, Config(method="topk"), optimizer=torch.optim.SGD(ddp.parameters(), lr=0.1)
    )
    _train(ddp, session)
    return ddp, session


def _train(ddp: DistributedDataParallel, session: Session) -> None:
    ddp(torch.ones(2, 6)).sum().backward()
    session.step()
    ddp.zero_grad()


def _saved_and_loaded(ddp: DistributedDataParallel) -> DistributedDataParallel:
    buffer = io.BytesIO()
    torch.save(ddp, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "torch.save": _saved_and_loaded,
    "AveragedModel": AveragedModel,
}


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_of_the_module_is_plain_ddp_with_the_same_parameters(way):
    ddp, session = _trained()
    copied = COPIES[way](ddp)
    assert all(
        torch.equal(a, b) for a, b in zip(ddp.parameters(), copied.parameters(), strict=True)
    )
    copied(torch.ones(2, 6)).sum().backward()
    assert session.steps == 1
    _train(ddp, session)
    assert session.steps == 2


def test_a_module_that_was_attached_is_refused_a_second_session():
    ddp, _ = _trained()
    with pytest.raises(HookError, match="a module takes one hook"):
        attach(ddp, Config())


@pytest.mark.parametrize("factors", ["both", "alternating"])
def test_a_backward_pass_inside_autocast_gives_the_same_averages(factors):
    level, received = {"rank": 2, "factors": factors}, []
    inputs = torch.randn(64, 40, generator=torch.Generator().manual_seed(0))
    for inside in (True, False):
        ddp = DistributedDataParallel(nn.Linear(40, 40, bias=False))
        nn.init.eye_(ddp.module.weight)
        config = Config(low=level, high=level)
        session = attach(ddp, config, torch.optim.SGD(ddp.parameters(), lr=0.1), overlap=False)
        for _ in range(2):
            ddp.zero_grad()
            with torch.autocast("cpu"):
                loss = ddp(inputs).float().square().mean()
                if inside:
                    loss.backward()
            if not inside:
                loss.backward()
            session.step()
        received.append(ddp.module.weight.grad)
    assert torch.equal(*received)


def test_a_refused_second_session_leaves_no_threads():
    ddp, _ = _trained()
    before = set(THREADS.iterdir())
    with pytest.raises(HookError, match="a module takes one hook"):
        attach(ddp, Config())
    assert set(THREADS.iterdir()) <= before


@pytest.mark.parametrize("config", ["powersgd", None, Config])
def test_settings_that_are_no_config_are_refused_with_what_to_give(config):
    with pytest.raises(ConfigError, match=r"accordion\.Config.*method='powersgd'"):
        attach(DistributedDataParallel(nn.Linear(6, 6)), config)


def test_the_optimizer_may_be_the_third_argument():
    ddp = DistributedDataParallel(nn.Linear(6, 6))
    before = ddp.module.weight.detach().clone()
    _train(ddp, attach(ddp, Config(), torch.optim.SGD(ddp.parameters(), lr=0.1)))
    assert not torch.equal(ddp.module.weight, before)


def test_ignored_parameters_without_memory_do_not_choose_the_device():
    model = nn.Sequential(nn.Linear(6, 6, device="meta"), nn.Linear(6, 6))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        model, ["0.weight", "0.bias"]
    )
    ddp = DistributedDataParallel(model)
    session = attach(ddp, Config(), optimizer=torch.optim.SGD(ddp.parameters(), lr=0.1))
    ddp.module[1](torch.ones(2, 6)).sum().backward()
    assert session.end_epoch(lr=0.1, next_lr=0.1).decision.level_by_layer


class Table(nn.Module):
    """An embedding with sparse gradients before a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4, sparse=True)
        self.leave = nn.Linear(4, 2)


def test_sparse_gradients_are_refused_at_attach_by_layer():
    with pytest.raises(HookError, match=r"'table\.weight'.*sparse=False"):
        attach(DistributedDataParallel(Table()), Config())


def test_uneven_inputs_under_join_are_refused_at_the_first_backward():
    ddp, session = _trained()
    with pytest.raises((HookError, RuntimeError), match=r"same number of batches"), ddp.join():
        _train(ddp, session)


def test_join_that_raises_where_inputs_end_unevenly_is_served():
    ddp, session = _trained()
    with ddp.join(throw_on_early_termination=True):
        _train(ddp, session)
    assert session.steps == 2


def test_an_optimizer_inside_the_backward_pass_is_refused():
    model = nn.Linear(4, 4)
    _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
    with pytest.raises(HookError, match="inside the backward pass"):
        attach(DistributedDataParallel(model), Config())


def _sharded(model: nn.Module) -> nn.Module:
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return model


def _replicated_by_fsdp(model: nn.Module) -> nn.Module:
    replicate_by_fsdp(model, mesh=init_device_mesh("cpu", (1,)))
    return model


@pytest.mark.parametrize(
    ("wrap", "sentence"),
    [
        (_sharded, "that FSDP2 shards, and no group of the workers that hold the same part"),
        (_replicated_by_fsdp, "replicate.. is not supported; wrap the model in DistributedData"),
        (replicate_by_ddp, "replicate.. is not supported; wrap the model in DistributedData"),
    ],
    ids=["fully_shard", "replicate of FSDP", "replicate of DDP"],
)
def test_a_module_of_another_way_of_parallel_training_is_refused_by_its_name(wrap, sentence):
    with pytest.raises(HookError, match=sentence):
        attach(wrap(nn.Sequential(nn.Linear(4, 4))), Config())


@pytest.mark.parametrize("wrap", [nn.Module.train, DistributedDataParallel], ids=["bare", "DDP"])
def test_the_module_inside_the_wrapper_of_fabric_is_attached(wrap):
    # Here, because every process of a run collects this file, and Lightning takes seconds.
    from lightning_fabric.strategies import SingleDeviceStrategy
    from lightning_fabric.wrappers import _FabricModule

    model = nn.Linear(6, 6)
    fabric = _FabricModule(wrap(model), SingleDeviceStrategy(), original_module=model)
    session = attach(fabric, Config(), optimizer=torch.optim.SGD(fabric.parameters(), lr=0.1))
    fabric(torch.ones(2, 6)).sum().backward()
    assert session.step().taken
    assert [layer.name for layer in session.layers] == ["weight"]


class Adversaries:
    """A generator and a discriminator, plain or attached, trained in turns."""

    def __init__(self, *, attached: bool) -> None:
        torch.manual_seed(0)
        self.fake, self.judge = (DistributedDataParallel(nn.Linear(4, size)) for size in (4, 1))
        optimizers = [torch.optim.SGD(ddp.parameters(), lr=0.1) for ddp in (self.fake, self.judge)]
        pairs = zip((self.fake, self.judge), optimizers, strict=True)
        self.steppers = (
            [attach(d, Config(method="none"), optimizer=o) for d, o in pairs]
            if attached
            else optimizers
        )

    def train(self, real: torch.Tensor) -> None:
        with self.judge.no_sync():
            self.judge(real).sum().backward()
        (-self.judge(self.fake(real).detach()).square().sum()).backward()
        self.steppers[1].step()
        with self.judge.no_sync():  # the gradients of this pass are discarded
            self.judge(self.fake(real)).sum().backward()
        self.steppers[0].step()
        self.fake.zero_grad()
        self.judge.zero_grad()


def test_adversaries_with_two_backward_passes_a_step_train_as_under_plain_ddp():
    plain, ours = Adversaries(attached=False), Adversaries(attached=True)
    for step in range(3):
        for pair in (plain, ours):
            pair.train(torch.full((2, 4), 0.1 * step))
    for expected, found in zip(plain.judge.parameters(), ours.judge.parameters(), strict=True):
        assert torch.equal(expected, found)


def test_a_second_exchange_before_a_step_is_refused_with_the_way_out():
    ddp, _ = _trained()
    ddp(torch.ones(2, 6)).sum().backward()
    with pytest.raises((HookError, RuntimeError), match=r"no_sync\(\)"):
        ddp(torch.ones(2, 6)).sum().backward()


class Scaled(nn.Module):
    """A model with a parameter of its own, outside its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.enter = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.enter(x * self.scale)


def test_ignored_parameters_of_the_root_module_work_with_unused_layers():
    model = Scaled()
    # DDP looks for ".scale" and "enter.bias", so that it ignores only the second.
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        model, ["scale", "enter.bias"]
    )
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    session = attach(ddp, Config(), optimizer=torch.optim.SGD(ddp.parameters(), lr=0.1))
    _train(ddp, session)
    assert session.steps == 1


def test_a_step_with_missing_gradients_names_the_likely_causes():
    ddp = DistributedDataParallel(nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)]))
    session = attach(ddp, Config(), optimizer=torch.optim.SGD(ddp.parameters(), lr=0.1))
    ddp.module[0](torch.ones(2, 6)).sum().backward()
    with pytest.raises(HookError, match="find_unused_parameters=True"):
        session.step()


def test_trainable_layers_without_an_optimizer_are_refused_by_name():
    ddp = DistributedDataParallel(nn.Linear(6, 6))
    muon = torch.optim.Muon([ddp.module.weight], lr=0.1)
    with pytest.raises(HookError, match=r"trainable layers bias; give it all optimizers"):
        attach(ddp, Config(), optimizer=muon)
    attach(ddp, Config(), optimizer=[muon, torch.optim.AdamW([ddp.module.bias], lr=0.1)])


def test_one_optimizer_of_two_modules_is_refused_with_the_way_out():
    encoder, decoder = (DistributedDataParallel(nn.Linear(6, size)) for size in (4, 6))
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
    with pytest.raises(HookError, match=r"\(6, 6\), \(6,\).*an optimizer and a session of its own"):
        attach(encoder, Config(), optimizer=optimizer)


def _half_frozen() -> nn.Sequential:
    """A model whose layer 1 trains and whose layer 0 is frozen."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    model[0].requires_grad_(requires_grad=False)
    return model


def _unfreeze(model: nn.Sequential) -> nn.Linear:
    return model[0].requires_grad_(requires_grad=True)


def _add(model: nn.Sequential) -> nn.Linear:
    model.append(nn.Linear(6, 6))
    return model[2]


KINDS = {"plain": {}, "unused": {"find_unused_parameters": True}, "static": {"static_graph": True}}
LATER = {"unfrozen": (_unfreeze, "0.weight, 0.bias"), "added": (_add, "2.weight, 2.bias")}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", LATER)
@pytest.mark.parametrize("is_held", [True, False], ids=["in the optimizer", "without one"])
def test_a_layer_that_trains_after_attach_is_refused_at_the_next_step(kind, change, is_held):
    ddp = DistributedDataParallel(_half_frozen(), **KINDS[kind])
    optimizer = torch.optim.SGD(ddp.module[1].parameters(), lr=0.1)
    session = attach(ddp, Config(), optimizer=optimizer if is_held else None)
    _train(ddp, session)
    begin, layers = LATER[change]
    optimizer.add_param_group({"params": list(begin(ddp.module).parameters())})
    with pytest.raises(HookError, match=f"layers {layers} became trainable.*wrap the model again"):
        _train(ddp, session)


@pytest.mark.parametrize("kind", ["unused", "static"])
@pytest.mark.parametrize("change", LATER)
def test_a_layer_that_trains_after_wrapping_is_refused_at_attach(kind, change):
    ddp = DistributedDataParallel(_half_frozen(), **KINDS[kind])
    begin, layers = LATER[change]
    begin(ddp.module)
    with pytest.raises(HookError, match=f"layers {layers} became trainable after the model was"):
        attach(ddp, Config())


def test_a_layer_that_was_added_after_wrapping_is_refused_as_unequal_on_the_workers():
    ddp = DistributedDataParallel(_half_frozen())
    _add(ddp.module)
    with pytest.raises(HookError, match=r"layers 2\.weight, 2\.bias became trainable"):
        attach(ddp, Config())


def test_a_layer_that_was_unfrozen_between_wrapping_and_attach_is_exchanged():
    ddp = DistributedDataParallel(_half_frozen())
    _unfreeze(ddp.module)
    session = attach(ddp, Config(), optimizer=torch.optim.SGD(ddp.parameters(), lr=0.1))
    _train(ddp, session)
    assert {layer.name for layer in session.layers} == {"0.weight", "1.weight"}


def test_a_trained_layer_may_be_frozen_for_some_steps_and_trained_again():
    ddp = DistributedDataParallel(nn.Linear(6, 6), find_unused_parameters=True)
    session = attach(ddp, Config(), optimizer=torch.optim.SGD(ddp.parameters(), lr=0.1))
    for is_trained in (True, False, True):
        ddp.module.weight.requires_grad_(is_trained)
        _train(ddp, session)
    assert session.steps == 3


def test_every_row_of_the_books_table_names_a_test_that_is_there():
    page = PAGE.read_text()
    rows = re.findall(r"\| `(test_\w+\.py)` (.+) \|$", page, flags=re.MULTILINE)
    sources = {path.name: path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    places = {file: sources[file] + sources["compose.py"] for file, _ in rows}
    assert len(rows) == page.count("\n|") - 2  # less the head
    assert [
        name
        for file, name in rows
        if f'"{name}"' not in places[file] and f"def {name}(" not in places[file]
    ] == []
