"""Warnings about a run that continues but does not behave as configured."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from accordion.base.messages import Decision, Level
from accordion.compress.ledger import Ledger
from accordion.config import Config
from accordion.hook.worker_networks import WorkerNetworks
from accordion.policies import POLICIES

STEPS_WITHOUT_EPOCH = 1000
"""Steps without the end of an epoch after which a run is warned whose levels wait for one. Epochs
may be longer, which nothing tells; a larger number would come too late in a loop without epochs.
"""
STEPS_BEFORE_GAIN = 20
"""Steps at the same levels whose bytes are compared with those of uncompressed gradients."""
WAIT_WARNING_S = 60.0
"""Seconds after which a worker that waits for the others' call warns."""
_LARGEST_SHARE = 0.8
"""Share of the uncompressed bytes above which a compression method saves too little to notice."""
_POLICIES_WITHOUT_WINDOWS = frozenset({"fixed", "scheduled", "legacy", "by_rate"})
_POLICIES_BY_EPOCH = frozenset({"scheduled", "legacy"})
"""Policies whose levels depend on the number of the epoch."""


class TrainingWarning(UserWarning):
    """Training continues, but does not behave as configured."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)


@contextmanager
def warn_of_wait(call: str, *, rank: int) -> Iterator[None]:
    """Warn if a call that every worker has to make waits for the others for long."""
    sentence = (
        f"rank {rank} has waited {WAIT_WARNING_S:g} s in {call}() for the other workers; call it on"
        " every worker, outside of conditions such as `if rank == 0:`"
    )
    timer = threading.Timer(WAIT_WARNING_S, partial(_warn, sentence))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class RunWatcher:
    """Warns of a run whose levels cannot change, or whose compression saves next to nothing.

    Rank 0 has one, unless decisions come from elsewhere. It warns at once if `epochs`, the length
    of the run, is too short for the detector's windows.
    """

    def __init__(self, config: Config, *, world_size: int, epochs: int | None) -> None:
        self._config = config
        self._steps = self._epochs = 0
        self._was_compared = False
        """Whether two windows were compared."""
        self._levels: Mapping[str, Level] = {}
        self._counted: tuple[int, int, int] = (0, 0, 0)
        """Step, wire bytes and dense wire bytes when `_levels` came into force."""
        self._gain_is_known = world_size == 1
        first = _first_change(config)
        if first is not None and epochs is not None and epochs <= first:
            _warn(_too_short_sentence(config, f"{epochs} epochs end before", epochs))

    def observe_step(self, levels: Mapping[str, Level], ledger: Ledger) -> None:
        """Observe a step at these levels; warn once of each condition."""
        self._steps += 1
        if self._steps == STEPS_WITHOUT_EPOCH and self._epochs == 0 and _needs_epochs(self._config):
            _warn(_no_epoch_sentence(self._config, self._steps))
        if not self._gain_is_known:
            self._observe_bytes(levels, ledger)

    def observe_epoch(self, decision: Decision) -> None:
        """Observe the decision at the end of an epoch."""
        self._epochs += 1
        changes = decision.change_by_layer.values()
        self._was_compared |= any(change is not None for change in changes)

    def end_run(self) -> None:
        """Warn if two epochs or more were trained, and too few to compare two windows."""
        first = _first_change(self._config)
        if first is not None and 1 < self._epochs <= first and not self._was_compared:
            what = f"{self._epochs} epochs were trained and ended before"
            _warn(_too_short_sentence(self._config, what, self._epochs))

    def _observe_bytes(self, levels: Mapping[str, Level], ledger: Ledger) -> None:
        sent, dense = ledger.gradient_wire, ledger.total.dense_wire
        if levels != self._levels:
            self._levels, self._counted = levels, (self._steps, sent, dense)
        since, sent_before, dense_before = self._counted
        methods = {level.method for level in levels.values()} - {"none", "half"}
        if self._steps - since < STEPS_BEFORE_GAIN or not methods:
            return
        self._gain_is_known = True
        share = (sent - sent_before) / max(1, dense - dense_before)
        if share > _LARGEST_SHARE:
            _warn(_small_gain_sentence(share, ", ".join(sorted(methods))))


def watch_run(
    session: object, config: Config, networks: WorkerNetworks, *, epochs: int | None
) -> RunWatcher:
    """Return the watcher of a session's run, which ends with the session if its length is unknown.

    It watches for what does not behave as configured.
    """
    if networks.replicas.world_size == 1 < networks.num_shards:
        _warn(
            "attach() got a replicate_group of one worker, which has nobody to exchange gradients"
            f" with: all {networks.num_shards} workers hold one model together; nothing is"
            " compressed until there are more replicas"
        )
    watcher = RunWatcher(config, world_size=networks.replicas.world_size, epochs=epochs)
    if epochs is None:
        weakref.finalize(session, watcher.end_run)
    return watcher


def _warn(sentence: str) -> None:
    warnings.warn(sentence, TrainingWarning, stacklevel=2)


def _first_change(config: Config) -> int | None:
    """Return the first epoch whose levels can change; None if levels do not depend on epoch
    windows.
    """
    window = config.detector.window_in_force.epochs
    if window is None or config.policy in _POLICIES_WITHOUT_WINDOWS or not _has_choice(config):
        return None
    return window + 1 if config.detector.statistic == "paper" else 2 * window


def _needs_epochs(config: Config) -> bool:
    """Return whether levels, or rounds of local steps, change only in loops that say where an epoch
    ends.
    """
    by_epochs = config.detector.window_in_force.epochs is not None
    waits = by_epochs or config.policy in _POLICIES_BY_EPOCH
    have_levels = waits and config.policy != "fixed" and _has_choice(config)
    return have_levels or (by_epochs and _can_rounds_grow(config))


def _can_rounds_grow(config: Config) -> bool:
    local = config.local_steps
    return local is not None and local.low < local.high and local.power > 0.0


def _has_choice(config: Config) -> bool:
    """Return whether a decision can change anything about a layer or the batch."""
    ladders = [config.ladder(), *(plan.ladder() for plan in config.by_layer.values())]
    differ = any(level.options != ladder[0].options for ladder in ladders for level in ladder)
    return differ or config.batch is not None or POLICIES[config.policy].uses_costs


def _no_epoch_sentence(config: Config, steps: int) -> str:
    what = "levels and rounds of local steps" if _can_rounds_grow(config) else "levels"
    sentence = (
        f"{steps:,} steps were taken and no epoch has ended, so {what} stay as they are until one"
        " does: unless an epoch is longer than that or an integration ends it, call"
        " session.end_epoch() after each epoch"
    )
    if config.policy in _POLICIES_BY_EPOCH or config.detector.statistic == "paper":
        return sentence
    return f"{sentence}, or count windows in steps, {_set_window('steps=500')}"


def _too_short_sentence(config: Config, what: str, epochs: int) -> str:
    is_paper = config.detector.statistic == "paper"
    fitting = epochs - 2 if is_paper else (epochs - 1) // 2
    if fitting >= 1:
        way_out = f"set fewer epochs, {_set_window(f'epochs={fitting}')}"
    elif is_paper:
        way_out = "train longer, since statistic 'paper' compares whole epochs"
    else:
        way_out = f"count windows in steps, {_set_window('steps=...')}"
    return (
        f"{what} two windows of {config.detector.window_in_force.epochs} epochs could be compared:"
        f" levels change in epoch {_first_change(config)} at the earliest; {way_out}"
    )


def _set_window(window: str) -> str:
    return f"Config(detector=DetectorConfig(window=Window({window})))"


def _small_gain_sentence(share: float, methods: str) -> str:
    return (
        f"compression sends {share:.2f} times as many bytes as without it: the layers are small for"
        f" {methods}, or the workers many for its all-gather; try a stronger level or the method"
        " 'half', or train without compression"
    )
