"""Warnings and errors of a session, on real gloo processes."""

from __future__ import annotations

import gc
import warnings
import weakref
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from accordion.base.errors import HookError, OverrideError, ReportError
from accordion.base.local_steps import LocalSteps
from accordion.base.messages import Override
from accordion.compress.compression_engine import Engine
from accordion.compress.ledger import Ledger
from accordion.config import BatchConfig, Config, DetectorConfig, WarmUp, Window
from accordion.session.session import attach
from accordion.session.training_warnings import (
    STEPS_WITHOUT_EPOCH,
    RunWatcher,
    TrainingWarning,
)
from tests.distributed import small


def _override_everywhere(rank):
    _, session = small.start("powersgd")
    dist.barrier()  # what ends at once would close what the other one still connects to
    try:
        session.override([Override(id="mine", level="high")])
    except OverrideError as error:
        return str(error)
    return ""


def test_an_override_on_another_rank_than_0_is_refused_with_the_way_out(run_group):
    first, second = run_group(2, _override_everywhere)
    assert first == ""
    assert "called on rank 1, but rank 0 decides for all; call it there" in second


def _skipped(rank):
    """Return the warnings of 40 steps in which one layer of rank 1 is never finite."""
    ddp, session = small.start("powersgd")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(40):
            small.backward(ddp, rank, step)
            if step == 0 and rank == 1:
                ddp.module.last.weight.data[0, 0] = torch.nan
            session.step()
            ddp.zero_grad()
    return [str(item.message) for item in told if issubclass(item.category, TrainingWarning)]


def test_consecutive_skipped_steps_warn_with_rank_and_layers(run_group):
    first, second = run_group(2, _skipped)
    assert [text.split(",")[0] for text in first] == [
        f"rank 0: {n} steps in a row were skipped" for n in (10, 20)
    ]
    assert "a gradient on another worker, or of a bias or norm, is not finite" in first[0]
    assert "rank 1: 10 steps in a row were skipped, since the gradients of " in second[0]
    assert "last.weight" in second[0]


def _break_gradient(ddp):
    ddp.module.last.weight.grad.fill_(torch.nan)


def _break_parameter(ddp):
    ddp.module.last.weight.data.fill_(torch.inf)


def _spoiled(rank, spoil, steps):
    """Return the warnings of 20 local steps, in rounds of two, of which rank 1 spoils some."""
    ddp, optimizer = small.build()
    config = Config(method="none", local_steps=LocalSteps(low=2, high=2))
    session = attach(ddp, config, optimizer)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(20):
            small.backward(ddp, rank, step)
            if rank == 1 and step in steps:
                spoil(ddp)
            session.step()
            ddp.zero_grad()
    return [str(item.message) for item in told if issubclass(item.category, TrainingWarning)]


def test_the_worker_that_skips_local_steps_warns_with_its_layers(run_group):
    first, second = run_group(2, _spoiled, _break_gradient, range(20))
    assert first == []
    skipped = "local steps in a row were skipped by this worker alone, since its gradients of"
    assert [text.split(" last.weight")[0] for text in second] == [
        f"rank 1: {n} {skipped}" for n in (10, 20)
    ]


def test_rounds_that_are_undone_again_and_again_warn_with_rank_and_layers(run_group):
    (first,), (second,) = run_group(2, _spoiled, _break_parameter, range(1, 20, 2))
    undone = "10 rounds of local steps in a row were undone, since"
    assert first.startswith(f"rank 0: {undone} a change on another worker")
    assert second.startswith(f"rank 1: {undone} the changes of last.weight are not finite")


