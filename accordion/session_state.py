"""Saved states of a session's workers: which sets are complete, and how one rank comes by all of them.

What compression left out differs from worker to worker, so the state of one rank alone does not describe a group.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from accordion.errors import StateError
from accordion.messages import Decision, decision_from_json

_KEYS = {"steps", "skipped_steps", "epoch", "lr", "decision", "controller", "engine"}
"""What every state holds, beside the rank and the size of the group that saved it."""
_GATHERED = "states"
_WAY_OUT = (
    "give a list of the states of all workers in the order of their ranks, or what gather_state_dict() gave on rank 0"
)

State = Mapping[str, Any]


def gathered_state(payloads: Sequence[bytes | bytearray]) -> dict[str, Any]:
    """Return one state that holds those of all workers, from their serialized forms in rank order."""
    return {_GATHERED: [torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True) for payload in payloads]}


def serialized(state: State) -> bytes:
    """Return a state as bytes that `gathered_state` reads."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def complete_states(given: object, *, rank: int, world_size: int) -> list[State]:
    """Return the states to load: those of the whole saved group, or this worker's own alone.

    Its own is enough in a group of the saved size, as long as every other worker loads its own too.

    Raises:
        StateError: the set is incomplete, out of order, of different steps, or holds something else than states.
    """
    states = _listed(given)
    ranks, sizes = [state["rank"] for state in states], sorted({state["world_size"] for state in states})
    if len(sizes) > 1:
        raise StateError(f"load_state_dict() got states of groups of {sizes} workers; give those of one group")
    if ranks == [rank] and sizes == [world_size]:
        return states
    if ranks != list(range(sizes[0])):
        raise StateError(_incomplete(ranks, sizes[0]))
    steps = [state["steps"] for state in states]
    if len(set(steps)) > 1:
        raise StateError(f"load_state_dict() got states of different steps: {steps}; give those of one moment")
    return states


def _incomplete(ranks: Sequence[object], saved_size: int) -> str:
    if ranks == [0]:
        found = f"the state of rank 0 of a group of {saved_size} alone, and every worker has residuals of its own"
    elif sorted(map(str, ranks)) == sorted(map(str, range(saved_size))):
        return f"load_state_dict() got the states of ranks {ranks}; give them in the order of their ranks"
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
            raise StateError(f"load_state_dict() got something else than what state_dict() gave; {_WAY_OUT}")
        if not {"rank", "world_size"} <= state.keys():
            raise StateError(
                "load_state_dict() got a state that does not say whose it is, saved by an older version; set "
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
        StateError: it cannot be read.
    """
    try:
        return decision_from_json(saved)
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"saved decision cannot be read ({error!r}); give what state_dict() gave") from error
