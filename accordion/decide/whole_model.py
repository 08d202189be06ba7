"""What a decision says about the whole model, with an override or without: the global batch and the
local steps; pure, stdlib only.
"""

from __future__ import annotations

from typing import Any

from accordion.base.messages import BatchLevel
from accordion.config import BatchConfig
from accordion.decide.overrides import ResolvedOverride


def batch_fields(
    batch: BatchConfig | None, policy_level: BatchLevel, *, held: ResolvedOverride | None
) -> dict[str, Any]:
    """Return a decision's fields about the batch; `held` is the override of it in force."""
    if batch is None:
        return {}
    if held is None or held.global_batch is None:
        return {"batch_level": policy_level, "global_batch": batch.size(policy_level)}
    return {
        "batch_level": batch.level(held.global_batch),
        "global_batch": held.global_batch,
        "batch_override": held.override.id,
        "policy_batch_level": policy_level,
    }


def local_steps_fields(policy_length: int, *, held: ResolvedOverride | None) -> dict[str, Any]:
    """Return a decision's fields about local steps; `held` is the override of them in force.

    An override holds in the start of a run too, in place of the exchange in every step: the user
    decided that training can do without it. When it ends within the start, gradients are exchanged
    in every step again.
    """
    if held is None:
        return {"local_steps": policy_length}
    return {
        "local_steps": held.local_steps,
        "local_steps_override": held.override.id,
        "policy_local_steps": policy_length,
    }
