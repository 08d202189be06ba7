"""Saved states of a session's workers: checks for completeness, gathering and averaging.

Residuals differ from worker to worker, so the state of one rank does not describe a group.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from accordion.base.errors import StateError
from accordion.base.messages import Decision, decision_from_json
from accordion.compress.compression_engine import Engine
from accordion.compress.feedback import mean_residuals_, sum_residuals_
from accordion.compress.ledger import Ledger
from accordion.decide.controller import Controller
from accordion.session.coordination import Coordinator
from accordion.session.local_rounds import Rounds

_KEYS = {
    *("rank", "world_size", "shards", "steps", "skipped_steps", "epoch", "lr"),
    *("decision", "controller", "engine", "outer_momentum"),
}
"""Keys of every saved state."""
_GATHERED = "states"
_WAY_OUT = (
    "pass a list of the states of all workers in rank order, or the result of gather_state_dict()"
    " on rank 0"
)

State = Mapping[str, Any]


def state_file(name: str = "") -> str:
    """Return the name of the file for a session's state in a checkpoint's folder."""
    return f"accordion-{name}.pt" if name else "accordion.pt"


def merge_states(payloads: Sequence[bytes | bytearray]) -> dict[str, Any]:
    """Return one state that contains those of all workers, given serialized in rank order.

    Their ledgers count this gather, which they precede, so that a resumed run reports the same
    bytes as an uninterrupted one.
    """
    states = []
    for payload in payloads:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
        ledger = Ledger(len(payloads))
        ledger.restore(ledger.parse_tables(state["engine"]["ledger"]))
        ledger.count_gather_on_rank_0([len(one) for one in payloads])
        state["engine"]["ledger"] = ledger.state_dict()
        states.append(state)
    return {_GATHERED: states}


def serialize_state(state: State) -> bytes:
    """Return a state as bytes that `merge_states` can read."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def complete_states(given: object, *, rank: int, world_size: int) -> list[State]:
    """Return the states to load: those of the whole saved group, or only this worker's own.

    Its own state is enough if the world size is the saved one and every worker loads its own.

    Raises:
        StateError: the set is incomplete, out of order, from different steps, or contains anything
            other than states.
    """
    states = _list_states(given)
    ranks, sizes = (
        [state["rank"] for state in states],
        sorted({state["world_size"] for state in states}),
    )
    if len(sizes) > 1:
        raise StateError(
            f"load_state_dict() got states of groups of {sizes} workers; pass the states of one"
            " group"
        )
    if ranks == [rank] and sizes == [world_size]:
        return states
    if ranks != list(range(sizes[0])):
        raise StateError(_describe_incomplete(ranks, sizes[0]))
    steps = [state["steps"] for state in states]
    if len(set(steps)) > 1:
        raise StateError(
            f"load_state_dict() got states of different steps: {steps}; pass states saved at the"
            " same step"
        )
    return states


def load_on_all_workers(
    engine: Engine,
    controller: Controller,
    states: object,
    *,
    coordinator: Coordinator,
    rounds: Rounds,
) -> State:
    """Load saved states on all workers, or on none; return this worker's state.

    Raises:
        StateError: on some worker the states are incomplete, out of order, or of another model;
            raised on all workers.
    """
    rank, world_size = coordinator.rank, coordinator.world_size
    before = engine.back_up_state(), controller.state_dict()
    problem: StateError | None = None
    loaded: State = {}
    try:
        given = states() if callable(states) else states
        chosen = complete_states(given, rank=rank, world_size=world_size)
        own = state_of_rank(chosen, rank, world_size=world_size, shards=coordinator.num_shards)
        loaded = _load_states(engine, controller, own, rank=rank)
        rounds.check_momentum(loaded["outer_momentum"])
        summary = {key: loaded[key] for key in ("steps", "world_size", "decision")}
    except StateError as error:
        problem, summary = error, {"error": str(error)}
    try:
        coordinator.require_equal_states(summary)
    except StateError as error:
        engine.restore_backup(before[0])
        controller.load_state_dict(before[1])
        raise (problem or error) from problem
    return loaded


def _load_states(engine: Engine, controller: Controller, own: State, *, rank: int) -> State:
    """Load what `state_of_rank` returned, and return it.

    Raises:
        StateError: the state is of another model, or rank 0's lacks its controller.
    """
    parse_decision(own["decision"])
    if rank == 0 and own["controller"] is None:
        raise StateError(
            "load_state_dict() got a state of rank 0 without its controller; pass the state that"
            " rank 0 saved"
        )
    if own["controller"] is not None:
        controller.load_state_dict(own["controller"])
    engine.load_state_dict(own["engine"])
    return own


