"""What a checkpoint holds: everything that the rest of the run depends on.

`shared.pt` is rank 0's and the same for all; `rank-N.pt` holds what differs. Order of samples, learning rate and the
seeds of dropout are functions of the position and need no place here; records live in the journal.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from accordion.control import Word
from workers.checkpoint import (
    FileSum,
    Manifest,
    checkpoint_name,
    newest,
    prune,
    read_part,
    write_manifest,
    write_part,
)
from workers.contract import Bytes, CheckpointRecord
from workers.run import Mark, Run
from workers.sampler import Position
from workers.schedule import BatchChange

_SHARED = "shared.pt"


def is_due(run: Run, words: Container[Word]) -> bool:
    """Whether a checkpoint is to be taken at this step boundary; the same on all ranks."""
    del run
    return Word.CHECKPOINT in words


def save(run: Run, *, wait: bool = False) -> None:
    """Write a checkpoint of this moment; all ranks together, at a step boundary.

    With `wait` it is complete on return, on all ranks.

    Raises:
        OSError: the storage cannot be written.
    """
    del wait
    start = run.phases.clock.elapsed()
    with run.phases("checkpoint"):
        name = checkpoint_name(run.context.generation, run.position)
        directory = run.context.checkpoints / name
        files = [write_part(directory, _rank_file(run.context.rank), _own_state(run))]
        if run.context.rank == 0:
            files.append(write_part(directory, _SHARED, _shared_state(run)))
        parts = _gathered(files, run.context.world_size)
        if run.context.rank == 0:
            _complete(run, directory, [file for part in parts for file in part])
    if run.context.rank == 0:
        size = sum(file.size_bytes for part in parts for file in part)
        run.context.link.post(
            CheckpointRecord(
                name=name,
                epoch=run.position.epoch,
                step=run.session.steps,
                size_bytes=size,
                seconds=run.phases.clock.elapsed() - start,
            )
        )


def restore(run: Run) -> str | None:
    """Go on from the newest good checkpoint and return its name; None where there is none, and nothing changed.

    Raises:
        StateError: it is of another model.
    """
    manifest = _chosen(run)
    if manifest is None:
        return None
    directory = run.context.checkpoints / manifest.name
    shared = read_part(directory, _SHARED)
    parts = [read_part(directory, _rank_file(rank)) for rank in range(manifest.world_size)]
    run.ddp.module.load_state_dict(shared["model"])
    run.optimizer.load_state_dict(shared["optimizer"])
    run.position = Position(**shared["position"])
    run.overrides = None
    run.skipped_in_a_row = shared["skipped_in_a_row"]
    run.batch_change = BatchChange(**shared["batch_change"])
    run.session.load_state_dict([part["session"] for part in parts])
    _restore_own(run, parts)
    return manifest.name


def _chosen(run: Run) -> Manifest | None:
    """Rank 0 looks and all take what it found, so that no two ranks go on from different places."""
    found: list[Manifest | None] = [None]
    if run.context.rank == 0:
        found = [newest(run.context.checkpoints, run.context.launch.job_id, run.context.link.log)]
    dist.broadcast_object_list(found, src=0)
    return found[0]


def _complete(run: Run, directory: Path, files: Sequence[FileSum]) -> None:
    manifest = Manifest(
        job_id=run.context.launch.job_id,
        name=directory.name,
        epoch=run.position.epoch,
        step=run.session.steps,
        world_size=run.context.world_size,
        files=tuple(files),
    )
    write_manifest(directory, manifest)
    prune(run.context.checkpoints, keep=run.spec.checkpoint.keep, newest_name=directory.name)


def _shared_state(run: Run) -> dict[str, Any]:
    return {
        "model": run.ddp.module.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "position": asdict(run.position),
        "skipped_in_a_row": run.skipped_in_a_row,
        "batch_change": asdict(run.batch_change),
    }


def _own_state(run: Run) -> dict[str, Any]:
    statistic = run.adviser.statistic
    return {
        "session": run.session.state_dict(),
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state(run.context.device) if run.context.device.startswith("cuda") else None,
        "loss": {"total": float(run.epoch_loss.total), "samples": run.epoch_loss.samples},
        "seconds": dict(run.phases.seconds),
        "mark": {
            "bytes": run.epoch_mark.bytes.model_dump(),
            "seconds": dict(run.epoch_mark.seconds),
            "skipped_steps": run.epoch_mark.skipped_steps,
        },
        "statistic": None if statistic is None else dict(statistic),
    }


def _restore_own(run: Run, parts: Sequence[Mapping[str, Any]]) -> None:
    """This rank's own part; in a group of another size rank 0 takes over the sums of all, the others begin at zero."""
    rank = run.context.rank
    same_size = len(parts) == run.context.world_size
    owned = [parts[rank]] if same_size else list(parts) if rank == 0 else []
    run.epoch_loss.total += sum(part["loss"]["total"] for part in owned)
    run.epoch_loss.samples += sum(part["loss"]["samples"] for part in owned)
    own = parts[rank if same_size else 0]
    run.phases.seconds.update(own["seconds"])
    mark = own["mark"]
    run.epoch_mark = Mark(bytes=Bytes(**mark["bytes"]), seconds=mark["seconds"], skipped_steps=mark["skipped_steps"])
    run.adviser.statistic = own["statistic"]
    torch.set_rng_state(own["rng"])
    if own["cuda_rng"] is not None and run.context.device.startswith("cuda"):
        torch.cuda.set_rng_state(own["cuda_rng"], run.context.device)


def _gathered(files: list[FileSum], world_size: int) -> list[list[FileSum]]:
    """What every rank wrote; when this returns, all have written."""
    parts: list[list[FileSum]] = [[] for _ in range(world_size)]
    dist.all_gather_object(parts, files)
    return parts


def _rank_file(rank: int) -> str:
    return f"rank-{rank}.pt"
