"""Waits until every rank has made a call, so that a call on some ranks only is an error."""

from __future__ import annotations

import logging
from datetime import timedelta

from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore, Store

from accordion_ray.errors import AttachError

TIMEOUT_S = 1800.0
"""Default limit: that of Ray Train's process groups (`TorchConfig(timeout_s=1800)`).

A rank may evaluate, download or write for many minutes before it makes the call.
"""
WARN_AFTER_S = 60.0
"""After this long, waiting ranks warn which ranks are missing."""

logger = logging.getLogger(__name__)


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
    # All ranks have passed the call before the last one, so its keys are no longer needed.
    store.delete_key(f"{number - 2}/{rank}")
    store.set(f"{number}/{rank}", "")
    keys = [f"{number}/{other}" for other in range(world_size)]
    call_on_all = "call it on every rank, outside of conditions such as `if get_world_rank() == 0:`"
    waited_s = min(WARN_AFTER_S, timeout_s)
    if _is_complete(store, keys, wait_s=waited_s):
        return
    made = f"{call}() was called on rank {rank}, but not on rank"
    if waited_s < timeout_s:
        logger.warning(
            "%s %s within %g s; it waits for up to %g s. If it is not called there at all, %s",
            made,
            _list_missing(store, keys),
            waited_s,
            timeout_s,
            call_on_all,
        )
        if _is_complete(store, keys, wait_s=timeout_s - waited_s):
            return
    raise AttachError(
        f"{made} {_list_missing(store, keys)} within {timeout_s:g} s; {call_on_all}, or give it a"
        " larger timeout_s"
    )


def _is_complete(store: Store, keys: list[str], *, wait_s: float) -> bool:
    try:
        store.wait(keys, timedelta(seconds=wait_s))
    except RuntimeError:
        return False
    return True


def _list_missing(store: Store, keys: list[str]) -> str:
    return ", ".join(str(rank) for rank, key in enumerate(keys) if not store.check([key]))
