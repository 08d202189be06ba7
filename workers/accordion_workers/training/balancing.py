"""Gives faster workers more micro-batches of each global batch, by the measured speed of all.

With an even division all workers wait for the slowest. The averaged gradient does not depend on the
division, because the weight of a micro-batch does not depend on the worker that computes it
(`sampler.loss_weight`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accordion_workers.training.sampler import balanced_counts, even_counts, micro_batches
from accordion_workers.training.slow_work import gather_objects

if TYPE_CHECKING:
    from accordion_workers.training.train_state import TrainState

OWN_WORK = ("load", "compute")
"""Phases of a step in which a worker does its own share of the work, for which others wait."""
MIN_GAIN = 0.1
"""Smallest saving of the slowest worker's time, as a share, for which the division changes. Smaller
ones come and go with the noise of shared machines.
"""
MIN_MEASURED_S = 5.0
"""Shortest time that the slowest worker must have computed before speeds are compared."""
SETTLING_STEPS = 3
"""First steps of a group, which are not measured: they compile and allocate."""


@dataclass(slots=True, kw_only=True)
class Division:
    """How a batch's micro-batches are divided among the workers; equal on all ranks."""

    world_size: int
    num_shards: int = 1
    """Workers that hold one model together; a pass of one is a pass of all of them."""
    follows_speed: bool = False
    """Whether faster workers may take more."""
    micro_batch_s: tuple[float, ...] = ()
    """Measured seconds per micro-batch by rank on which the division is based; empty if it is even.
    """

    def counts(self, number: int) -> tuple[int, ...]:
        """Return how many of a batch's micro-batches each rank takes."""
        if not self.micro_batch_s:
            return even_counts(number, self.world_size, shards=self.num_shards)
        return balanced_counts(number, self.micro_batch_s)

    @property
    def is_sharded(self) -> bool:
        """Whether workers hold the model together."""
        return self.num_shards > 1

    def idle_passes(self, own: int, counts: Sequence[int]) -> int:
        """Return how many passes without samples a rank with `own` micro-batches runs beside them:
        workers that hold a model together run as many passes as the others, and all at least one.
        """
        return max(counts if self.is_sharded else (1, own)) - own

    def follow_(self, micro_batch_s: tuple[float, ...], number: int) -> bool:
        """Base the division on newly measured times if a batch of `number` micro-batches gains at
        least `MIN_GAIN` by it; return whether it does.
        """
        then_s = _slowest_s(balanced_counts(number, micro_batch_s), micro_batch_s)
        if then_s > (1.0 - MIN_GAIN) * _slowest_s(self.counts(number), micro_batch_s):
            return False
        self.micro_batch_s = micro_batch_s
        return True


@dataclass(slots=True, kw_only=True)
class OwnWork:
    """What this rank computed since the speeds were last compared."""

    samples: int = 0
    steps: int = 0
    """Steps of this group, including those that were not measured."""
    seconds_before: float = 0.0
    """Seconds of own work before the first of these samples."""

    def end_step(self, samples: int, seconds_by_phase: Mapping[str, float]) -> None:
        """Count a step of this rank; the first `SETTLING_STEPS` are not measured."""
        self.samples += samples
        self.steps += 1
        if self.steps <= SETTLING_STEPS:
            self.start(seconds_by_phase)

    def measured(self, seconds_by_phase: Mapping[str, float]) -> tuple[float, int]:
        """Return the seconds of own work, and the samples that they took."""
        return _own_s(seconds_by_phase) - self.seconds_before, self.samples

    def start(self, seconds_by_phase: Mapping[str, float]) -> None:
        """Start a new measurement."""
        self.samples, self.seconds_before = 0, _own_s(seconds_by_phase)


def balance_workers(state: TrainState) -> None:
    """Divide later batches by the speed of the workers, if it was measured for long enough and the
    gain is large enough; all ranks together, between two steps.

    Raises:
        RuntimeError: another worker is gone.
    """
    number = _micro_batches_of_a_batch(state)
    if not state.division.follows_speed or number <= state.context.world_size:
        return
    seconds_by_phase = state.phases.seconds
    with state.phases("decide"):
        found = gather_objects(state, state.own_work.measured(seconds_by_phase))
    if max(seconds for seconds, _ in found) < MIN_MEASURED_S or min(done for _, done in found) < 1:
        return
    state.own_work.start(seconds_by_phase)
    # By samples, because the last micro-batch of a batch may be short.
    size = state.spec.training.micro_batch
    if state.division.follow_(tuple(size * seconds / done for seconds, done in found), number):
        _log_division(state, number)


def can_balance(state: TrainState) -> bool:
    """Return whether the job asks for it, and speeds can be measured: on a GPU, the host's clock
    does not see how long a micro-batch computes, and in a sharded model all wait for each other.
    """
    context = state.context
    has_peers = context.world_size > 1 and not state.division.is_sharded
    return has_peers and state.spec.workers.balance and not context.device.startswith("cuda")


def micro_batches_by_rank(state: TrainState) -> tuple[int, ...]:
    """Return the micro-batches of a global batch that each rank takes; empty in a script, which may
    divide batches itself.
    """
    if state.own_work.steps == 0:
        return ()
    return state.division.counts(_micro_batches_of_a_batch(state))


def _micro_batches_of_a_batch(state: TrainState) -> int:
    return len(micro_batches(range(state.session.global_batch), state.spec.training.micro_batch))


def _own_s(seconds_by_phase: Mapping[str, float]) -> float:
    return sum(seconds_by_phase[phase] for phase in OWN_WORK)


def _slowest_s(counts: tuple[int, ...], micro_batch_s: tuple[float, ...]) -> float:
    return max(count * seconds for count, seconds in zip(counts, micro_batch_s, strict=True))


def _log_division(state: TrainState, number: int) -> None:
    if state.context.rank == 0:
        times = ", ".join(f"{1e3 * seconds:.3g}" for seconds in state.division.micro_batch_s)
        counts = ", ".join(map(str, state.division.counts(number)))
        state.context.link.log(
            f"a micro-batch takes the workers {times} ms; of the {number} micro-batches of a batch"
            f" they take {counts} from now on"
        )


__all__ = [
    "MIN_GAIN",
    "MIN_MEASURED_S",
    "OWN_WORK",
    "SETTLING_STEPS",
    "Division",
    "OwnWork",
    "balance_workers",
    "can_balance",
    "micro_batches_by_rank",
]
