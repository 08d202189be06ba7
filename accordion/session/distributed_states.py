"""State of a session in torch's distributed checkpoints (`torch.distributed.checkpoint`, DCP).

    dcp.save({"model": ..., "accordion": distributed_state(session)}, checkpoint_id=folder)
    load_distributed_state(session, folder)     # after the model's and the optimizer's

Residuals and the momentum of local steps are saved as the parameters that they belong to, so that
DCP cuts them anew for another number of shards. Each replica has residuals of its own; everything
else of a worker is one entry of bytes. A state dict itself does not fit: DCP takes entries of one
name for the same on all ranks, and saves them once.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from accordion.base.errors import StateError
from accordion.compress.feedback import mean_residuals_, sum_residuals_
from accordion.compress.layer_tensors import working_dtype
from accordion.hook.parameter_changes import group_parameters
from accordion.hook.sharded_module import local_part
from accordion.session.saved_states import MeanState, serialize_state
from accordion.session.session import Session

if TYPE_CHECKING:
    from torch.distributed.checkpoint.storage import StorageReader
    from torch.distributed.device_mesh import DeviceMesh

_RESIDUALS, _MOMENTUM = "residuals", "momentum"


def distributed_state(session: Session) -> dict[str, Any]:
    """Return this worker's state between steps, to be saved by `torch.distributed.checkpoint`.

    Every worker calls this, and gives the result to `save` under the same name, such as
    `accordion`. Tensors are copies on the CPU, which `async_save` may write beside training, in a
    process group of its own.

    Raises:
        StateError: a round of local steps is running; see `finish_round`.
    """
    state = session.state_dict()
    engine, momentum = dict(state["engine"]), state["outer_momentum"]
    parts = _Parts(session)
    own = {_RESIDUALS: parts.spread(engine["residuals"])}
    if momentum and parts.replica == 0:
        own[_MOMENTUM] = parts.spread(parts.name_parts(momentum))
    rest = {**state, "engine": {**engine, "residuals": {}}, "outer_momentum": []}
    return {f"rank-{session.rank}": serialize_state(rest), f"replica-{parts.replica}": own}


def load_distributed_state(
    session: Session, checkpoint: str | PathLike[str] | StorageReader, *, name: str = "accordion"
) -> None:
    """Continue from what `distributed_state` returned on the workers of a group; every worker calls
    this, after it loaded the model and the optimizers.

    With another number of replicas every worker starts with the mean of the saved residuals. With
    another number of shards they are cut anew; flows of PowerSGD and the detector's open window
    then start again, and the bytes are those that rank 0 had counted.

    Args:
        session: session of the same model.
        checkpoint: the folder, or a reader of another storage.
        name: name under which the state was saved.

    Raises:
        StateError: on some worker it cannot be read, or is of another model; raised on all workers,
            and nothing is changed on any.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    reader = FileSystemReader(checkpoint) if isinstance(checkpoint, str | PathLike) else checkpoint
    session.load_state_dict(partial(_read, session, reader, name))


