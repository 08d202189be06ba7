"""PowerSGD: low-rank approximation by one power iteration per training step, with warm start
(arXiv:1905.13727); with `refresh_every`, PowerSGD+ (arXiv:2509.11254).

A worker takes its own product P·Q_wᵀ off its residual, where the paper takes off the mean's, P·Qᵀ.
Updates and the mean of the residuals are the same. But with the mean's product, what differs
between workers is never taken off: it grew with the square root of the number of steps.

B layers of equal shape, N rows, M columns, R the rank. Q is kept as (R, M): with R contiguous
instead, M·Q takes four times as long on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from accordion.base.messages import OptionValue
from accordion.base.wire import Context, Flow, Mean
from accordion.compressors.linalg import (
    multiply_factors,
    orthonormalize_,
    scale_to_one_,
    singular_vectors,
)


def powersgd_flow(owed_BNM: Tensor, context: Context) -> Flow:
    """Send a rank-R approximation; layers that are no larger than their factors are sent dense."""
    warm_BRX = context.warm
    refresh_every = int(context.options["refresh_every"])
    if warm_BRX is None or not _is_smaller(owed_BNM.shape[-2:], warm_BRX.shape[-2]):
        yield from _send_dense(owed_BNM, context)
    elif refresh_every and context.step % refresh_every == 0:
        yield from _refresh_factors(owed_BNM, warm_BRX, context)
    elif context.options["factors"] == "both":
        yield from _both_factors(owed_BNM, warm_BRX, context)
    elif context.step % 2 == 0:
        yield from _left_factor(owed_BNM, warm_BRX, context)
    else:
        yield from _right_factor(owed_BNM, warm_BRX, context)


def warm_factors(
    old_RX: Tensor | None,
    shape: tuple[int, int],
    options: Mapping[str, OptionValue],
    *,
    draw: torch.Generator,
) -> Tensor:
    """Return the warm start: Qᵀ, (R, M), or with alternating factors Qᵀ and Pᵀ, (R, M + N).

    The first rows are those of `old_RX`, if given; the others are random. `draw` is a CPU generator
    with the same seed on all workers.
    """
    rows, columns = shape
    rank = min(int(options["rank"]), rows, columns)
    width = columns if options["factors"] == "both" else columns + rows
    if old_RX is not None and old_RX.shape == (rank, width):
        return old_RX
    fresh_RX = torch.randn(rank, width, generator=draw, dtype=torch.float32, device="cpu")
    if old_RX is not None:
        kept, known = min(rank, old_RX.shape[0]), min(width, old_RX.shape[1])
        fresh_RX = fresh_RX.to(old_RX)
        fresh_RX[:kept, :known] = old_RX[:kept, :known]
    return fresh_RX


def _both_factors(owed_BNM: Tensor, q_BRM: Tensor, context: Context) -> Flow:
    """Send P = MQ, then Q = Mᵀ·orth(P); the update is P·Qᵀ."""
    layers, rows, columns = owed_BNM.shape
    rank = q_BRM.shape[1]
    sent_BNR = context.scratch.take("p", (layers, rows, rank), owed_BNM.dtype)
    mean_BNR = yield Mean(
        torch.bmm(owed_BNM, q_BRM.mT, out=sent_BNR), next_values=layers * rank * columns
    )
    p_BNR = sent_BNR.copy_(mean_BNR)
    orthonormalize_(p_BNR)
    sent_BRM = context.scratch.take("q", (layers, rank, columns), owed_BNM.dtype)
    torch.bmm(p_BNR.mT, owed_BNM, out=sent_BRM)
    owed_BNM.baddbmm_(p_BNR, sent_BRM, alpha=-1)
    new_BRM = sent_BRM.copy_((yield Mean(sent_BRM)))
    _update_factor_(q_BRM, new_BRM)
    yield None  # hold
    multiply_factors(p_BNR, new_BRM, context.update)


def _left_factor(owed_BNM: Tensor, warm_BRX: Tensor, context: Context) -> Flow:
    """Send P = M·orth(Q); the update is P·orth(Q)ᵀ."""
    layers, rows, columns = owed_BNM.shape
    q_BRM, p_BRN = warm_BRX[..., :columns], warm_BRX[..., columns:]
    orthonormalize_(q_BRM.mT)
    sent_BNR = context.scratch.take("p", (layers, rows, p_BRN.shape[1]), owed_BNM.dtype)
    torch.bmm(owed_BNM, q_BRM.mT, out=sent_BNR)
    owed_BNM.baddbmm_(sent_BNR, q_BRM, alpha=-1)
    p_BNR = sent_BNR.copy_((yield Mean(sent_BNR)))
    _update_factor_(p_BRN, p_BNR.mT)
    yield None  # hold
    multiply_factors(p_BNR, q_BRM, context.update)


def _right_factor(owed_BNM: Tensor, warm_BRX: Tensor, context: Context) -> Flow:
    """Send Q = Mᵀ·orth(P); the update is orth(P)·Qᵀ."""
    layers, _, columns = owed_BNM.shape
    q_BRM, p_BRN = warm_BRX[..., :columns], warm_BRX[..., columns:]
    orthonormalize_(p_BRN.mT)
    sent_BRM = context.scratch.take("q", (layers, q_BRM.shape[1], columns), owed_BNM.dtype)
    torch.bmm(p_BRN, owed_BNM, out=sent_BRM)
    owed_BNM.baddbmm_(p_BRN.mT, sent_BRM, alpha=-1)
    new_BRM = sent_BRM.copy_((yield Mean(sent_BRM)))
    _update_factor_(q_BRM, new_BRM)
    yield None  # hold
    multiply_factors(p_BRN.mT, new_BRM, context.update)


def _refresh_factors(owed_BNM: Tensor, warm_BRX: Tensor, context: Context) -> Flow:
    """Send the gradients dense; the warm start becomes the singular vectors of their mean.

    With alternating factors the update uses a worker's own factor, so all take the mean of theirs:
    workers with other processors may compute other singular vectors.
    """
    columns, rank = owed_BNM.shape[2], warm_BRX.shape[1]
    is_alternating = warm_BRX.shape[2] > columns
    mean_BNM = yield Mean(owed_BNM, next_values=warm_BRX.numel() if is_alternating else 0)
    kept_BNM = mean_BNM.clone()
    owed_BNM.zero_()
    # The decomposition refuses values that are not finite; the step that has them is skipped.
    finite_BNM = torch.nan_to_num(kept_BNM, nan=0.0, posinf=0.0, neginf=0.0)
    p_BRN, q_BRM = singular_vectors(finite_BNM, rank)
    warm_BRX[..., :columns] = q_BRM
    if is_alternating:
        warm_BRX[..., columns:] = p_BRN
        warm_BRX.copy_((yield Mean(warm_BRX)))
    yield None  # hold
    context.update.copy_(kept_BNM)


def _send_dense(owed_BNM: Tensor, context: Context) -> Flow:
    kept_BNM = context.scratch.take("mean", owed_BNM.shape, owed_BNM.dtype)
    kept_BNM.copy_((yield Mean(owed_BNM)))
    owed_BNM.zero_()
    yield None  # hold
    context.update.copy_(kept_BNM)


def _is_smaller(shape: torch.Size, rank: int) -> bool:
    rows, columns = shape
    return rank * (rows + columns) < rows * columns


def _update_factor_(old_BRX: Tensor, new_BRX: Tensor) -> None:
    """Copy the new rows, scaled; one that became zero keeps its old direction, or it would stay so.

    Their size makes no difference, but the next product with a gradient of that size could overflow
    or vanish.
    """
    alive_BR1 = torch.linalg.vector_norm(new_BRX, ord=math.inf, dim=-1, keepdim=True) > 0
    old_BRX.copy_(torch.where(alive_BR1, new_BRX, old_BRX))
    scale_to_one_(old_BRX, dim=-1)
