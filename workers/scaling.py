"""Ray Train's private API; the GCS's is in `reservations.py`. For Ray 2.60: a test fails when Ray changes it."""

from __future__ import annotations

from typing import Any

from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from workers.failure import CONTROLLER

_UNUSED_CALLBACKS = frozenset({"DatasetsCallback", "PlacementGroupCleanerCallback"})
"""We pass no Ray datasets: without that one a group starts about 2 s sooner. The cleaner is one more process. It asks
the dashboard whether its controller lives; where there is none it stays for ever and cleans nothing. `reservations.py`
does its work.
"""


class LeanTrainer(DataParallelTrainer):  # type: ignore[misc]
    """A `DataParallelTrainer` without the parts that a job of ours does not use."""

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()
        return [callback for callback in callbacks if type(callback).__name__ not in _UNUSED_CALLBACKS]


def errors_by_rank(error: BaseException) -> dict[int, BaseException]:
    """What every failed rank raised itself, or how it was lost; what no rank raised stands under `CONTROLLER`."""
    failures = getattr(error, "worker_failures", None)
    if not failures:
        return {CONTROLLER: getattr(error, "controller_failure", error)}
    return {rank: getattr(failure, "_base_exc", failure) for rank, failure in failures.items()}