class _Parts:
    """What this worker holds of the layers, and the replica to which it belongs."""

    def __init__(self, session: Session) -> None:
        self._parameters: Mapping[str, Any] = getattr(session.source, "parameters", {})
        first: Any = next(iter(self._parameters.values()), None)
        self.shards: int = first.device_mesh.size() if hasattr(first, "device_mesh") else 1
        self.replica = session.rank // self.shards

    def spread(self, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return values that this worker holds of layers as parts of whole tensors: zeros for those
        of which only others of its replica have values.
        """
        if self.shards == 1:
            return dict(held)
        names = set().union(*self._gather_names(held))
        return {
            name: self._part(name, held.get(name), working_dtype(one))
            for name, one in self._parameters.items()
            if name in names
        }

    def target(self, name: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
        """Return zeros into which saved values of a layer are read.

        Raises:
            StateError: they have another size than the layer.
        """
        if self.shards == 1:
            return torch.zeros(size, dtype=dtype, device="cpu")
        present = self._parameters[name].shape if name in self._parameters else None
        if present != size:
            raise StateError(
                f"saved values of layer {name!r} have the shape {tuple(size)}, and in this model"
                f" {'there is none' if present is None else tuple(present)}; was the model changed?"
            )
        return self._part(name, None, dtype)

    def name_parts(self, flat: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the parts of flat values, which are in the order of rounds, by layer."""
        named: dict[str, Tensor] = {}
        for group, values in zip(self._groups(), flat, strict=True):
            parts = torch.split(values, [one.numel() for one in group.values()])
            # Copies, since torch cannot save a DTensor of a view in the background.
            shaped = map(Tensor.view_as, map(torch.clone, parts), group.values())
            named |= dict(zip(group, shaped, strict=True))
        return named

    def flatten(self, named: Mapping[str, Tensor]) -> list[Tensor]:
        """Return what `name_parts` was given, if no layer is missing."""
        if not named or set(named) != set(self._parameters):
            return []
        return [torch.cat([named[name].flatten() for name in group]) for group in self._groups()]

    def _gather_names(self, held: Mapping[str, Tensor]) -> list[list[str]]:
        found: list[list[str]] = [[] for _ in range(self.shards)]
        dist.all_gather_object(found, list(held), group=self._group)
        return found

    def _part(self, name: str, held: Tensor | None, dtype: torch.dtype) -> Tensor:
        from torch.distributed.tensor import DTensor

        like = self._parameters[name]
        shape = local_part(like).shape
        local = torch.zeros(shape, dtype=dtype, device="cpu") if held is None else held.view(shape)
        cut = {"shape": like.shape, "stride": like.stride(), "run_check": False}
        return DTensor.from_local(local, self._cpu_mesh, like.placements, **cut)

    @cached_property
    def _cpu_mesh(self) -> DeviceMesh:
        """The workers of this replica, for tensors that stay on the CPU."""
        from torch.distributed.device_mesh import DeviceMesh

        return DeviceMesh.from_group(self._group, "cpu")

    @property
    def _group(self) -> dist.ProcessGroup:
        group: dist.ProcessGroup = next(iter(self._parameters.values())).device_mesh.get_group()
        return group

    def _groups(self) -> Iterator[dict[str, Tensor]]:
        return group_parameters({name: local_part(one) for name, one in self._parameters.items()})


def _read(session: Session, reader: StorageReader, name: str) -> Mapping[str, Any]:
    """Return the state that this worker continues from.

    Raises:
        StateError: it cannot be read.
    """
    try:
        return _Reader(session, reader, name).read()
    except StateError:
        raise
    except Exception as error:  # whatever a storage, its format or a pickle raises
        raise StateError(
            f"the distributed checkpoint cannot be read ({type(error).__name__}: {error}); pass the"
            " folder that torch.distributed.checkpoint.save wrote"
        ) from error


class _Reader:
    """Reads from a checkpoint what one worker needs; the workers read without each other."""

    def __init__(self, session: Session, reader: StorageReader, name: str) -> None:
        self._session, self._reader, self._name = session, reader, name
        self._parts = _Parts(session)
        self._saved = reader.read_metadata().state_dict_metadata

    def read(self) -> dict[str, Any]:
        first = self._read_rank(0)
        ranks, shards = int(first["world_size"]), int(first["shards"])
        session, same_parts = self._session, shards == self._parts.shards
        own: Mapping[str, Any]
        replicas: Sequence[int] = range(ranks // shards)
        if same_parts and ranks == session.world_size:
            own, replicas = self._read_rank(session.rank), [self._parts.replica]
        elif same_parts:
            own = self._read_mean(range(session.rank % shards, ranks, shards))
        else:
            own = _start_parts_again(first)
        momentum = self._read_values(f"replica-0.{_MOMENTUM}")
        return {
            **own,
            "rank": session.rank,
            "world_size": session.world_size,
            "shards": self._parts.shards,
            "controller": first["controller"],
            "engine": {**own["engine"], "residuals": self._read_residuals(replicas)},
            "outer_momentum": self._parts.flatten(momentum),
        }

    def _read_rank(self, rank: int) -> dict[str, Any]:
        key = f"{self._name}.rank-{rank}"
        if key not in self._saved:
            raise StateError(
                f"the distributed checkpoint has no state of a session's rank {rank} named"
                f" {self._name!r}; save accordion.distributed_state(session) under that name"
            )
        found = {key: b""}
        self._load(found)
        state: dict[str, Any] = torch.load(io.BytesIO(found[key]), weights_only=True)
        return state

    def _read_mean(self, ranks: Sequence[int]) -> Mapping[str, Any]:
        mean = MeanState(len(ranks))
        for rank in ranks:
            mean.add(self._read_rank(rank))
        return mean.result()

    def _read_residuals(self, replicas: Sequence[int]) -> dict[str, Tensor]:
        """Return the mean over replicas, of which one is in memory at a time."""
        total: dict[str, Tensor] = {}
        for replica in replicas:
            sum_residuals_(total, self._read_values(f"replica-{replica}.{_RESIDUALS}"))
        return mean_residuals_(total, len(replicas))

    def _read_values(self, place: str) -> dict[str, Tensor]:
        """Return this worker's parts of the values by layer."""
        start = f"{self._name}.{place}."
        targets: dict[str, Tensor] = {}
        for key, saved in self._saved.items():
            if key.startswith(start):
                layer, value = key.removeprefix(start), cast("Any", saved)
                targets[key] = self._parts.target(layer, value.size, value.properties.dtype)
        self._load(targets)
        return {key.removeprefix(start): local_part(one) for key, one in targets.items()}

    def _load(self, targets: dict[str, Any]) -> None:
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.state_dict_loader import load

        try:
            if targets:
                load(targets, storage_reader=self._reader, no_dist=True)
        except CheckpointException as error:  # not an Exception
            (cause, _), *_ = error.failures.values()
            raise cause from error


def _start_parts_again(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state without what no other division of the model can use: flows and sketches."""
    engine = state["engine"]
    window = {**engine["window"], "version": None, "steps": 0}
    return {**state, "engine": {**engine, "warm": {}, "window": window}}
