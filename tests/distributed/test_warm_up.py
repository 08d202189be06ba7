"""The warm-up in running sessions: the same levels on all ranks, also after a resume."""

from __future__ import annotations

import pytest
import torch

from accordion.base.messages import Override, plan_digest
from accordion.config import WarmUp
from tests.distributed import small

STEPS, WARM_STEPS = 7, 4


def _start(warm_up):
    return small.start("powersgd", warm_up=warm_up)


def _levels(rank, level):
    """Return the levels of each step, and the switches at its boundaries."""
    ddp, session = _start(WarmUp(steps=WARM_STEPS, level=level))
    levels, switches = [], []
    for step in range(STEPS):
        levels.append({one.name for one in session.decision.level_by_layer.values()})
        small.backward(ddp, rank, step)
        switches.append(session.step().switch)
        ddp.zero_grad()
    return levels, switches, small.parameters(ddp)


@pytest.mark.parametrize("level", ["none", "half"])
def test_the_warm_up_ends_at_one_step_boundary_on_all_ranks(run_group, level):
    (levels, switches, parameters), (others, _, other_parameters) = run_group(2, _levels, level)
    assert others == levels == [{level}] * WARM_STEPS + [{"low"}] * (STEPS - WARM_STEPS)
    (switch,) = [one for one in switches if one is not None]
    assert (switch.decision.cause, switch.decision.step) == ("warm_up", WARM_STEPS)
    digest = plan_digest(switch.decision.level_by_layer)
    assert [ack.digest for ack in switch.acks] == [digest, digest]
    assert all(torch.equal(a, b) for a, b in zip(parameters, other_parameters, strict=True))


def _stop_and_resume(rank, stop):
    """Return the parameters of a run that is saved and resumed, and of one that is not."""
    warm_up = WarmUp(steps=WARM_STEPS)
    whole, session = _start(warm_up)
    small.train(session, whole, rank, range(STEPS))
    first, before = _start(warm_up)
    small.train(before, first, rank, range(stop))
    again, after = _start(warm_up)
    again.load_state_dict(first.state_dict())
    after.load_state_dict(before.state_dict())
    # Plain SGD of the same steps: momentum is not what is compared.
    for ddp, one in ((first, before), (again, after)):
        small.train(one, ddp, rank, range(stop, STEPS))
    causes = [before.decision.cause, after.decision.cause]
    return causes, small.owed(before), small.owed(after), before.decision == after.decision


@pytest.mark.parametrize("stop", [2, WARM_STEPS, 6])
def test_a_resumed_run_ends_its_warm_up_where_it_would_have(run_group, stop):
    for causes, owed, owed_again, is_equal in run_group(2, _stop_and_resume, stop):
        assert causes == ["warm_up", "warm_up"]
        assert owed.keys() == owed_again.keys()
        assert is_equal


def _overridden(rank):
    """Return the levels of one layer in each step, with an override from the third on."""
    ddp, session = _start(WarmUp(steps=WARM_STEPS))
    levels = []
    for step in range(STEPS):
        if step == 2 and rank == 0:
            session.override([Override(id="o", level="high", layers=("last.*",))])
        small.backward(ddp, rank, step)
        session.step()
        ddp.zero_grad()
        decision = session.decision.level_by_layer
        levels.append((decision["last.weight"].name, decision["first.weight"].name))
    return levels


def test_an_override_holds_through_the_end_of_the_warm_up(run_group):
    levels, others = run_group(2, _overridden)
    assert others == levels
    assert levels == [("none", "none")] * 2 + [("high", "none")] + [("high", "low")] * 4
