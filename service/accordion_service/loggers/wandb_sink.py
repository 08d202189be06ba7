"""Sends runs to Weights & Biases, or writes them to files for `wandb sync`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import wandb

from accordion_service.domain.jobs.loggers import RunStatus
from accordion_service.loggers.sink import Batch, SentRun, SinkSetup
from accordion_service.loggers.wandb_files import wait_until_written

INIT_S = 30.0
"""Seconds for which a turn waits for W&B to take the run."""
FINISH_S = 120.0
"""Seconds for which a turn waits until W&B has sent everything."""
WRITE_S = 60.0
"""Seconds within which an offline run is written after it was finished."""
MAX_TAG_LENGTH = 64
_EXIT_CODES = {RunStatus.FAILED: 1, RunStatus.KILLED: 255}


class WandbSink:
    """One run, which every turn resumes and leaves again. The step is the epoch.

    W&B takes only growing steps: a point that is sent twice is dropped the second time, and so is
    an epoch that is trained again. An offline run is written at once when the job has ended, into a
    folder that replaces what an interrupted turn left.
    """

    def __init__(self, setup: SinkSetup) -> None:
        self._spec = setup.spec
        self._setup = setup

    def send(self, batch: Batch) -> SentRun:
        """Send the points and, at the end of the job, the status."""
        is_offline = self._spec.mode == "offline"
        folder = self._setup.folder / f"wandb-{self._setup.number}"
        if is_offline:
            folder = folder / f"from-epoch-{batch.points[0].epoch if batch.points else 'end'}"
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        run = self._open_run(batch, folder)
        try:
            for point in batch.points:
                run.log({**point.values, "_timestamp": point.time}, step=point.epoch)
        finally:
            run.finish(exit_code=_EXIT_CODES.get(batch.status, 0))
        if is_offline:
            wait_until_written(folder, timeout_s=WRITE_S)
        else:
            # Each turn has files of its own there, and everything in them has arrived.
            shutil.rmtree(folder, ignore_errors=True)
        return SentRun(run_id=batch.key, location=str(run.url or folder))

    def close(self) -> None:
        """Do nothing: each turn ends what it began."""

    def _open_run(self, batch: Batch, folder: Path) -> Any:
        """Return the run, in which W&B learns nothing of this machine and this process."""
        settings = wandb.Settings(
            api_key=self._setup.secrets.get("api_key"),
            base_url=self._setup.wandb_url,
            console="off",
            disable_git=True,
            finish_timeout=FINISH_S,
            finish_timeout_raises=True,
            init_timeout=INIT_S,
            save_code=False,
            silent=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
            x_update_finish_state=batch.status is not RunStatus.RUNNING,
        )
        return wandb.init(
            project=self._spec.project,
            entity=self._spec.entity,
            id=batch.key,
            name=batch.name,
            config=dict(batch.params),
            tags=[f"{name}:{value}"[:MAX_TAG_LENGTH] for name, value in batch.tags.items()],
            resume=None if self._spec.mode == "offline" else "allow",
            dir=str(folder),
            mode=self._spec.mode,
            reinit="create_new",
            settings=settings,
        )
