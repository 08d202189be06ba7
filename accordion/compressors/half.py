"""16 bits per value, averaged in 16 bits like PyTorch's fp16 hook.

A gradient beyond the format's range is not cut off, as that would change it in silence: the step is
skipped on all workers, and a GradScaler lowers its scale.
"""

from __future__ import annotations

import torch
from torch import Tensor

from accordion.base.wire import Context, Flow, Mean

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_ROOM = 1.05
"""Factor between the largest value that is sent and the format's largest: in a sum, every worker's
part adds a rounding error.
"""


def half_flow(owed_BL: Tensor, context: Context) -> Flow:
    """Round values to 16 bits."""
    dtype = _DTYPES[str(context.options["dtype"])]
    if owed_BL.numel():
        least, largest = torch.aminmax(owed_BL)
        context.check_finite(torch.maximum(-least, largest).mul_(_ROOM).to(dtype))
    half_BL = context.scratch.take("half", owed_BL.shape, dtype).copy_(owed_BL)
    mean_BL = yield Mean(half_BL)
    context.update.copy_(mean_BL)
