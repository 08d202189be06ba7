"""What a checkpoint holds: everything that the rest of the run depends on; when it is taken, and who waits for it.

`shared.pt` is rank 0's and the same for all; `rank-N.pt` holds what differs. Order of samples, learning rate and the
seeds of dropout are functions of the position and need no place here; records live in the journal.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from accordion.control import Word
from workers.buffers import average_buffers
from workers.checkpoint import Manifest, candidates, checkpoint_name, read_part
from workers.contract import Bytes, CheckpointRecord
from workers.errors import CheckpointError
from workers.journal import is_superseded
from workers.run import Mark, Run
from workers.sampler import Position
from workers.schedule import BatchChange
from workers.storage import Storage, storage_of
from workers.upload import Peers, Snapshot, Upload

logger = logging.getLogger(__name__)

_SHARED = "shared.pt"
_SETTLE_S = 0.5
"""How long a rank waits for its own upload before it says that it is still there: well below a collective's limit."""


def is_due(run: Run, words: Container[Word]) -> bool:
    """Whether a checkpoint is to be taken at this step boundary; the same on all ranks.

    Steps are counted alike everywhere. Seconds are rank 0's, which asks for a checkpoint with the next step's
    gradients; so that comes one step after its time.
    """
    spec, at_epochs_end = run.spec.checkpoint, run.position.samples >= len(run.data)
    by_steps = spec.every_steps is not None and run.session.steps % spec.every_steps == 0
    due = Word.CHECKPOINT in words or (by_steps and not (at_epochs_end and _follows(run)))
    if run.context.rank == 0 and not due and spec.every_seconds is not None:
        passed = run.phases.clock.elapsed() - run.saving.began_s
        if passed >= spec.every_seconds:
            run.session.request(Word.CHECKPOINT)
    return due


def save(run: Run, *, wait: bool = False) -> None:
    """Take a checkpoint of this moment; all ranks together, at a step boundary.

    Returns as soon as the state is copied; a thread writes it. One that is still being written is awaited first. With
    `wait` the checkpoint is complete on return, on all ranks. Running statistics are averaged over the workers.

    Raises:
        OSError: with `wait`, the storage cannot be written. Without, that is told to the job's log.
    """
    start = run.phases.clock.elapsed()
    with run.phases("checkpoint"):
        settle(run)
        name = checkpoint_name(run.context.generation, run.position)
        if name == run.saving.newest:
            return
        average_buffers(run)
        run.saving.began_s = start
        run.saving.begun += 1
        run.saving.upload = _upload(run, name, start=start, wait=wait)
        run.saving.upload.start()
        error = settle(run) if wait else None
    if error is not None:
        raise OSError(error)


def settle(run: Run) -> str | None:
    """Wait until no checkpoint is being written; returns why the last could not be. All ranks together.

    Raises:
        RuntimeError: another worker is gone.
    """
    upload = run.saving.upload
    if upload is None:
        return None
    # a collective each time round: who waits for a slow storage must not be taken for dead.
    while None in (ends := _gathered(run, upload.written(_SETTLE_S))):
        continue
    run.saving.upload = None
    error: str | None = ends[0].error
    if error is None:
        run.saving.newest = upload.name
    else:
        run.saving.failed += 1
    return error


def restore(run: Run) -> str | None:
    """Go on from the newest good checkpoint and return its name; None where there is none, and nothing changed.

    Rank 0 picks, every rank reads what it needs: its own part where the group is as large as the one that saved, else
    all of them. What any rank finds damaged is refused by all.

    Raises:
        StateError: it is of another model.
        OSError: the storage cannot be reached or written.
    """
    storage = _storage(run)
    run.saving.began_s = run.phases.clock.elapsed()
    offers = candidates(storage, run.context.launch.job_id, run.context.link.log)
    while (manifest := _offered(run, storage, offers)) is not None:
        parts = _read(run, storage, manifest)
        if parts is not None:
            _load(run, *parts)
            return manifest.name
    return None


def _upload(run: Run, name: str, *, start: float, wait: bool) -> Upload:
    """The state, copied, and who writes it."""
    parts = {_rank_file(run.context.rank): _copied(_own_state(run))}
    if run.context.rank == 0:
        parts[_SHARED] = _copied(_shared_state(run))
    manifest = Manifest(
        job_id=run.context.launch.job_id,
        name=name,
        epoch=run.position.epoch,
        step=run.session.steps,
        world_size=run.context.world_size,
    )
    blocked_s = None if wait else run.phases.clock.elapsed() - start
    return Upload(
        Snapshot(manifest=manifest, parts=parts, keep=run.spec.checkpoint.keep),
        _storage(run),
        Peers.of_group(name, run.saving.begun),
        done=partial(_record, run, start=start, blocked_s=blocked_s),
        failed=partial(_warn, run, count=run.saving.failed + 1),
        superseded=partial(is_superseded, Path(run.context.launch.storage), run.context.generation),
    )