def _run_of(rank, epochs_given, window):
    """Return the warnings of a run of three epochs."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ddp, optimizer = small.build()
        config = Config(detector=DetectorConfig(window=Window(epochs=window)))
        session = attach(ddp, config, optimizer=optimizer, epochs=epochs_given)
        for epoch in range(3):
            small.train(session, ddp, rank, [epoch])
            session.end_epoch(lr=0.1, next_lr=0.1)
        ended = weakref.ref(session)
        del ddp, optimizer, session
        while ended() is not None:  # a thread of the last exchange may still hold it
            gc.collect()
    return [str(item.message) for item in told if issubclass(item.category, TrainingWarning)]


@pytest.mark.parametrize("policy", ["fixed", "legacy", "by_rate"])
def test_a_short_run_whose_policy_compares_no_windows_is_told_nothing(recwarn, policy):
    RunWatcher(Config(policy=policy), world_size=1, epochs=2)
    assert not recwarn.list


def test_a_short_run_in_which_all_levels_are_equal_is_told_nothing(recwarn):
    equal = {"method": "qsgd", "low": {"bits": 4}, "high": {"bits": 4}}
    RunWatcher(Config(**equal), world_size=1, epochs=2)
    assert not recwarn.list
    RunWatcher(Config(**equal, batch=BatchConfig(low=8, high=16)), world_size=1, epochs=2)
    assert len(recwarn.list) == 1


def test_a_run_too_short_for_any_window_of_epochs_is_told_to_count_steps(run_group):
    ((told,),) = run_group(1, _run_of, 2, 1)
    assert "Window(steps=...)" in told
    assert "Window(epochs=" not in told
    ((told,),) = run_group(1, _run_of, 7, 10)
    assert "Window(epochs=3)" in told


def test_a_long_run_whose_windows_could_not_be_compared_is_not_told_that_it_is_short(recwarn):
    watcher = RunWatcher(Config(), world_size=1, epochs=None)
    skipped = SimpleNamespace(change_by_layer={"weight": None})
    for _ in range(21):
        watcher.observe_epoch(skipped)
    watcher.end_run()
    assert not recwarn.list


@pytest.mark.parametrize("given", [3, None])
def test_a_run_too_short_for_its_window_warns_at_the_start_or_at_the_end(run_group, given):
    ((told,),) = run_group(1, _run_of, given, 10)
    assert "levels change in epoch 20 at the earliest" in told
    assert run_group(1, _run_of, given, 1) == [[]]


def _warnings_of(train):
    """Return what a call and the end of its session warn of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ended = weakref.ref(train())
        while ended() is not None:  # a thread of the last exchange may still hold it
            gc.collect()
    return [str(item.message) for item in told if issubclass(item.category, TrainingWarning)]


def _without_epochs(rank, steps, window, policy):
    def train():
        ddp, optimizer = small.build()
        detector = DetectorConfig(window=window)
        session = attach(ddp, Config(detector=detector, policy=policy), optimizer=optimizer)
        small.train(session, ddp, rank, range(steps))
        return session

    with patch("accordion.session.training_warnings.STEPS_WITHOUT_EPOCH", 5):
        return _warnings_of(train)


@pytest.mark.parametrize("policy", ["two_level", "legacy"])
def test_a_loop_that_ends_no_epoch_is_told_once_that_levels_stay(run_group, policy):
    ((told,),) = run_group(1, _without_epochs, 12, Window(epochs=1), policy)
    assert "5 steps were taken and no epoch has ended, so levels stay as they are" in told
    assert "unless an epoch is longer than that or an integration ends it, call session.end" in told


@pytest.mark.parametrize(
    ("steps", "window", "policy"),
    [
        (4, Window(epochs=1), "two_level"),
        (9, Window(steps=3), "two_level"),
        (9, Window(epochs=1), "fixed"),
    ],
)
def test_a_loop_whose_levels_need_no_end_of_an_epoch_is_not_warned(
    run_group, steps, window, policy
):
    assert run_group(1, _without_epochs, steps, window, policy) == [[]]


