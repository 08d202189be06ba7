"""Hands overrides back whose job's loss rises."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import anyio

from accordion_client.sdk.client import AsyncClient
from accordion_client.sdk.errors import ClientError, NotFound
from accordion_service.domain.overrides.states import LIVE
from accordion_service.schemas.jobs import EpochView


@dataclass(slots=True, kw_only=True)
class Watched:
    """An override of this server that may still hold."""

    job_id: str
    override_id: str
    number: int
    loss: float | None
    """Training loss of the newest epoch before it; None without one."""
    epoch: int
    """Newest epoch before it; -1 without one."""


@dataclass(slots=True)
class LossGuard:
    """Watches the losses of overridden jobs.

    Args:
        client: of the service.
        factor: rise of the loss from which overrides are handed back.
    """

    client: AsyncClient
    factor: float
    watched: list[Watched] = field(default_factory=list)
    handed_back: list[str] = field(default_factory=list)
    """What was handed back, and why, oldest first."""
    _lock: anyio.Lock = field(default_factory=anyio.Lock)
    """Held by a check: the agent and the clock both ask for one."""

    async def find_newest(self, job_id: str) -> EpochView | None:
        """Return the newest finished epoch of a job; None without one."""
        page = await self.client.epochs(job_id, limit=1, newest_first=True)
        return page.items[0] if page.items else None

    def watch(
        self, job_id: str, override_id: str, *, number: int, before: EpochView | None
    ) -> None:
        """Watch an override that was requested after an epoch."""
        self.watched.append(
            Watched(
                job_id=job_id,
                override_id=override_id,
                number=number,
                loss=None if before is None else before.loss,
                epoch=-1 if before is None else before.epoch,
            )
        )

    async def check(self) -> None:
        """Hand back the overrides of jobs whose loss has risen, and forget those that ended.

        Where the service does not answer for one, it is asked again at the next check.
        """
        async with self._lock:
            for one in list(self.watched):
                try:
                    is_over = await self._check_one(one)
                except NotFound:  # the job was deleted
                    is_over = True
                except ClientError:
                    is_over = False
                if is_over:
                    self.watched.remove(one)

    async def _check_one(self, one: Watched) -> bool:
        """Hand an override back if the loss has risen; return whether it is over."""
        overrides = (await self.client.overrides(one.job_id)).items
        state = next((row.state for row in overrides if row.id == one.override_id), None)
        if state not in LIVE:
            return True
        newest = await self.find_newest(one.job_id)
        if newest is None or newest.epoch <= one.epoch or not self._has_risen(one, newest):
            return False
        reason = f"the loss of epoch {newest.epoch} is {newest.loss}, and it was {one.loss} before"
        await self.client.cancel_override(one.job_id, one.override_id, reason=reason)
        self.handed_back.append(f"override #{one.number} of job {one.job_id}: {reason}")
        return True

    def _has_risen(self, one: Watched, newest: EpochView) -> bool:
        if newest.loss is None or not math.isfinite(newest.loss):
            return True
        return one.loss is not None and newest.loss > self.factor * one.loss
