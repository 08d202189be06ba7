"""Orthonormal columns for PowerSGD."""

from __future__ import annotations

import torch
from torch import Tensor

_QR_FROM_RANK = 3
"""From here on QR beats Gram-Schmidt (measured on one CPU thread)."""
_EPSILON = 1e-6
"""Part of a column's old length below which what is left of it is rounding error; such a column becomes zero."""


def orthogonalize_(p_BNR: Tensor) -> None:
    """Make the columns of each matrix orthonormal, in place. R is at most N.

    A zero or dependent column becomes zero (R < 3) or an arbitrary unit column orthogonal to the others: never NaN.
    """
    if p_BNR.shape[-1] >= _QR_FROM_RANK:
        p_BNR.copy_(torch.linalg.qr(p_BNR).Q)
        return
    for column in range(p_BNR.shape[-1]):
        c_BN1 = p_BNR[..., column : column + 1]
        before_B11 = torch.linalg.vector_norm(c_BN1, dim=-2, keepdim=True)
        if column:
            done_BNC = p_BNR[..., :column]
            c_BN1 -= done_BNC @ (done_BNC.mT @ c_BN1)
        _normalize_(c_BN1, before_B11)


def _normalize_(c_BN1: Tensor, before_B11: Tensor) -> None:
    length_B11 = torch.linalg.vector_norm(c_BN1, dim=-2, keepdim=True)
    alive_B11 = length_B11 > _EPSILON * before_B11
    c_BN1.mul_(torch.where(alive_B11, 1.0 / length_B11, 0.0))
