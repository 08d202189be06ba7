"""Waits until every rank has made a call, so that a call on some ranks only is an error and not a hang."""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore, Store

from accordion_ray.errors import AttachError

TIMEOUT_S = 60.0
"""Default limit; ranks leave `prepare_model` together, so they reach `attach` within seconds."""


def default_store() -> Store:
    """Return the key-value store of the process group, which rank 0's process serves."""
    store: Store = distributed_c10d._get_default_store()  # torch has no public name for it
    return store


def wait_for_ranks(call: str, *, rank: int, world_size: int, timeout_s: float) -> None:
    """Wait until all ranks have made this call as often as this rank has.

    No collective is used: ranks that did not make the call may be in the middle of one.

    Raises:
        AttachError: some ranks did not make the call within the limit.
    """
    if world_size == 1:
        return
    store = PrefixStore(f"accordion_ray/{call}", default_store())
    number = int(store.add(f"calls of {rank}", 1))
    # Everybody has passed the call before the last one, so its keys are not needed any more.
    store.delete_key(f"{number - 2}/{rank}")
    store.set(f"{number}/{rank}", "")
    keys = [f"{number}/{other}" for other in range(world_size)]
    try:
        store.wait(keys, timedelta(seconds=timeout_s))
    except RuntimeError as error:
        missing = [str(other) for other, key in enumerate(keys) if not store.check([key])]
        raise AttachError(
            f"{call}() was called on rank {rank}, but not on rank {', '.join(missing)} within "
            f"{timeout_s:g} s; call it on every rank, outside of conditions such as "
            "`if get_world_rank() == 0:`, or give it a larger timeout_s"
        ) from error
