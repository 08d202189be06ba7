"""Gives faster workers more micro-batches of each global batch, by the measured speed of all.

An even division makes all workers wait for the slowest. The division changes no sum: the weight of
a micro-batch does not depend on the worker that computes it (`sampler.loss_weight`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workers.training.sampler import balanced_counts, even_counts, micro_batches
from workers.training.slow_work import gather_objects

if TYPE_CHECKING:
    from workers.training.train_state import TrainState

OWN_WORK = ("load", "compute")
"""Phases of a step in which a worker does its own share of the work, for which others wait."""
MIN_GAIN = 0.1
"""Smallest saving of the slowest worker's time, as a share, for which the division changes. Smaller
ones come and go with the noise of shared machines.
"""
MIN_MEASURED_S = 5.0
"""Shortest time that the slowest worker must have computed before speeds are compared."""


@dataclass(slots=True, kw_only=True)
class Division:
    """How a batch's micro-batches are divided among the workers; equal on all ranks."""

    world_size: int
    piece_s: tuple[float, ...] = ()
    """Seconds per micro-batch by rank that the division follows; empty if it is even."""

    def counts(self, num_pieces: int) -> tuple[int, ...]:
        """Return how many of a batch's micro-batches each rank takes."""
        if not self.piece_s:
            return even_counts(num_pieces, self.world_size)
        return balanced_counts(num_pieces, self.piece_s)

    def follow(self, piece_s: tuple[float, ...], num_pieces: int) -> bool:
        """Follow newly measured seconds per micro-batch if a batch of `num_pieces` gains at least
        `MIN_GAIN` by it; return whether it does.
        """
        then_s = _slowest_s(balanced_counts(num_pieces, piece_s), piece_s)
        if then_s > (1.0 - MIN_GAIN) * _slowest_s(self.counts(num_pieces), piece_s):
            return False
        self.piece_s = piece_s
        return True


@dataclass(slots=True, kw_only=True)
class OwnWork:
    """This rank's micro-batches, and how many of them came before the last comparison of speeds."""

    pieces: int = 0
    """Micro-batches since this group began; stays 0 in a script that divides batches itself."""
    pieces_before: int = 0
    seconds_before: float = 0.0

    def since_comparison(self, seconds_by_phase: Mapping[str, float]) -> tuple[float, int]:
        """Return the seconds and the number of the micro-batches since then."""
        return _own_s(seconds_by_phase) - self.seconds_before, self.pieces - self.pieces_before

    def start_comparison(self, seconds_by_phase: Mapping[str, float]) -> None:
        """Count from now on."""
        self.pieces_before, self.seconds_before = self.pieces, _own_s(seconds_by_phase)


def balance_workers(state: TrainState) -> None:
    """Divide later batches by the speed of the workers, if it was measured for long enough and the
    gain is large enough; all ranks together, between two steps.
    """
    pieces = _pieces_of_a_batch(state)
    if not _can_balance(state, pieces):
        return
    found = gather_objects(state, state.own_work.since_comparison(state.phases.seconds))
    if max(seconds for seconds, _ in found) < MIN_MEASURED_S or min(done for _, done in found) < 1:
        return
    state.own_work.start_comparison(state.phases.seconds)
    if state.division.follow(tuple(seconds / done for seconds, done in found), pieces):
        _log_division(state, pieces)


def micro_batches_by_rank(state: TrainState) -> tuple[int, ...]:
    """Return the micro-batches of a global batch that each rank takes; empty if they are unknown,
    as in a script that divides batches itself.
    """
    return state.division.counts(_pieces_of_a_batch(state)) if state.own_work.pieces else ()


def _can_balance(state: TrainState, pieces: int) -> bool:
    """Return whether the job asks for it, there is something to divide, and speeds can be measured:
    on a GPU, the host's clock does not see how long a micro-batch computes.
    """
    context = state.context
    has_choice = 1 < context.world_size < pieces
    return has_choice and state.spec.workers.balance and not context.device.startswith("cuda")


def _pieces_of_a_batch(state: TrainState) -> int:
    return len(micro_batches(range(state.session.global_batch), state.spec.training.micro_batch))


def _own_s(seconds_by_phase: Mapping[str, float]) -> float:
    return sum(seconds_by_phase[phase] for phase in OWN_WORK)


def _slowest_s(counts: tuple[int, ...], piece_s: tuple[float, ...]) -> float:
    return max(count * seconds for count, seconds in zip(counts, piece_s, strict=True))


def _log_division(state: TrainState, pieces: int) -> None:
    if state.context.rank == 0:
        times = ", ".join(f"{1e3 * seconds:.3g}" for seconds in state.division.piece_s)
        counts = ", ".join(map(str, state.division.counts(pieces)))
        state.context.link.log(
            f"a micro-batch takes the workers {times} ms; of the {pieces} micro-batches of a batch"
            f" they take {counts} from now on"
        )


__all__ = [
    "MIN_GAIN",
    "MIN_MEASURED_S",
    "OWN_WORK",
    "Division",
    "OwnWork",
    "balance_workers",
    "micro_batches_by_rank",
]