@pytest.mark.parametrize(
    ("local", "steps"), [({"high": 8}, None), ({"high": 4}, None), ({"high": 8}, 3)]
)
def test_a_loop_that_ends_no_epoch_is_told_that_rounds_do_not_grow(recwarn, local, steps):
    window = Window(epochs=1) if steps is None else Window(steps=steps)
    rounds, detector = LocalSteps(low=4, **local), DetectorConfig(window=window)
    watcher = RunWatcher(
        Config(method="none", local_steps=rounds, detector=detector), world_size=1, epochs=None
    )
    for _ in range(STEPS_WITHOUT_EPOCH):
        watcher.observe_step({}, Ledger(1))
    told = [str(one.message) for one in recwarn.list]
    assert len(told) == (rounds.high == 8 and steps is None)
    assert all("so levels and rounds of local steps stay as they are" in one for one in told)


def _default_window(rank, mode):
    ddp, optimizer = small.build()
    session = attach(ddp, Config(), optimizer=optimizer, step=mode)
    for step in range(100):
        small.backward(ddp, rank, step)
        (optimizer if mode == "optimizer" else session).step()
        optimizer.zero_grad()
    return session.decision.cause


@pytest.mark.parametrize(("mode", "cause"), [("optimizer", "window"), ("session", "start")])
def test_an_unchanged_loop_has_windows_of_100_steps_unless_set(run_group, mode, cause):
    assert run_group(1, _default_window, mode) == [cause]


def _without_rate(rank):
    ddp, _ = small.build()
    session = attach(ddp, Config(detector=DetectorConfig(window=Window(steps=2))))
    small.backward(ddp, rank, 0)
    with pytest.raises(ReportError, match="the learning rate is not known"):
        session.step()
    session.lr = 0.1
    return session.step().taken


def test_windows_in_steps_without_a_known_rate_are_refused_in_the_first_step(run_group):
    assert run_group(1, _without_rate) == [True]


def _overlap_unlike(rank):
    ddp, optimizer = small.build()
    try:
        attach(ddp, Config(), optimizer=optimizer, overlap=rank == 0)
    except HookError as error:
        return str(error)
    return "attached"


def test_overlap_that_differs_between_workers_is_refused_on_all_of_them(run_group):
    assert ["the same overlap=" in text for text in run_group(2, _overlap_unlike)] == [True, True]


def _scales_unlike(rank, step_of_change):
    """Return the number of the step that is refused, and why."""
    ddp, optimizer = small.build()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    session = attach(ddp, Config(), optimizer=optimizer, scaler=scaler)
    for step in range(3):
        if step == step_of_change and rank == 1:
            scaler.load_state_dict({**scaler.state_dict(), "scale": 8.0})
        inputs, labels = small.batch(rank, step)
        scaler.scale(torch.nn.functional.cross_entropy(ddp(inputs), labels)).backward()
        try:
            session.step()
        except HookError as error:
            return step, str(error)
    return None


@pytest.mark.parametrize("step", [0, 1])
def test_scales_of_the_loss_that_differ_between_ranks_are_refused_on_all(run_group, step):
    for refused, sentence in run_group(3, _scales_unlike, step):
        assert refused == step
        assert "the workers scale the loss by different factors" in sentence
        assert "load the same state on all workers" in sentence


def _exchange_twice(rank, mode):
    ddp, optimizer = small.build()
    session = attach(ddp, Config(), optimizer=optimizer, step=mode)
    try:
        small.backward(ddp, rank, 0)
        small.backward(ddp, rank, 1)
        session.step()
    except (HookError, RuntimeError) as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize(
    ("mode", "call"),
    [
        ("session", "call session.step() after each"),
        ("caller", "call session.step() after each"),
        ("optimizer", "call optimizer.step() after each"),
    ],
)
def test_a_second_exchange_names_the_call_that_ends_a_step_in_this_mode(run_group, mode, call):
    assert [call in text for text in run_group(2, _exchange_twice, mode)] == [True, True]


