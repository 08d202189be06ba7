"""What is saved and loaded: by layer name, across layouts, methods and numbers of workers."""

from __future__ import annotations

import io

import pytest
import torch

from accordion.base.errors import StateError
from accordion.compressors import COMPRESSORS, ladder_of
from tests.distributed.compose import Way, channels_last, compiled, trial
from tests.distributed.small import SmallNet

METHODS = sorted(COMPRESSORS)
KEEPERS = [name for name in METHODS if COMPRESSORS[name].feedback]
LOSSLESS = [name for name in METHODS if COMPRESSORS[name].feedback or COMPRESSORS[name].exact]
MANY, ONE = Way(ddp={"bucket_cap_mb": 0.005}), Way(ddp={"bucket_cap_mb": 100})


def _save(worker):
    """Serialize by `torch.save`."""
    buffer = io.BytesIO()
    state = (
        worker.session.state_dict(),
        worker.ddp.module.state_dict(),
        worker.optimizer.state_dict(),
    )
    torch.save(state, buffer)
    return buffer.getvalue()


def _load(worker, saved):
    states, models, optimizers = zip(
        *(torch.load(io.BytesIO(text), weights_only=True) for text in saved), strict=True
    )
    getattr(worker.ddp.module, "_orig_mod", worker.ddp.module).load_state_dict(models[0])
    worker.optimizer.load_state_dict(optimizers[0])
    worker.session.load_state_dict(states)


def _train_and_save(rank, way, methods):
    """Values by method after two steps: the saved state, and the parameters two steps later."""
    found = {}
    for method in methods:
        worker = trial(rank, way, method)
        for step in range(2):
            worker.step(step)
        saved = _save(worker)
        for step in range(2, 4):
            worker.step(step)
        found[method] = saved, worker.parameters()
    return found


def _load_and_train(rank, way, saved_by_method):
    """Results by method: how two steps after loading end."""
    ends = {}
    for method, saved in saved_by_method.items():
        worker = trial(rank, way, method)
        _load(worker, saved)
        for step in range(2, 4):
            worker.step(step)
        ends[method] = worker.parameters()
    return ends


def _states(results, methods):
    return {method: [found[method][0] for found in results] for method in methods}


@pytest.fixture(scope="module")
def of_two(run_group):
    return run_group(2, _train_and_save, MANY, METHODS)


def _assert_resumed_equals_straight(run_group, straight):
    """Use many buckets, which have another order before DDP's first backward pass than after it."""
    methods = list(straight[0])
    resumed = run_group(len(straight), _load_and_train, MANY, _states(straight, methods))
    for found, ends in zip(straight, resumed, strict=True):
        for method in methods:
            assert all(
                torch.equal(a, b) for a, b in zip(found[method][1], ends[method], strict=True)
            ), method


def test_loaded_and_continued_equals_never_stopped_for_every_method(run_group, of_two):
    _assert_resumed_equals_straight(run_group, of_two)


@pytest.mark.parametrize(
    ("world_size", "methods"), [(1, METHODS[::3]), (3, METHODS[1::3]), (4, METHODS[2::3])]
)
def test_loaded_and_continued_equals_never_stopped_on_any_number_of_workers(
    run_group, world_size, methods
):
    straight = run_group(world_size, _train_and_save, MANY, methods)
    _assert_resumed_equals_straight(run_group, straight)


def _owed_and_account(rank, way, saved_by_method, target):
    """Values by method: what is owed after loading and changing over to the target, and the first
    step's account.
    """
    found = {}
    for method, saved in saved_by_method.items():
        worker = trial(rank, way, method)
        _load(worker, saved)
        loaded = worker.owed()
        if target is not None:
            level = ladder_of(target)[1]
            worker.session._engine.plan = {layer.name: level for layer in worker.session.layers}
        found[method] = loaded, *worker.account([3])
    return found


def _saved_residuals(saved):
    return torch.load(io.BytesIO(saved), weights_only=True)[0]["engine"]["residuals"]


def _mean(residuals_by_rank):
    residuals_by_rank = list(residuals_by_rank)
    names = sorted({name for residuals in residuals_by_rank for name in residuals})
    return {
        name: torch.stack([own[name].double() for own in residuals_by_rank]).mean(0)
        for name in names
    }


def _assert_nothing_is_lost(saved_by_method, results):
    """The group owes what the saved one did, and the next step sends or keeps all of it."""
    for method, saved in saved_by_method.items():
        owed, loaded = (
            _mean(map(_saved_residuals, saved)),
            _mean([found[method][0] for found in results]),
        )
        assert sorted(owed) == sorted(loaded)
        for name, value in owed.items():
            torch.testing.assert_close(
                loaded[name], value, rtol=0, atol=2**-22 * value.abs().max().item()
            )
        accounts = [found[method][1] for found in results]
        for name, got in accounts[0][1].items():
            gave = torch.stack([gave[name] for gave, _ in accounts]).mean(0)
            size = max(account[0][name].abs().max().item() for account in accounts)
            torch.testing.assert_close(
                got, gave, rtol=0, atol=2**-18 * size, msg=f"{method}: {name}"
            )


