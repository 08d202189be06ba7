"""Fixes DDP's assignment of parameters to buckets, so that every step sums in the same order."""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel


def fix_buckets(module: DistributedDataParallel) -> bool:
    """Rebuild a module's buckets now, so that they never change later; every worker calls this.

    DDP starts with one bucket and rebuilds its buckets after the first backward pass, in the order
    in which the gradients became ready. With three or more workers gloo's order of summation
    depends on an entry's position in its bucket, and so does which layers PowerSGD stacks: a
    resumed process would differ from an uninterrupted one in the last bits. Here the buckets follow
    the reversed order of registration, which is the order of the backward pass if layers are
    registered in the order in which they are used.

    Modules with `find_unused_parameters` are left alone because DDP never rebuilds their buckets,
    and those with `static_graph` because DDP treats their first step as a special case.

    Returns True if the buckets were rebuilt; the caller then has to register its hook again.
    """
    if module.find_unused_parameters or module.static_graph:
        return False
    ddp: Any = module  # DDP recreates its reducer by the same calls when it is unpickled
    parameters, sparse = ddp._build_params_for_reducer()
    parameters.reverse()
    sparse.reverse()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
    ddp.reducer._push_all_rebuilt_params()
    ddp.reducer._rebuild_buckets()
    return True
