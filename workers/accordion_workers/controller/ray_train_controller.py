"""The actor that hosts Ray Train's controller for one attempt; `run` imports Ray Train."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Literal

from accordion_workers.common.train_run import TRAIN_SETTINGS, TrainRun

if TYPE_CHECKING:
    from accordion_workers.controller.ray_train_internals import ExternalWorkersController

RunState = Literal["finished", "aborted", "errored"]
POLL_S = "1.0"
"""Interval in seconds at which Ray Train polls the workers; only its own view depends on it."""
CONTROLLER_SETTINGS = {
    **TRAIN_SETTINGS,
    # Arrow's own pool takes 4 MB on import, and this process has no data.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": POLL_S,
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "1",
    "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0",
}


class RayTrainController:
    """Runs one Ray Train run in this process; the supervisor adds workers to it."""

    def __init__(self, run: TrainRun) -> None:
        os.environ |= CONTROLLER_SETTINGS
        self._train_run = run
        self._built: asyncio.Future[ExternalWorkersController] = (
            asyncio.get_event_loop().create_future()
        )

    async def run(self) -> None:
        """Run until `end_run`.

        Raises:
            ImportError: Ray Train, or something it needs, is not installed here.
            OSError: the job's directory cannot be written.
            TrainingFailedError: the run ended by an error of Ray Train's own.
        """
        controller = await asyncio.to_thread(self._build_controller)
        self._built.set_result(controller)
        await controller.run()

    async def wait_until_up(self) -> None:
        """Return once workers can join the run."""
        await asyncio.shield(self._built)

    async def add_worker(self, number: int, actor: Any) -> bytes:
        """Add a worker process to the run; return the run's context that the process received."""
        return await (await asyncio.shield(self._built)).add_worker(number, actor)

    async def end_run(self, ending: RunState, message: str) -> None:
        """End the run in this state."""
        (await asyncio.shield(self._built)).end_run(ending, message)

    def _build_controller(self) -> ExternalWorkersController:
        from accordion_workers.controller.ray_train_internals import create_controller

        return create_controller(self._train_run)


__all__ = ["CONTROLLER_SETTINGS", "RayTrainController", "RunState"]
