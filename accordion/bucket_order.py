"""Fixes how DDP cuts parameters into buckets, so that every step of every process adds gradients in the same order."""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel


def fix_buckets(module: DistributedDataParallel) -> bool:
    """Cut a module's buckets once and for all, as DDP would after its first backward pass; every worker calls this.

    DDP puts all parameters into one bucket at first, and cuts them anew in the order in which the first backward pass
    made their gradients. Where gloo adds an entry from three workers on, and what PowerSGD stacks, follows the place in
    the bucket: a process that resumes would end with other last bits than one that was never stopped. Here the buckets
    are cut in the reversed order of registration, which is that of the backward pass where layers are registered in the
    order of their use.

    Nothing is done with `find_unused_parameters`, where DDP never cuts anew, nor with `static_graph`, where it
    exchanges the first step as one bucket.

    Returns True where the buckets were cut anew: hooks then have to be registered again.
    """
    if module.find_unused_parameters or module.static_graph:
        return False
    ddp: Any = module  # DDP itself makes its reducer again in this way, when it is unpickled
    parameters, sparse = ddp._build_params_for_reducer()
    parameters.reverse()
    sparse.reverse()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
    ddp.reducer._push_all_rebuilt_params()
    ddp.reducer._rebuild_buckets()
    return True
