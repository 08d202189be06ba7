"""A worker group that lost a member continues from the newest round that its survivors remember.

Before each round of local steps, every worker copies its state into the memory of its process. The
copy is named as a checkpoint of that moment would be, so `Lineage` tells whether the job still may
continue from it. The next group continues from what its rank 0 remembers, if that is newer than the
newest checkpoint; members that do not remember the same, such as new processes, get it from rank 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accordion.session.saved_states import disown_window
from accordion_workers.checkpoint.broadcast import broadcast_state
from accordion_workers.checkpoint.checkpoint_files import checkpoint_name
from accordion_workers.checkpoint.lineage import Lineage
from accordion_workers.training.context import RoundMemory, RoundState
from accordion_workers.training.slow_work import decide_on_rank_0, gather_objects
from accordion_workers.training.snapshot import (
    copy_to_cpu,
    load_state,
    map_tensors,
    model_state,
    rank_state,
    shared_state,
)
from accordion_workers.training.train_state import TrainState

MAX_BYTES = 1 << 30
"""Largest state that a process remembers: that of 90 million parameters with AdamW."""
MAX_SHARE = 0.25
"""Largest share of `workers.memory` for what a process remembers."""


def remember_round(state: TrainState) -> None:
    """Remember the state before a round of local steps, in place of the one before; all ranks
    together, at every step boundary.

    Raises:
        RuntimeError: another worker is gone.
    """
    memory = _memory_of(state)
    if memory is None or not state.session.rounds.begins:
        return
    _share_decided(state, memory)
    if memory.is_too_large:
        return
    shared = {
        **shared_state(state),
        **model_state(state),
        "controller": memory.decided["controller"],
    }
    own = {
        **rank_state(state),
        "statistic": memory.decided["statistic"],
        "agreement": memory.decided["agreement"],
        "samples_at_averaging": state.samples_at_averaging,
    }
    if memory.newest is None and _is_too_large(state, (shared, own)):
        memory.is_too_large = True
        return
    # Two copies at a time would take twice the memory.
    memory.newest = None
    memory.newest = RoundState(
        name=checkpoint_name(state.context.generation, state.position),
        epoch=state.position.epoch,
        shared=copy_to_cpu(shared),
        own=copy_to_cpu(own),
    )


def recall_round(state: TrainState, lineage: Lineage, newest_checkpoint: str | None) -> str | None:
    """Continue from the newest round that rank 0 remembers, and return the name of its state; None
    if the job is to continue from its newest checkpoint. All ranks together, before any step.

    Raises:
        RuntimeError: another worker is gone.
    """
    memory = _memory_of(state)
    if memory is None:
        return None
    remembered = memory.newest and (memory.newest.name, memory.newest.epoch)
    by_rank: list[tuple[str, int] | None] = gather_objects(state, remembered)
    first = by_rank[0]
    if first is None or not may_continue(first, lineage, newest_checkpoint):
        memory.newest = None
        return None
    if len(set(by_rank)) > 1:
        sent = broadcast_state(memory.newest, state.context.peers, device=state.context.device)
        if sent is not None and remembered != first:
            memory.newest = _for_other_rank(sent)
    _load(state, memory)
    return first[0]


def may_continue(
    remembered: tuple[str, int], lineage: Lineage, newest_checkpoint: str | None
) -> bool:
    """Return whether a job continues from a remembered state, given as name and epoch: it is on the
    surviving line, not older than the newest checkpoint, and the records hold all of its epochs.
    """
    name, epoch = remembered
    names = [name] if newest_checkpoint is None else [name, newest_checkpoint]
    return not lineage.missing_epochs(epoch) and lineage.survivors(names)[:1] == [name]


def _memory_of(state: TrainState) -> RoundMemory | None:
    """Return the memory of this process; None where rounds are not remembered."""
    return state.context.memory if state.spec.remembers_rounds else None


def _share_decided(state: TrainState, memory: RoundMemory) -> None:
    """Let all ranks know what only rank 0 knows, which changes with a decision."""
    if memory.decision is state.session.decision:
        return
    memory.decided = decide_on_rank_0(
        state,
        lambda: {
            "controller": state.session.controller.state_dict(),
            "statistic": state.decider.statistic and dict(state.decider.statistic),
            "agreement": state.decider.agreement,
        },
    )
    memory.decision = state.session.decision


def _for_other_rank(sent: RoundState) -> RoundState:
    """Return rank 0's state for a rank that has trained on nothing of the open epoch."""
    own = {
        **sent.own,
        "session": disown_window(sent.own["session"]),
        "loss": {"total": 0.0, "samples": 0},
        "samples_at_averaging": 0,
    }
    return RoundState(name=sent.name, epoch=sent.epoch, shared=sent.shared, own=own)


def _load(state: TrainState, memory: RoundMemory) -> None:
    """Load a copy of what is remembered, which is needed again if this group is lost."""
    if memory.newest is not None:
        own: dict[str, Any] = copy_to_cpu(memory.newest.own)
        load_state(state, copy_to_cpu(memory.newest.shared), own)
        state.samples_at_averaging = own["samples_at_averaging"]


def _is_too_large(state: TrainState, parts: Sequence[Any]) -> bool:
    """Return whether a copy would take too much memory; rank 0 writes that to the job's log."""
    sizes: list[int] = []
    map_tensors(parts, lambda tensor: sizes.append(tensor.nbytes))
    limit = state.spec.workers.memory
    most_bytes = MAX_BYTES if limit is None else min(MAX_BYTES, int(MAX_SHARE * limit))
    if sum(sizes) <= most_bytes:
        return False
    if state.context.rank == 0:
        state.context.link.log(
            "the state of this job is too large to be remembered"
            f" ({sum(sizes) / 1e6:,.0f} MB, the limit is {most_bytes / 1e6:,.0f} MB): if a worker"
            " is lost, the steps since the newest checkpoint are trained again; save checkpoints"
            " more often (checkpoint.every_steps) if they are many"
        )
    return True


__all__ = ["may_continue", "recall_round", "remember_round"]
