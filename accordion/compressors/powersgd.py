"""PowerSGD: a low-rank approximation by one power step per training step, with warm start (arXiv:1905.13727).

B layers of equal shape, N rows, M columns, R the rank.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from accordion.compressors.linalg import orthogonalize_
from accordion.messages import OptionValue
from accordion.wire import Context, Flow, Mean


def powersgd_flow(m_BNM: Tensor, context: Context) -> Flow:
    """Send P = MQ, then Q = Mᵀ·orth(P); the update is P·Qᵀ. Layers whose factors are no smaller travel dense."""
    q_BMR = context.warm
    if q_BMR is None or not _pays(m_BNM.shape[-2:], q_BMR.shape[-1]):
        update_BNM = yield Mean(m_BNM.clone())
        return update_BNM, m_BNM
    p_BNR = yield Mean(m_BNM @ q_BMR)
    orthogonalize_(p_BNR)
    new_BMR = yield Mean(m_BNM.mT @ p_BNR)
    update_BNM = p_BNR @ new_BMR.mT
    _keep_alive_(q_BMR, new_BMR)
    return update_BNM, update_BNM


def warm_q(
    old_MR: Tensor | None, shape: tuple[int, int], options: Mapping[str, OptionValue], *, draw: torch.Generator
) -> Tensor:
    """The start value of Q, (M, R): fresh columns, the first ones taken from `old_MR` as far as it has any.

    `draw` lives on the CPU and is seeded the same on all workers.
    """
    rows, columns = shape
    rank = min(int(options["rank"]), rows, columns)
    if old_MR is not None and old_MR.shape[1] == rank:
        return old_MR
    q_MR = torch.randn(columns, rank, generator=draw)
    if old_MR is not None:
        kept = min(rank, old_MR.shape[1])
        q_MR = q_MR.to(old_MR)
        q_MR[:, :kept] = old_MR[:, :kept]
    return q_MR


def _pays(shape: torch.Size, rank: int) -> bool:
    rows, columns = shape
    return rank * (rows + columns) < rows * columns


def _keep_alive_(q_BMR: Tensor, new_BMR: Tensor) -> None:
    """Take over the new columns; a column that vanished keeps its old direction, or it would stay zero for ever."""
    alive_B1R = torch.linalg.vector_norm(new_BMR, dim=-2, keepdim=True) > 0
    q_BMR.copy_(torch.where(alive_B1R, new_BMR, q_BMR))