def _record(run: Run, manifest: Manifest, *, start: float, blocked_s: float | None) -> None:
    """Say that there is a checkpoint; rank 0, in the upload's thread. With None training stood still all the time."""
    seconds = run.phases.clock.elapsed() - start
    record = CheckpointRecord(
        name=manifest.name,
        epoch=manifest.epoch,
        step=manifest.step,
        size_bytes=manifest.size_bytes,
        seconds=seconds,
        blocked_s=seconds if blocked_s is None else blocked_s,
    )
    try:
        run.context.link.post(record)
    except OSError as error:
        logger.warning("checkpoint %s is complete, but its record could not be written: %s", manifest.name, error)


def _warn(run: Run, error: str, *, count: int) -> None:
    """Say that there is none; likewise."""
    newest = run.saving.newest or "the one that this worker group began with"
    run.context.link.log(
        f"warning: {error}; that was failure {count} of this worker group; the newest that can be resumed from is "
        f"{newest}, and the next one that is due tries again"
    )


def _storage(run: Run) -> Storage:
    launch = run.context.launch
    return storage_of(launch.spec.checkpoint.storage, job_id=launch.job_id, directory=run.context.checkpoints)


def _follows(run: Run) -> bool:
    """Whether the end of this epoch takes a checkpoint by itself."""
    done = run.position.epoch + 1
    return done == run.spec.training.epochs or done % run.spec.checkpoint.every_epochs == 0


def _offered(run: Run, storage: Storage, offers: Iterator[Manifest]) -> Manifest | None:
    """Rank 0 looks and all take what it found, so that no two ranks go on from different places.

    Raises:
        OSError: on all ranks, rank 0 cannot reach the storage.
    """
    found: list[Manifest | OSError | None] = [None]
    if run.context.rank == 0:
        try:
            found = [next(offers, None)]
            if found[0] is None:
                storage.prepare()
        except OSError as error:
            # without its cause: that may be of a kind that cannot be sent.
            found = [OSError(f"checkpoints of this job cannot be kept: {error}")]
    dist.broadcast_object_list(found, src=0)
    if isinstance(found[0], OSError):
        raise found[0]
    return found[0]


def _read(run: Run, storage: Storage, manifest: Manifest) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """What is shared, and the parts in rank order; None on all ranks where one found it damaged.

    In a group as large as the saved one the own part stands in everybody's place: no other is looked at.

    Raises:
        OSError: on all ranks, one cannot reach the storage.
    """
    ranks = range(manifest.world_size)
    try:
        shared = read_part(storage, manifest, _SHARED)
        if manifest.world_size == run.context.world_size:
            parts = [read_part(storage, manifest, _rank_file(run.context.rank))] * len(ranks)
        else:
            parts = [read_part(storage, manifest, _rank_file(rank)) for rank in ranks]
        problem = None
    except (CheckpointError, OSError) as error:
        problem = error if isinstance(error, CheckpointError) else OSError(str(error))
    problems = [found for found in _gathered(run, problem) if found is not None]
    for found in problems:
        if isinstance(found, OSError):
            raise found
    for text in sorted({str(found) for found in problems}) if run.context.rank == 0 else []:
        run.context.link.log(text)
    return None if problems else (shared, parts)


def _load(run: Run, shared: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> None:
    run.ddp.module.load_state_dict(shared["model"])
    run.optimizer.load_state_dict(shared["optimizer"])
    run.position = Position(**shared["position"])
    run.overrides = None
    run.skipped_in_a_row = shared["skipped_in_a_row"]
    run.batch_change = BatchChange(**shared["batch_change"])
    if run.scaler is not None and shared.get("scaler"):
        run.scaler.load_state_dict(shared["scaler"])
    run.session.load_state_dict(_session_states(run, shared, parts))
    _restore_own(run, parts)


def _session_states(run: Run, shared: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """This rank's own alone where the group is as large as the saved one, else those of all its workers."""
    size = len(parts)
    ranks = [run.context.rank] if size == run.context.world_size else range(size)
    whole = {"controller": shared["controller"], "world_size": size}
    # rank and size are the manifest's: older checkpoints do not hold them.
    return [{**parts[rank]["session"], **whole, "rank": rank} for rank in ranks]


def _shared_state(run: Run) -> dict[str, Any]:
    return {
        "model": run.ddp.module.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "controller": run.session.controller.state_dict(),
        "scaler": run.scaler.state_dict() if run.scaler is not None else None,
        "position": asdict(run.position),
        "skipped_in_a_row": run.skipped_in_a_row,
        "batch_change": asdict(run.batch_change),
    }


def _own_state(run: Run) -> dict[str, Any]:
    statistic = run.adviser.statistic
    return {
        "session": {**run.session.state_dict(), "controller": None},
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


def _gathered(run: Run, own: Any) -> list[Any]:
    """What every rank says, in rank order."""
    said = [None] * run.context.world_size
    dist.all_gather_object(said, own)
    return said


def _copied(state: Any) -> Any:
    """The same, with tensors in memory of the CPU that nobody else holds."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        # a copy keeps what is attached to it, such as the versions of a model's modules.
        copied = copy.copy(state)
        copied.update((key, _copied(value)) for key, value in state.items())
        return copied
    if isinstance(state, list | tuple):
        return type(state)(map(_copied, state))
    return state


def _rank_file(rank: int) -> str:
    return f"rank-{rank}.pt"


__all__ = ["is_due", "restore", "save", "settle"]
