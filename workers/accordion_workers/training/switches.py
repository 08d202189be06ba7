"""Records of a switch: a decision that all workers follow from a step on."""

from __future__ import annotations

from accordion.base.messages import plan_digest
from accordion.session.session import Switch
from accordion_workers.records.contract import AcksRecord, DecisionRecord
from accordion_workers.training.train_state import TrainState


def finish_round(state: TrainState) -> None:
    """End a round of local steps early, on all ranks; report the decision of a window that ended
    within it.
    """
    switch = state.session.finish_round()
    if switch is not None:
        report_switch(state, switch)


def report_switch(state: TrainState, switch: Switch) -> None:
    """Report on rank 0 the decision that all workers switched to, with the plan that each of them
    runs.
    """
    for record in switch_records(switch):
        state.context.link.post(record)


def switch_records(switch: Switch) -> tuple[DecisionRecord, AcksRecord]:
    """Return the records of a switch: the decision, and every rank's acknowledgement of its
    plan.
    """
    decision = switch.decision
    acks = AcksRecord(
        epoch=decision.epoch,
        step=decision.step,
        world_size=len(switch.acks),
        digest=plan_digest(
            decision.level_by_layer,
            decision.global_batch,
            decision.exchange_plan,
            local_steps=decision.local_steps,
            optimizer=decision.optimizer,
        ),
        override_ids=decision.override_ids,
        acks=switch.acks,
    )
    return DecisionRecord(decision=decision), acks


__all__ = ["finish_round", "report_switch", "switch_records"]
