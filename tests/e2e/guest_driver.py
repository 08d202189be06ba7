"""Runs an example of `deploy/jobs/ray-train-guest`: `python -m tests.e2e.guest_driver ADDRESS
SCRIPT FOLDER`.

The training function is the example's own. Around it every worker writes its process id to FOLDER,
and reports wait for files there: the report of epoch N until the test makes `open-N`, if it made
`shut-N`.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from pathlib import Path

import ray
import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

EPOCHS, WORKERS, NAME = 8, 2, "digits"


def main(address: str, script: str, folder: str) -> None:
    """Train, and write the last metrics to FOLDER."""
    train = runpy.run_path(script)["train"]

    def watched(config):
        place = Path(config["folder"])
        rank = ray.train.get_context().get_world_rank()
        (place / f"pid-{rank}").write_text(str(os.getpid()))
        report = ray.train.report
        epoch = [
            0
            if (checkpoint := ray.train.get_checkpoint()) is None
            else int(checkpoint.get_metadata()["epoch"])
        ]

        def gated(metrics, checkpoint):
            if checkpoint is not None:
                checkpoint.set_metadata({"epoch": epoch[0] + 1})
            (place / f"reached-{epoch[0]}-{rank}").touch()
            while (place / f"shut-{epoch[0]}").exists() and not (
                place / f"open-{epoch[0]}"
            ).exists():
                time.sleep(0.02)
            epoch[0] += 1
            report(metrics, checkpoint=checkpoint)

        ray.train.report = gated
        train(config)

    ray.init(address=address, log_to_driver=True)
    result = TorchTrainer(
        watched,
        train_loop_config={"epochs": EPOCHS, "batch_size": 16, "folder": folder},
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(
            name=NAME,
            storage_path=f"{folder}/storage",
            failure_config=FailureConfig(max_failures=2),
        ),
    ).fit()
    (Path(folder) / "metrics").write_text(json.dumps(result.metrics))


if __name__ == "__main__":
    main(*sys.argv[1:])
