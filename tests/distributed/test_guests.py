"""Sessions of `accordion_ray` on several ranks: calls that a rank leaves out, and states in
checkpoints.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import accordion
import accordion_ray
from accordion.base.errors import AccordionError
from accordion.base.local_steps import LocalSteps
from accordion.config import DetectorConfig, Window
from accordion_ray.epochs import follower_of
from tests.distributed.guests import CONFIG, Guest, train_worker
from tests.distributed.small import backward, build


def _attach_on_some(rank, chosen):
    """What the ranks that attach are told; the others do not."""
    if rank not in chosen:
        build()
        dist.barrier()
        return None
    with pytest.raises(AccordionError) as raised:
        Guest(timeout_s=0.5)
    dist.barrier()
    return str(raised.value)


def test_attach_on_some_ranks_only_names_the_others(run_group) -> None:
    told = run_group(3, _attach_on_some, {0, 2})
    assert told[1] is None
    for rank in (0, 2):
        assert told[rank].startswith(
            f"attach() was called on rank {rank}, but not on rank 1 within 0.5 s"
        )


def _save_on_first(rank, folder):
    guest = Guest()
    guest.train(range(1))
    if rank != 0:
        dist.barrier()
        return None
    with pytest.raises(AccordionError) as raised:
        accordion_ray.save_state(guest.session, folder, timeout_s=0.5)
    dist.barrier()
    return str(raised.value)


def test_a_state_that_only_rank_0_saves_is_an_error_that_names_the_others(
    run_group, tmp_path: Path
) -> None:
    told = run_group(2, _save_on_first, tmp_path)
    assert told[0].startswith("save_state() was called on rank 0, but not on rank 1 within 0.5 s")


def _train_and_save(rank, folder):
    """Parameters of a run that saves after four steps and goes on for four."""
    guest = Guest()
    guest.train(range(4))
    guest.save(folder)
    guest.train(range(4, 8))
    return guest.parameters(), guest.session.epoch


def _resume(rank, folder):
    guest = Guest(folder)
    resumed_at = guest.session.steps
    guest.train(range(4, 8))
    return guest.parameters(), guest.session.epoch, resumed_at


def test_a_resumed_run_equals_one_that_never_stopped(run_group, tmp_path: Path) -> None:
    whole = run_group(2, _train_and_save, tmp_path)
    resumed = run_group(2, _resume, tmp_path)
    for (parameters, epoch), (others, other_epoch, resumed_at) in zip(whole, resumed, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(parameters, others, strict=True))
        assert (epoch, other_epoch, resumed_at) == (1, 1, 4)


def _save_within_a_round(rank, folder, steps_per_epoch):
    """Parameters of a run with local steps before and after it saved its state."""
    config = replace(CONFIG, method="half", local_steps=LocalSteps(low=3, high=3))
    guest = Guest(config=config, steps_per_epoch=steps_per_epoch)
    guest.train(range(4))
    before = guest.parameters()
    accordion_ray.save_state(guest.session, folder)
    return before, guest.parameters(), guest.session.epoch


@pytest.mark.parametrize("steps_per_epoch", [None, 10])
def test_a_state_is_saved_at_the_end_of_a_round(run_group, tmp_path: Path, steps_per_epoch) -> None:
    (before, after, epoch), (others_before, others_after, _) = run_group(
        2, _save_within_a_round, tmp_path, steps_per_epoch
    )
    assert not any(torch.equal(a, b) for a, b in zip(before, others_before, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(after, others_after, strict=True))
    assert epoch == (1 if steps_per_epoch is None else 0)


def _end_epoch_within_a_round(rank):
    """Epoch of a run whose fourth step ends a window and an epoch, within a round."""
    local = LocalSteps(low=3, high=3)
    detector = DetectorConfig(window=Window(steps=4))
    config = replace(CONFIG, method="half", local_steps=local, detector=detector)
    guest = Guest(config=config, steps_per_epoch=4)
    guest.train(range(4))
    return guest.session.epoch, guest.session.rounds.steps


def test_an_epoch_that_ends_within_a_round_ends_once(run_group) -> None:
    assert run_group(2, _end_epoch_within_a_round) == [(1, 0)] * 2


def test_a_state_of_two_ranks_is_resumed_by_one_and_by_three(run_group, tmp_path: Path) -> None:
    run_group(2, _train_and_save, tmp_path)
    for world_size in (1, 3):
        ends = run_group(world_size, _resume, tmp_path)
        assert [resumed_at for _, _, resumed_at in ends] == [4] * world_size
        assert all(
            torch.equal(a, b) for end in ends for a, b in zip(ends[0][0], end[0], strict=True)
        )


def _two_models(rank, folder):
    """Residuals of two models, saved and resumed."""
    names = ("encoder", "decoder")
    saved = [Guest(name=name) for name in names]
    for guest, steps in zip(saved, (1, 3), strict=True):
        guest.train(range(steps))
        guest.save(folder)
    dist.barrier()
    resumed = [Guest(folder, name=name) for name in names]
    return [[guest.residuals() for guest in guests] for guests in (saved, resumed)]


def test_two_models_of_one_run_keep_their_residuals_apart(run_group, tmp_path: Path) -> None:
    for saved, resumed in run_group(2, _two_models, tmp_path):
        assert not torch.equal(*saved)
        assert all(torch.equal(a, b) for a, b in zip(saved, resumed, strict=True))


def _two_optimizers(rank):
    """Steps of a session whose model has two optimizers."""
    model, _ = build()
    weights = list(model.parameters())
    optimizers = [torch.optim.SGD(weights[:3], lr=0.1), torch.optim.AdamW(weights[3:], lr=0.01)]
    with train_worker(rank, 2, None):
        session = accordion_ray.attach(model, optimizers, CONFIG, register=False)
    for step in range(3):
        backward(model, rank, step)
        for optimizer in optimizers:
            optimizer.step()
    return session.steps


def test_two_optimizers_of_one_model_take_one_step_of_the_session(run_group) -> None:
    assert run_group(2, _two_optimizers) == [3, 3]


def _attach_twice(rank, names):
    """What a second session of one training function is told."""
    with train_worker(rank, 2, None):
        for name in names:
            try:
                accordion_ray.attach(*build(), CONFIG, register=False, name=name, timeout_s=5.0)
            except AccordionError as error:
                return str(error)
    return "accepted"


@pytest.mark.parametrize("names", [(None, None), (None, "r"), ("a/b", "a-b"), ("a b", "a-b")])
def test_a_second_session_of_a_run_with_the_same_name_is_refused(run_group, names) -> None:
    for told in run_group(2, _attach_twice, names):
        assert "give each model its own name=" in told


def test_sessions_of_a_run_with_names_of_their_own_are_accepted(run_group) -> None:
    assert run_group(2, _attach_twice, (None, "a", "b")) == ["accepted"] * 2


def _notice(rank, told, steps_per_epoch):
    """Steps after which a save is due, if rank 1 is told after step 2 and rank 0 after step 4;
    epochs before and after the save is reported.
    """
    known = []
    guest = Guest(has_node_notice=lambda: bool(known), steps_per_epoch=steps_per_epoch)
    due = []
    for step in range(8):
        if step == told[rank]:
            known.append(True)
        guest.train(range(step, step + 1))
        if accordion_ray.save_is_due(guest.session):
            due.append(step)
    follower = follower_of(guest.session)
    follower.begin_report({})
    epoch = guest.session.epoch
    guest.train(range(8, 9))
    follower.begin_report({})
    return due, epoch, guest.session.epoch


def test_a_leaving_node_makes_a_save_due_once_and_everywhere_at_one_step(run_group) -> None:
    for result in run_group(2, _notice, {0: 4, 1: 2}, None):
        assert result == ([3], 0, 1)  # the report of the save ends no epoch, the next one does
    for result in run_group(2, _notice, {0: 4, 1: 2}, 100):
        assert result == ([3], 0, 0)
    assert run_group(1, _notice, {0: 3}, None) == [([4], 0, 1)]
    assert run_group(2, _notice, {0: 9, 1: 9}, None) == [([], 1, 2)] * 2


def test_only_sessions_of_guests_know_of_nodes(run_group) -> None:
    assert run_group(1, _ask_for_another)[0].startswith("save_is_due() got a session that")


def _ask_for_another(rank):
    model, optimizer = build()
    session = accordion.attach(model, CONFIG, optimizer=optimizer)
    with pytest.raises(AccordionError) as raised:
        accordion_ray.save_is_due(session)
    return str(raised.value)
