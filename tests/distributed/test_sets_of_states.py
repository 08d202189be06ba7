"""Loading complete and incomplete sets of saved states, and saving on rank 0 only."""

from __future__ import annotations

import io

import pytest
import torch
import torch.distributed as dist

from accordion.base.errors import StateError
from tests.distributed import small

STEPS = 3


def _bytes_of(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _read(saved):
    return torch.load(io.BytesIO(saved), weights_only=True)


def _train_and_save(rank):
    """Return states of two steps, the gathered states, and the parameters after three more
    steps.
    """
    ddp, session, optimizer = small.start_with_optimizer("topk")
    small.train(session, ddp, rank, range(1))
    early = session.state_dict()
    small.train(session, ddp, rank, range(1, STEPS))
    gathered = session.gather_state_dict()
    saved = [_bytes_of(state) for state in (session.state_dict(), early, gathered)]
    rest = _bytes_of((small.parameters(ddp), optimizer.state_dict()))
    small.train(session, ddp, rank, range(STEPS, 2 * STEPS))
    return *saved, rest, small.parameters(ddp)


def _gather_and_load(rank):
    """Return the size of another rank's state, the wire bytes that its gather added, and the counts
    of this session and of one that continues from the gathered states.
    """
    ddp, session = small.start("topk")
    small.train(session, ddp, rank, range(STEPS))
    size, before = len(_bytes_of(session.state_dict())), session.ledger.total.wire
    states = [session.gather_state_dict()]
    added = session.ledger.total.wire - before
    dist.broadcast_object_list(states)
    _, resumed = small.start("topk")
    resumed.load_state_dict(states[0])
    return size, added, session.ledger.by_collective, resumed.ledger.by_collective


def test_a_gather_of_states_is_counted_also_in_the_state_that_it_gathers(run_group):
    for size, added, counted, resumed in run_group(3, _gather_and_load):
        assert added == pytest.approx(2 * size / 3, rel=0.05)  # rank 0's also holds the controller
        assert resumed == counted


@pytest.fixture(scope="module")
def two(run_group):
    return run_group(2, _train_and_save)


def _offer(rank, offers):
    """Return the message of `load_state_dict` for each offer, and what the session holds
    afterwards.
    """
    _, session = small.start("topk")
    sentences = []
    for saved in offers:
        states = _read(saved)
        try:
            session.load_state_dict(states[rank] if isinstance(states, tuple) else states)
            sentences.append("loaded")
        except StateError as error:
            sentences.append(str(error))
    return sentences, session.steps, session.state_dict()["engine"]["residuals"]


def _refusals(run_group, world_size, *offers):
    results = run_group(world_size, _offer, [_bytes_of(offer) for offer in offers])
    assert all((steps, residuals) == (0, {}) for _, steps, residuals in results)
    return [sentences for sentences, _, _ in results]


def test_the_state_of_rank_0_alone_is_refused_by_all_workers_with_the_way_out(run_group, two):
    only = _read(two[0][0])
    for sentences in _refusals(run_group, 2, [only], only):
        assert all(
            "rank 0 of a group of 2" in text and "gather_state_dict()" in text for text in sentences
        )


def test_sets_that_are_unordered_torn_or_doubled_are_refused_by_all_workers(run_group, two):
    (first, second), early = (_read(own[0]) for own in two), _read(two[1][1])
    found = _refusals(
        run_group,
        2,
        [second, first],
        [first, early],
        [first, first],
        ([first, second], [second, first]),
    )
    for order, torn, doubled, one_rank in found:
        assert "of ranks [1, 0]; pass them in rank order" in order
        assert "of different steps: [3, 1]" in torn
        assert "of ranks [0, 0] of a group of 2" in doubled
        assert "of ranks [1, 0]" in one_rank


def test_a_state_without_rank_and_group_size_is_refused(run_group, two):
    states = [
        {k: v for k, v in _read(own[0]).items() if k not in {"rank", "world_size"}} for own in two
    ]
    (text,), _ = _refusals(run_group, 2, states)
    assert "got a value that is not a saved state; pass a list of the states of all" in text


def test_states_that_cannot_be_combined_are_refused(run_group, two):
    first, second = (_read(own[0]) for own in two)
    cut = {layer: value[:1] for layer, value in second["engine"]["residuals"].items()}
    other = {**second, "engine": {**second["engine"], "residuals": cut}}
    of_three = [
        {**state, "rank": rank, "world_size": 3}
        for rank, state in enumerate((first, second, other))
    ]
    sizeless = [{**state, "world_size": None} for state in (first, second)]
    (mixed, unsized), _ = _refusals(run_group, 2, of_three, sizeless)
    assert "saved state cannot be read" in mixed
    assert "world_size None" in unsized


def _continue(rank, states_by_rank, rest):
    ddp, session, optimizer = small.start_with_optimizer("topk")
    parameters, optimizer_state = _read(rest)
    for parameter, value in zip(ddp.module.parameters(), parameters, strict=True):
        parameter.data.copy_(value)
    optimizer.load_state_dict(optimizer_state)
    session.load_state_dict(_read(states_by_rank[rank]))
    small.train(session, ddp, rank, range(STEPS, 2 * STEPS))
    return small.parameters(ddp)


@pytest.mark.parametrize("way", ["gathered on rank 0", "each worker its own"])
def test_a_complete_set_continues_as_if_never_stopped(run_group, two, way):
    own = [saved for saved, *_ in two]
    states = own if way == "each worker its own" else [two[0][2]] * 2
    for found in run_group(2, _continue, states, two[0][3]):
        assert all(torch.equal(a, b) for a, b in zip(found, two[0][4], strict=True))


def _mean_owed(rank, gathered):
    _, session = small.start("topk")
    session.load_state_dict(_read(gathered))
    return session.state_dict()["engine"]["residuals"]


def test_a_gathered_state_owes_the_same_in_a_group_of_another_size(run_group, two):
    saved = [_read(own[0])["engine"]["residuals"] for own in two]
    for owed in run_group(3, _mean_owed, two[0][2]):
        for layer, value in owed.items():
            torch.testing.assert_close(value, sum(own[layer] for own in saved) / 2)


def test_only_rank_0_gets_the_gathered_state(two):
    assert [_read(own[2]) is None for own in two] == [False, True]
