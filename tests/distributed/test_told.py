"""Warnings and errors of a session, on real gloo processes."""

from __future__ import annotations

import gc
import warnings
import weakref
from unittest.mock import patch

import pytest
import torch

from accordion.compression_engine import Engine
from accordion.config import Config, DetectorConfig, Window
from accordion.errors import HookError, OverrideError, ReportError
from accordion.messages import Override
from accordion.session import attach
from accordion.training_warnings import TrainingWarning
from tests.distributed import small


def _override_everywhere(rank):
    _, session = small.start("powersgd")
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
    assert "a gradient on another worker is not finite" in first[0]
    assert "rank 1: 10 steps in a row were skipped, since the gradients of " in second[0]
    assert "last.weight" in second[0]


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


@pytest.mark.parametrize("given", [3, None])
def test_a_run_too_short_for_its_window_warns_at_the_start_or_at_the_end(run_group, given):
    ((told,),) = run_group(1, _run_of, given, 10)
    assert "levels change in epoch 20 at the earliest" in told
    assert run_group(1, _run_of, given, 1) == [[]]


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