def state_of_rank(states: Sequence[State], rank: int, *, world_size: int, shards: int = 1) -> State:
    """Return the state that a worker loads, given what `complete_states` returned.

    In a group of another size than the saved one, that is the mean of all states, or of those of
    the same part of the model if `shards` workers hold it together.

    Raises:
        StateError: the states cannot be averaged, or are of other parts.
    """
    if (saved := states[0]["shards"]) != shards:
        raise StateError(
            f"load_state_dict() got states of a model in {saved} shards, and it is in {shards} now;"
            " residuals follow no other division: shard it as before, or go on without these states"
        )
    controller = {"controller": states[0]["controller"]}
    if states[0]["world_size"] == world_size:
        return {**states[min(rank, len(states) - 1)], **controller}
    same_part = states[rank % shards :: shards]
    mean = MeanState(len(same_part))
    for state in same_part:
        mean.add(state)
    return {**mean.result(), **controller}


class MeanState:
    """Averages the states of a group of `size` workers, added in rank order, for a group of another
    size.

    Residuals follow their law (`accordion.compress.feedback`). All fields other than residuals and
    window are rank 0's. Only the running sums are kept in memory, never the states.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.count = 0
        """Number of states added so far."""
        self._first: dict[str, Any] = {}
        self._residuals: dict[str, Tensor] = {}
        self._window: dict[str, Tensor] = {}
        self._versions: set[int | None] = set()

    def add(self, state: State) -> None:
        """Add the state of the next rank.

        Raises:
            StateError: a tensor has another size than in the states before; nothing is added then.
        """
        try:
            engine = dict(state["engine"])
            window, residuals = dict(engine.pop("window")), dict(engine.pop("residuals"))
            sums = dict(window.pop("sums"))
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"saved state cannot be read ({error!r}); pass what state_dict() returned"
            ) from error
        _check_sizes(self._residuals, residuals)
        _check_sizes(self._window, sums)
        self._first = self._first or {**state, "engine": {**engine, "window": window}}
        sum_residuals_(self._residuals, residuals)
        for layer, saved in sums.items():
            part, total = saved / self.size, self._window.get(layer)
            self._window[layer] = part if total is None else total.add_(part)
        self._versions.add(window.get("version"))
        self.count += 1

    def result(self) -> State:
        """Return the mean after all states were added; it uses the memory of the sums."""
        residuals = mean_residuals_(self._residuals, self.size)
        # Windows of several versions do not add up; without a version the window starts again.
        version = self._versions.pop() if len(self._versions) == 1 else None
        engine = self._first["engine"]
        window = {**engine["window"], "version": version, "sums": self._window}
        engine = {**engine, "residuals": residuals, "window": window}
        return disown_window({**self._first, "engine": engine})


def disown_window(state: State) -> State:
    """Return a state for a worker that did not save it: the sums of its open window, if that has
    steps, are not the worker's own.
    """
    engine = state["engine"]
    window = {**engine["window"], "are_own": not engine["window"]["steps"]}
    return {**state, "engine": {**engine, "window": window}}


def _check_sizes(totals: Mapping[str, Tensor], added: Mapping[str, Tensor]) -> None:
    for layer, value in added.items():
        if layer in totals and value.numel() != totals[layer].numel():
            raise StateError(
                f"saved state cannot be read: layer {layer!r} has {value.numel()} values on one"
                f" rank and {totals[layer].numel()} on another; pass what state_dict() returned"
                " on each rank"
            )


def _describe_incomplete(ranks: Sequence[object], saved_size: int) -> str:
    if ranks == [0]:
        found = (
            f"only the state of rank 0 of a group of {saved_size}, but every worker has its own"
            " residuals"
        )
    elif sorted(map(str, ranks)) == sorted(map(str, range(saved_size))):
        return f"load_state_dict() got the states of ranks {ranks}; pass them in rank order"
    else:
        found = f"the states of ranks {ranks} of a group of {saved_size}"
    return f"load_state_dict() got {found}; {_WAY_OUT}"


def _list_states(given: object) -> list[State]:
    if isinstance(given, Mapping):
        given = given.get(_GATHERED, [given])
    if not isinstance(given, Sequence) or isinstance(given, str | bytes) or not given:
        raise StateError(f"load_state_dict() got no states; {_WAY_OUT}")
    for state in given:
        if not isinstance(state, Mapping) or _KEYS - state.keys():
            raise StateError(f"load_state_dict() got a value that is not a saved state; {_WAY_OUT}")
        if not (isinstance(state["rank"], int) and isinstance(state["world_size"], int)):
            raise StateError(
                f"load_state_dict() got a state of rank {state['rank']!r} and world_size "
                f"{state['world_size']!r}; both must be whole numbers"
            )
    return list(given)


def parse_decision(saved: Any) -> Decision:
    """Read the decision of a saved state.

    Raises:
        StateError: the decision cannot be read.
    """
    try:
        return decision_from_json(saved)
    except (KeyError, TypeError, AttributeError) as error:
        raise StateError(
            f"saved decision cannot be read ({error!r}); pass what state_dict() returned"
        ) from error
