"""Saved states of a session's workers: checks that a set is complete, and the form gathered on rank 0.

Residuals differ from worker to worker, so the state of one rank does not describe a group.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from accordion.errors import StateError
from accordion.messages import Decision, decision_from_json

_KEYS = {"steps", "skipped_steps", "epoch", "lr", "decision", "controller", "engine"}
"""Keys of every saved state, in addition to `rank` and `world_size`."""
_GATHERED = "states"
_WAY_OUT = "pass a list of the states of all workers in rank order, or the result of gather_state_dict() on rank 0"

State = Mapping[str, Any]


def gathered_state(payloads: Sequence[bytes | bytearray]) -> dict[str, Any]:
    """Return one state that contains those of all workers, given serialized in rank order."""
    states = [torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True) for payload in payloads]
    return {_GATHERED: states}


def serialized(state: State) -> bytes:
    """Return a state as bytes that `gathered_state` can read."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def complete_states(given: object, *, rank: int, world_size: int) -> list[State]:
    """Return the states to load: those of the whole saved group, or only this worker's own.

    Its own state is enough if the world size is the saved one and every worker loads its own.

    Raises:
        StateError: the set is incomplete, out of order, from different steps, or contains anything other
            than states.
    """
    states = _listed(given)
    ranks, sizes = [state["rank"] for state in states], sorted({state["world_size"] for state in states})
    if len(sizes) > 1:
        raise StateError(f"load_state_dict() got states of groups of {sizes} workers; pass the states of one group")
    if ranks == [rank] and sizes == [world_size]:
        return states
    if ranks != list(range(sizes[0])):
        raise StateError(_incomplete(ranks, sizes[0]))
    steps = [state["steps"] for state in states]
    if len(set(steps)) > 1:
        raise StateError(
            f"load_state_dict() got states of different steps: {steps}; pass states saved at the same step"
        )
    return states


def _incomplete(ranks: Sequence[object], saved_size: int) -> str:
    if ranks == [0]:
        found = f"only the state of rank 0 of a group of {saved_size}, but every worker has its own residuals"
    elif sorted(map(str, ranks)) == sorted(map(str, range(saved_size))):
        return f"load_state_dict() got the states of ranks {ranks}; pass them in rank order"
    else:
        found = f"the states of ranks {ranks} of a group of {saved_size}"
    return f"load_state_dict() got {found}; {_WAY_OUT}"


def _listed(given: object) -> list[State]:
    if isinstance(given, Mapping):
        given = given.get(_GATHERED, [given])
    if not isinstance(given, Sequence) or isinstance(given, str | bytes) or not given:
        raise StateError(f"load_state_dict() got no states; {_WAY_OUT}")
    for state in given:
        if not isinstance(state, Mapping) or _KEYS - state.keys():
            raise StateError(f"load_state_dict() got a value that is not a saved state; {_WAY_OUT}")
        if not {"rank", "world_size"} <= state.keys():
            raise StateError(
                "load_state_dict() got a state of an older version, without its rank and world size; set "
                "state['rank'] and state['world_size'] in the states of all workers"
            )
        if not (isinstance(state["rank"], int) and isinstance(state["world_size"], int)):
            raise StateError(
                f"load_state_dict() got a state of rank {state['rank']!r} and world_size "
                f"{state['world_size']!r}; both must be whole numbers"
            )
    return list(given)


def decision_of(saved: Any) -> Decision:
    """Read the decision of a saved state.

    Raises:
        StateError: the decision cannot be read.
    """
    try:
        return decision_from_json(saved)
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"saved decision cannot be read ({error!r}); give what state_dict() gave") from error
