"""Modules that FSDP2 shards: compression between their replicas."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from accordion import Config, DetectorConfig, LocalSteps, Window, attach
from accordion.base.errors import HookError, StateError
from accordion.base.messages import Decision, Override, Report
from accordion.compressors import COMPRESSORS
from accordion.session.saved_states import state_of_rank
from tests.distributed.sharded_models import (
    REPLICAS,
    SHARDS,
    CheckpointedModel,
    CompiledModel,
    FrozenEnds,
    Model,
    SingleRow,
    backward,
    backward_all,
    batch,
    build,
    full,
    grid,
)

STEPS = 4


def train(rank: int, config: Config, options: Any = None) -> dict[str, Any]:
    options = dict(options or {})
    overlap = options.pop("overlap", True)
    model, optimizer, replicas = build(**options)
    session = attach(model, config, optimizer, overlap=overlap, replicate_group=replicas)
    for step in range(STEPS):
        backward(model, rank, step)
        session.step()
        optimizer.zero_grad()
    switch = session.end_epoch(lr=0.01, next_lr=0.01)
    return {
        "parameters": full(model),
        "bytes": session.ledger.total,
        "digests": {ack.digest for ack in switch.acks},
        "acks": len(switch.acks),
    }


def train_natively(rank: int, options: Any) -> list[torch.Tensor]:
    """Train with FSDP2's own all-reduce between replicas."""
    torch.manual_seed(0)
    model = Model()
    for part in (*model.blocks, model):
        fully_shard(part, mesh=grid(), **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        backward(model, rank, step)
        optimizer.step()
        optimizer.zero_grad()
    return full(model)


def train_alone() -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        backward_all(model, step)
        optimizer.step()
        optimizer.zero_grad()
    return [one.detach() for one in model.parameters()]


@pytest.mark.parametrize("options", [{}, {"reshard_after_forward": False}, {"overlap": False}])
def test_without_compression_a_grid_trains_as_one_process_on_all_batches(run_grid, options):
    alone = train_alone()
    for result in run_grid(train, Config(method="none"), options):
        for ours, theirs in zip(result["parameters"], alone, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_gradients_may_be_averaged_in_another_dtype_than_that_of_the_parameters(run_grid):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options = {"mp_policy": policy}
    native = run_grid(train_natively, options)
    for result in run_grid(train, Config(method="none"), options):
        for ours, theirs in zip(result["parameters"], native[0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", sorted(set(COMPRESSORS) - {"none"}))
def test_every_method_leaves_all_workers_with_the_same_bits(run_grid, method):
    results = run_grid(train, Config(method=method))
    first, *others = results
    for other in others:
        assert all(map(torch.equal, first["parameters"], other["parameters"]))
    assert [result["acks"] for result in results] == [4] * 4
    assert len(set.union(*(result["digests"] for result in results))) == 1
    assert first["bytes"].wire < first["bytes"].dense_wire


def test_bytes_are_those_of_a_workers_part_over_its_replicas(run_grid):
    results = run_grid(train, Config(method="none"))
    values = sum(one.numel() for one in Model().parameters())
    dense = [result["bytes"].dense for result in results]
    assert dense[:SHARDS] == dense[SHARDS:]
    assert sum(dense[:SHARDS]) == STEPS * 4 * values


def break_one(rank: int) -> tuple[list[bool], bool]:
    """Take three steps of which rank 3 spoils the second; return which were taken, and whether a
    skipped one changed nothing.
    """
    model, optimizer, replicas = build()
    session = attach(model, Config(method="powersgd"), optimizer, replicate_group=replicas)
    taken, parameters = [], []
    for step in range(3):
        inputs, targets = batch(rank, step)
        if (rank, step) == (3, 1):
            inputs[0, 0] = torch.nan
        nn.functional.mse_loss(model(inputs), targets).backward()
        taken.append(session.step().taken)
        optimizer.zero_grad()
        parameters.append(full(model))
    return taken, all(map(torch.equal, parameters[0], parameters[1]))


def test_a_step_that_is_not_finite_on_one_worker_is_skipped_by_all(run_grid):
    assert run_grid(break_one) == [([True, False, True], True)] * 4


def measure(rank: int) -> Any:
    """Return the statistic of a window in which the parameters stay as they are."""
    model, _, replicas = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    reports: list[Report] = []

    def decide(report: Report, proposed: Decision) -> Decision:
        reports.append(report)
        return proposed

    config = Config(method="powersgd", detector=DetectorConfig(window=Window(epochs=1)))
    session = attach(model, config, optimizer, decider=decide, replicate_group=replicas)
    for step in range(STEPS):
        backward(model, rank, step)
        session.step()
        optimizer.zero_grad()
    session.end_epoch(lr=0.1, next_lr=0.1)
    return [(report.statistic_by_layer, report.agreement) for report in reports]


def test_the_statistic_is_the_norm_of_whole_layers(run_grid):
    ((statistic, agreement),), *others = run_grid(measure)
    assert others == [[]] * 3  # rank 0 decides for all
    torch.manual_seed(0)
    model = Model()
    for step in range(STEPS):
        backward_all(model, step)
    norms = {
        name: float(one.grad.norm()) / STEPS
        for name, one in model.named_parameters()
        if one.dim() > 1
    }
    assert statistic == pytest.approx(norms, rel=1e-4)
    assert -1.0 <= agreement <= 1.0


def accumulate(rank: int, passes: int, uses: int) -> list[torch.Tensor]:
    """Return the gradients, which a script may clip, of the backward passes of one step, in each of
    which every block is used so many times.
    """
    model, optimizer, replicas = build()
    model.uses = uses
    session = attach(model, Config(method="none"), optimizer, replicate_group=replicas)
    for step in range(passes):
        model.set_requires_gradient_sync(step == passes - 1)
        backward(model, rank, step)
    gradients = [one.grad.full_tensor() for one in model.parameters()]
    session.step()
    return gradients


@pytest.mark.parametrize(("passes", "uses"), [(2, 1), (1, 2)])
def test_gradients_accumulate_and_are_averages_before_the_step(run_grid, passes, uses):
    torch.manual_seed(0)
    model = Model()
    model.uses = uses
    for step in range(passes):
        backward_all(model, step)
    for gradients in run_grid(accumulate, passes, uses):
        for ours, theirs in zip(gradients, model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs.grad, rtol=1e-4, atol=1e-6)


def observe(rank: int, kind: Any) -> list[torch.Tensor]:
    """Return the gradients of a step."""
    model, optimizer, replicas = build(kind)
    session = attach(model, Config(method="none"), optimizer, replicate_group=replicas)
    backward(model, rank, 0)
    gradients = [one.grad.full_tensor() for one in model.parameters() if one.requires_grad]
    session.step()
    return gradients


@pytest.mark.parametrize("kind", [CheckpointedModel, CompiledModel, FrozenEnds, SingleRow])
def test_gradients_are_averages_in_unusual_models(run_grid, kind):
    torch.manual_seed(0)
    model = kind()
    backward_all(model, 0)
    trained = [one for one in model.parameters() if one.requires_grad]
    for gradients in run_grid(observe, kind):
        for ours, theirs in zip(gradients, trained, strict=True):
            torch.testing.assert_close(ours, theirs.grad, rtol=1e-4, atol=1e-6)


def fail_once(rank: int, resets: bool) -> list[torch.Tensor] | str:
    """Return the parameters after a step that follows a failed backward pass, or its error."""
    model, optimizer, replicas = build()
    session = attach(model, Config(method="powersgd"), optimizer, replicate_group=replicas)
    backward(model, rank, 0)
    session.step()
    hidden = model.first.register_forward_hook(lambda *arguments: _fail_in_backward(arguments[2]))
    with pytest.raises(ZeroDivisionError):
        backward(model, rank, 1)
    hidden.remove()
    optimizer.zero_grad()
    if resets:
        model.reset_iter_state()
    backward(model, rank, 1)
    try:
        session.step()
    except HookError as error:
        return str(error)
    return full(model)


def _fail_in_backward(outputs: torch.Tensor) -> torch.Tensor:
    outputs.register_hook(lambda _: 1 / 0)
    return outputs


def test_training_goes_on_after_an_error_in_a_backward_pass(run_grid):
    first, *others = run_grid(fail_once, True)
    assert all(all(map(torch.equal, first, other)) for other in others)
    assert all("call reset_iter_state()" in told for told in run_grid(fail_once, False))


def resume(rank: int, stop: int) -> list[torch.Tensor]:
    """Train for `STEPS` steps, with a new session from saved states after `stop` of them."""
    model, optimizer, replicas = build()
    config = Config(method="powersgd")
    session = attach(model, config, optimizer, replicate_group=replicas)
    for step in range(STEPS):
        if step == stop:
            saved = session.state_dict()
            session.source.remove()
            session = attach(model, config, optimizer, replicate_group=replicas)
            session.load_state_dict(saved)
        backward(model, rank, step)
        session.step()
        optimizer.zero_grad()
    return full(model)


def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(run_grid):
    resumed, whole = run_grid(resume, 2), run_grid(resume, -1)
    for ours, theirs in zip(resumed, whole, strict=True):
        assert all(map(torch.equal, ours, theirs))


def save(rank: int) -> Any:
    model, optimizer, replicas = build()
    session = attach(model, Config(method="signsgd"), optimizer, replicate_group=replicas)
    backward(model, rank, 0)
    session.step()
    return session.gather_state_dict()


def test_another_number_of_replicas_starts_with_the_mean_residual_of_its_part(run_grid):
    states = run_grid(save)[0]["states"]
    loaded = state_of_rank(states, 5, world_size=6, shards=2)
    layer = "first.weight"
    ours, *saved = (
        one["engine"]["residuals"][layer].flatten() for one in (loaded, states[1], states[3])
    )
    torch.testing.assert_close(ours, sum(saved) / 2)
    assert loaded["controller"] == states[0]["controller"]
    with pytest.raises(StateError, match="a model in 2 shards, and it is in 4 now"):
        state_of_rank(states, 5, world_size=6, shards=4)


def override(rank: int) -> list[str]:
    """Return the names of the levels in force after each step; rank 0 overrides in the first."""
    model, optimizer, replicas = build()
    config = Config(method="qsgd", low={"bits": 8}, high={"bits": 2})
    session = attach(model, config, optimizer, replicate_group=replicas)
    names = []
    for step in range(3):
        if (rank, step) == (0, 0):
            session.override([Override(id="by hand", target="compression", level="high")])
        backward(model, rank, step)
        session.step()
        optimizer.zero_grad()
        names.append(session.decision.level_by_layer["last.weight"].name)
    return names


def test_an_override_is_applied_by_all_workers_at_the_same_step(run_grid):
    assert run_grid(override) == [["high"] * 3] * 4


def native() -> nn.Module:
    model = Model()
    fully_shard(model, mesh=grid())
    return model


def with_ignored() -> nn.Module:
    model = Model()
    fully_shard(model, mesh=grid()["shard"], ignored_params={model.first.bias})
    return model


def forwarded() -> nn.Module:
    model, _, _ = build()
    with torch.no_grad():
        model(torch.ones(1, 24))
    return model


def with_ddp() -> nn.Module:
    return nn.parallel.DistributedDataParallel(Model())


MODELS = {
    "not sharded": Model,
    "DDP": with_ddp,
    "native": native,
    "ignored": with_ignored,
    "forwarded": forwarded,
}


def group_of_some() -> Any:
    """Return a group as `dist.new_group([0, 2])` does, to which the other workers do not belong."""
    return dist.GroupMember.NON_GROUP_MEMBER if dist.get_rank() % SHARDS else build()[2]


GROUPS = {
    "no group": lambda: None,
    "wrong group": lambda: grid()["shard"].get_group(),
    "group of some": group_of_some,
}


def refuse(rank: int, mistake: str) -> str:
    """Return what `attach` says about a mistake."""
    model, optimizer, replicas = build()
    model = MODELS[mistake]() if mistake in MODELS else model
    group = GROUPS[mistake]() if mistake in GROUPS else replicas
    config = Config(method="none")
    sessions = [attach(model, config, replicate_group=group)] if mistake == "attached" else []
    with pytest.raises(HookError) as caught:
        attach(model, config, optimizer, replicate_group=group)
    del sessions
    return str(caught.value)


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("no group", 'mesh["replicate"].get_group()'),
        ("not sharded", "DistributedDataParallel first, or shard it by fully_shard()"),
        ("DDP", "a module that is not sharded; call fully_shard() on it first"),
        ("native", 'call fully_shard(module, mesh=mesh["shard"])'),
        ("wrong group", "no grid of 2 replicas of 2 shards: this worker has the same part"),
        ("group of some", "to which this worker does not belong"),
        ("ignored", "the layers first.bias train and are not sharded"),
        ("forwarded", "call reshard() on them or attach() before it"),
        ("attached", "has a session already; attach() once"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_way_out(run_grid, mistake, told):
    assert all(told in sentence for sentence in run_grid(refuse, mistake))


def train_wrongly(rank: int, mistake: str) -> str:
    """Return what a step says about a mistake."""
    model, optimizer, replicas = build()
    session = attach(model, Config(method="none"), optimizer, replicate_group=replicas)
    inputs, _ = batch(rank, 0)

    def run() -> None:
        if mistake == "gone":
            nonlocal session
            session = None
            gc.collect()
        if mistake == "part used twice":
            model.uses = 2
            model.set_requires_gradient_sync(False)
            model(inputs).sum().backward()
            model.set_requires_gradient_sync(True)
        if mistake == "no pass":
            session.step()
        outputs = model.blocks[0](torch.ones(1, 33)) if mistake == "unused" else model(inputs)
        outputs.sum().backward()
        if mistake == "twice":
            model(inputs).sum().backward()

    with pytest.raises(HookError) as caught:
        run()
    return str(caught.value)


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("no pass", "no gradients were exchanged since the last step; call backward() first"),
        ("twice", "gradients were exchanged twice for one step; call session.step() after each"),
        ("part used twice", "got a gradient twice in one backward pass"),
        ("gone", "the session of this module is gone"),
        ("unused", "the layers blocks.1.0.bias, blocks.1.0.weight, first.bias"),
    ],
)
def test_a_step_without_the_gradients_of_all_layers_once_is_refused(run_grid, mistake, told):
    assert all(told in sentence for sentence in run_grid(train_wrongly, mistake))


def train_one_replica(rank: int, local: LocalSteps | None) -> tuple[list[str], bool]:
    """Take two steps as the only replica; return what is warned, and whether all was learned."""
    mesh = init_device_mesh("cpu", (1, REPLICAS * SHARDS), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    model = fully_shard(Model(), mesh=mesh["shard"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    config, before = Config(method="qsgd", local_steps=local), full(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        group = mesh["replicate"].get_group()
        session = attach(model, config, optimizer, replicate_group=group)
    for step in range(2):
        backward(model, rank, step)
        session.step()
        optimizer.zero_grad()
    is_changed = not any(map(torch.equal, before, full(model)))
    return [str(one.message) for one in caught if "of one worker" in str(one.message)], is_changed


@pytest.mark.parametrize("local", [None, LocalSteps(low=2, high=2)])
def test_a_single_replica_trains_and_rank_0_is_told_that_nothing_is_exchanged(run_grid, local):
    (told, is_changed), *others = run_grid(train_one_replica, local)
    assert "all 4 workers hold one model together; nothing is compressed" in told[0]
    assert is_changed
    assert others == [([], True)] * 3