def _local_step(rank):
    ddp, optimizer = small.build()
    session = attach(ddp, Config(), optimizer=optimizer, step="optimizer")
    with ddp.no_sync():
        small.backward(ddp, rank, 0)
        try:
            optimizer.step()
        except HookError as error:
            return str(error), session.steps
    return None


def test_a_step_on_local_gradients_is_told_of_local_steps(run_group):
    for sentence, _ in run_group(2, _local_step):
        assert "inside no_sync(), where gradients are not exchanged" in sentence
        assert "(LocalSGD), train without no_sync() and set local_steps in Config" in sentence


CALLS = {
    "attach": lambda ddp, _: attach(ddp, Config()),
    "end_epoch": lambda _, session: session.end_epoch(lr=0.1, next_lr=0.1),
    "load_state_dict": lambda _, session: session.load_state_dict(session.state_dict()),
    "gather_state_dict": lambda _, session: session.gather_state_dict(),
}


def _call_late(rank, folder, call):
    """Rank 1 makes a call once rank 0 has warned; return what each is told."""
    ddp, session = (small.build()[0], None) if call == "attach" else small.start("powersgd")
    told, store = [], dist.FileStore(f"{folder}/store", 2)

    def keep(text, *_, **__):
        told.append(text)
        store.set("warned", "")

    if rank == 1:
        store.wait(["warned"])
    with (
        patch("accordion.session.training_warnings.WAIT_WARNING_S", 0.01 if rank == 0 else 60.0),
        patch("warnings.warn", keep),
    ):
        CALLS[call](ddp, session)
    return told


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_one_rank_makes_alone_is_warned_of_after_a_while(run_group, tmp_path, call):
    (told,), others = run_group(2, _call_late, str(tmp_path), call)
    assert others == []
    assert f"rank 0 has waited 0.01 s in {call}() for the other workers" in told
    assert "call it on every worker" in told


def _gain(rank, method, rank_of_factors):
    def train():
        ddp, optimizer = small.build()
        level = {"rank": rank_of_factors} if method == "powersgd" else {}
        config = Config(method=method, low=level, high=level)
        session = attach(ddp, config, optimizer=optimizer)
        small.train(session, ddp, rank, range(6))
        return session

    with patch("accordion.session.training_warnings.STEPS_BEFORE_GAIN", 5):
        return _warnings_of(train)


def test_a_model_too_small_to_gain_is_told_what_is_saved(run_group):
    (told,), other = run_group(2, _gain, "powersgd", 64)
    assert "compression sends" in told
    assert "as many bytes as without it" in told
    assert other == []
    assert run_group(2, _gain, "powersgd", 1) == [[], []]
    assert run_group(2, _gain, "none", 0) == [[], []]


def _gain_after_warm_up(rank):
    def train():
        ddp, optimizer = small.build()
        factors = {"rank": 64}
        config = Config(low=factors, high=factors, warm_up=WarmUp(steps=8))
        session = attach(ddp, config, optimizer=optimizer)
        small.train(session, ddp, rank, range(14))
        return session

    with patch("accordion.session.training_warnings.STEPS_BEFORE_GAIN", 5):
        return _warnings_of(train)


def test_a_warm_up_does_not_hide_that_compression_saves_little(run_group):
    (told,), other = run_group(2, _gain_after_warm_up)
    assert "compression sends" in told
    assert other == []


def _exchange_fails(rank):
    ddp, session = small.start("powersgd")
    try:
        with patch.object(Engine, "build_stacks", _raise):
            small.backward(ddp, rank, 0)
            session.step()
    except ValueError as error:
        return str(error), error.__notes__[0]
    return "no error"


def _raise(_, layers):
    raise ValueError(f"planted in {layers[0].name}")


def test_a_failed_exchange_raises_its_own_error_with_a_note_on_where_to_look(run_group):
    ((sentence, note),) = run_group(1, _exchange_fails)
    assert sentence.startswith("planted in ")
    assert "see the other workers' logs" in note
