"""Hands overrides back whose job's loss rises."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from accordion_client.sdk.client import AsyncClient
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

    async def watch(self, job_id: str, override_id: str, *, number: int) -> None:
        """Watch an override that was just requested."""
        newest = await self._newest(job_id)
        self.watched.append(
            Watched(
                job_id=job_id,
                override_id=override_id,
                number=number,
                loss=None if newest is None else newest.loss,
                epoch=-1 if newest is None else newest.epoch,
            )
        )

    async def check(self) -> None:
        """Hand back the overrides of jobs whose loss has risen, and forget those that ended."""
        for one in list(self.watched):
            overrides = (await self.client.overrides(one.job_id)).items
            state = next((row.state for row in overrides if row.id == one.override_id), None)
            if state not in LIVE:
                self.watched.remove(one)
                continue
            newest = await self._newest(one.job_id)
            if newest is None or newest.epoch <= one.epoch or not self._has_risen(one, newest):
                continue
            await self.client.cancel_override(one.job_id, one.override_id)
            self.watched.remove(one)
            self.handed_back.append(
                f"override #{one.number} of job {one.job_id}: the loss of epoch {newest.epoch} is"
                f" {newest.loss}, and it was {one.loss} before"
            )

    def _has_risen(self, one: Watched, newest: EpochView) -> bool:
        if newest.loss is None or not math.isfinite(newest.loss):
            return True
        return one.loss is not None and newest.loss > self.factor * one.loss

    async def _newest(self, job_id: str) -> EpochView | None:
        page = await self.client.epochs(job_id, limit=1, newest_first=True)
        return page.items[0] if page.items else None
