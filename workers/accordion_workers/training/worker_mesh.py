"""The grid of a run's workers: those of a row hold one model together, those of a column the same
part of it.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence

from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from accordion.hook.sharded_module import is_sharded, sharded_parameters
from accordion_workers.common.errors import CodeError
from accordion_workers.training.context import WorkerContext


class WorkerMesh:
    """The device mesh of a run, made when it is asked for."""

    def __init__(self) -> None:
        self._mesh: DeviceMesh | None = None

    def of(self, context: WorkerContext) -> DeviceMesh:
        """Return the mesh; all workers make it together.

        Raises:
            CodeError: the run has no `parallelism.shard`, or its workers are no whole replicas.
        """
        if self._mesh is None:
            self._mesh = _create_mesh(context)
        return self._mesh

    def forget(self) -> None:
        """Let go of the mesh at the end of a run.

        DTensor remembers what it did on a mesh, takes one of the same ranks for the same mesh, and
        keeps it. While that one has its process groups, their sockets stay open, for whose end the
        other members of a broken group wait.
        """
        mesh, self._mesh = self._mesh, None
        if mesh is not None:
            from torch.distributed.tensor.debug import _clear_sharding_prop_cache

            # torch has no public names for these; the function is what it recommends.
            vars(mesh).get("_pg_registry", {}).clear()
            _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]

    def replicate_group(self, context: WorkerContext, module: nn.Module) -> ProcessGroup | None:
        """Return the workers with this one's part of the module; None if it is not sharded.

        Raises:
            CodeError: the module is sharded and the run's workers do not hold one together, or the
                other way round, or others hold it together.
        """
        num_shards = context.launch.spec.num_shards
        if num_shards == 1 and not is_sharded(module):
            return None
        if not is_sharded(module):
            raise CodeError(
                f"parallelism.shard is {num_shards} and session.attach() got a module that is not"
                ' sharded; call fully_shard(module, mesh=session.mesh["shard"]) before it, or leave'
                " parallelism out"
            )
        mesh = self.of(context)
        _check_held_by(module, mesh["shard"])
        return mesh["replicate"].get_group()


def _check_held_by(module: nn.Module, shards: DeviceMesh) -> None:
    ranks = shards.mesh.tolist()
    for one in sharded_parameters(module).values():
        if (found := one.device_mesh.mesh.tolist()) != ranks:
            raise CodeError(
                f"session.attach() got a model that is sharded over ranks {found}, and in this run"
                f" ranks {ranks} hold one together (parallelism.shard is {len(ranks)}); call"
                ' fully_shard(module, mesh=session.mesh["shard"]) for each part, and the session'
                " averages gradients between the replicas"
            )


def _create_mesh(context: WorkerContext) -> DeviceMesh:
    num_shards = context.launch.spec.num_shards
    if num_shards == 1:
        raise CodeError(
            "the run does not say how many workers hold one model together; give the job file"
            " parallelism: {shard: N}, or outside of a job"
            ' session.init_process_group(job={"parallelism": {"shard": N}})'
        )
    if context.world_size % num_shards:
        raise CodeError(
            f"parallelism.shard is {num_shards} and the run has {context.world_size} workers; start"
            f" a multiple of {num_shards}"
        )
    hosts = context.peers.gather_objects(platform.node())
    if context.rank == 0:
        for warning in list_warnings(hosts, num_shards):
            context.link.log(f"warning: {warning}")
    shape = (context.world_size // num_shards, num_shards)
    kind = context.device.partition(":")[0]
    return init_device_mesh(kind, shape, mesh_dim_names=("replicate", "shard"))


def list_warnings(hosts: Sequence[str], num_shards: int) -> Iterator[str]:
    """Return what is not as it should be, given the hosts of all ranks: replicas on several of
    them, or a single replica.
    """
    if len(hosts) == num_shards:
        yield (
            f"all {num_shards} workers hold one model together (parallelism.shard): nothing is"
            " exchanged with others or compressed until there are more replicas"
        )
    for first in range(0, len(hosts), num_shards):
        found = sorted(set(hosts[first : first + num_shards]))
        if len(found) > 1:
            yield (
                f"ranks {first} to {first + num_shards - 1} hold one model together on"
                f" {len(found)} nodes ({', '.join(found)}): what FSDP2 exchanges in every step"
                " crosses their link, uncompressed; give nodes room for a multiple of"
                f" parallelism.shard, which is {num_shards}"
            )
            return


__all__ = ["WorkerMesh", "list_warnings"]