@pytest.mark.parametrize(
    "way", [ONE, Way(model=compiled, ddp={"bucket_cap_mb": 25})], ids=["one bucket", "compiled"]
)
def test_a_state_fits_other_buckets_and_a_compiled_module(run_group, of_two, way):
    saved = _states(of_two, KEEPERS)
    _assert_nothing_is_lost(saved, run_group(2, _owed_and_account, way, saved, None))


def _contiguous():
    return channels_last().to(memory_format=torch.contiguous_format)


def test_a_residual_means_the_same_weights_whatever_the_memory_format(run_group):
    """After top-k, what a channels-last layer owes is what a contiguous one does."""
    last = run_group(2, _train_and_save, Way(model=channels_last), ["topk"])
    rows = run_group(2, _train_and_save, Way(model=_contiguous), ["topk"])
    for one, other in zip(last, rows, strict=True):
        owed, expected = _saved_residuals(one["topk"][0]), _saved_residuals(other["topk"][0])
        for name, value in expected.items():
            # the two layouts' convolutions round differently
            torch.testing.assert_close(owed[name].view_as(value), value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("after", [1, 2, 3])
def test_the_mean_of_what_is_owed_is_kept_on_any_number_of_workers(run_group, of_two, after):
    saved = _states(of_two, KEEPERS)
    _assert_nothing_is_lost(saved, run_group(after, _owed_and_account, MANY, saved, None))


def _resave(rank, saved_by_method):
    found = {}
    for method, saved in saved_by_method.items():
        worker = trial(rank, MANY, method)
        _load(worker, saved)
        worker.step(3)
        found[method] = _save(worker), worker.parameters()
    return found


def test_two_then_three_then_one_worker_lose_nothing(run_group, of_two):
    of_three = run_group(3, _resave, _states(of_two, KEEPERS))
    for method in KEEPERS:
        ends = [found[method][1] for found in of_three]
        assert all(
            torch.equal(a, b) for other in ends[1:] for a, b in zip(ends[0], other, strict=True)
        ), method
    saved = _states(of_three, KEEPERS)
    _assert_nothing_is_lost(saved, run_group(1, _owed_and_account, MANY, saved, None))


@pytest.mark.parametrize("target", LOSSLESS)
def test_what_is_owed_outlives_a_save_and_a_change_of_method(run_group, of_two, target):
    saved = _states(of_two, KEEPERS)
    _assert_nothing_is_lost(saved, run_group(2, _owed_and_account, MANY, saved, target))


def _tensors(state):
    if isinstance(state, torch.Tensor):
        return [state]
    parts = (
        state.values()
        if isinstance(state, dict)
        else state
        if isinstance(state, (list, tuple))
        else []
    )
    return [tensor for part in parts for tensor in _tensors(part)]


def _aliases(rank):
    """Values by method: whether a state changed while training went on, or training while a
    loaded state was spoilt.
    """
    found = {}
    for method in METHODS:
        worker = trial(rank, MANY, method)
        for step in range(2):
            worker.step(step)
        state = worker.session.state_dict()
        copies = [tensor.clone() for tensor in _tensors(state)]
        worker.session.load_state_dict([state])
        for step in range(2, 5):
            worker.step(step)
        found[method] = all(torch.equal(a, b) for a, b in zip(copies, _tensors(state), strict=True))
    return found


def test_a_state_shares_no_memory_with_the_session_it_came_from_or_went_to(run_group):
    assert run_group(1, _aliases)[0] == dict.fromkeys(METHODS, True)


def _spoilt(rank, saved):
    """The residuals after loading, before and after the loaded tensors are overwritten."""
    worker = trial(rank, MANY, "topk")
    states = [torch.load(io.BytesIO(text), weights_only=True)[0] for text in saved]
    worker.session.load_state_dict(states)
    before = worker.owed()
    for tensor in _tensors(states):
        tensor.fill_(7)
    return before, worker.owed()


def test_overwriting_a_state_that_was_loaded_changes_nothing(run_group, of_two):
    before, after = run_group(1, _spoilt, [own["topk"][0] for own in of_two])[0]
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def _keys(rank):
    worker = trial(rank, MANY, "powersgd")
    worker.step(0)
    return list(worker.named()), {
        part: list(worker.session.state_dict()["engine"][part]) for part in ("residuals", "warm")
    }


def test_residuals_and_warm_starts_are_keyed_by_layer_name(run_group):
    names, keys = run_group(1, _keys)[0]
    matrices = {name for name in names if name.endswith("weight")}
    assert (set(keys["residuals"]), set(keys["warm"])) == (matrices, matrices)


class OtherNet(SmallNet):
    """`SmallNet` with its last layer of another size."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(self.last.in_features, 6)


def _other_model(rank, saved):
    worker = trial(rank, Way(model=OtherNet), "topk")
    try:
        worker.session.load_state_dict(
            [torch.load(io.BytesIO(text), weights_only=True)[0] for text in saved]
        )
    except StateError as error:
        return str(error)
    return "loaded"


def test_a_state_of_a_model_with_other_sizes_is_refused_by_layer(run_group, of_two):
    assert (
        "'last.weight' has 384 values, the layer has 576"
        in run_group(1, _other_model, [own["topk"][0] for own in of_two])[0]
    )
