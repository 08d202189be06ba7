"""What every worker computes for itself in PowerSGD, with the same bits on all of them.

LAPACK, products of matrices and long sums round differently on several threads, so all of this is
computed on one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_QR_FROM_RANK = 3
"""Rank from which QR is faster than Gram-Schmidt (measured on one CPU thread)."""
_EPSILON = 1e-6
"""Fraction of a column's norm below which the rest is rounding error and is set to zero."""


def orthonormalize_(p_BNR: Tensor) -> None:
    """Make the columns of each matrix orthonormal, in place. R is at most N.

    A zero or dependent column becomes zero (R < 3) or an arbitrary unit column orthogonal to the
    others, never NaN.
    """
    scale_to_one_(p_BNR, dim=-2)
    with _single_threaded(p_BNR.device):
        _orthogonalize_(p_BNR)


def scale_to_one_(values: Tensor, dim: int) -> None:
    """Multiply by powers of two, so that the largest magnitude along `dim` is from 0.5 to 1.

    That changes no digit, but squares and products then neither overflow nor vanish. What is zero
    or not finite stays so.
    """
    largest = torch.linalg.vector_norm(values, ord=math.inf, dim=dim, keepdim=True)
    mantissa, _ = torch.frexp(largest)
    values.mul_(mantissa.div_(largest).nan_to_num_(nan=1.0))


def multiply_factors(p_BNR: Tensor, q_BRM: Tensor, out_BNM: Tensor) -> None:
    """Write P·Q."""
    with _single_threaded(p_BNR.device):
        torch.bmm(p_BNR, q_BRM, out=out_BNM)


def singular_vectors(m_BNM: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return the left and right singular vectors of the R largest values as rows, (B, R, N) and
    (B, R, M). The entries of a right one have a sum that is not negative.
    """
    with _single_threaded(m_BNM.device):
        p_BNK, _, q_BKM = torch.linalg.svd(m_BNM, full_matrices=False)
        p_BRN, q_BRM = p_BNK[..., :rank].mT, q_BKM[:, :rank]
        sums_BR1 = q_BRM.sum(2, keepdim=True)
        signs_BR1 = torch.copysign(torch.ones_like(sums_BR1), sums_BR1)
        return p_BRN * signs_BR1, q_BRM * signs_BR1


@contextmanager
def _single_threaded(device: torch.device) -> Iterator[None]:
    """Compute on one thread; several are hardly faster here.

    Torch keeps the number per thread, so other threads of this process are not affected.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _orthogonalize_(p_BNR: Tensor) -> None:
    if p_BNR.shape[-1] >= _QR_FROM_RANK:
        p_BNR.copy_(torch.linalg.qr(p_BNR).Q)
        return
    for column in range(p_BNR.shape[-1]):
        c_BN1 = p_BNR[..., column : column + 1]
        before_B11 = torch.linalg.vector_norm(c_BN1, dim=-2, keepdim=True)
        if column:
            previous_BNC = p_BNR[..., :column]
            c_BN1 -= previous_BNC @ (previous_BNC.mT @ c_BN1)
        _normalize_(c_BN1, before_B11)


def _normalize_(c_BN1: Tensor, before_B11: Tensor) -> None:
    length_B11 = torch.linalg.vector_norm(c_BN1, dim=-2, keepdim=True)
    alive_B11 = length_B11 > _EPSILON * before_B11
    c_BN1.mul_(torch.where(alive_B11, 1.0 / length_B11, 0.0))
