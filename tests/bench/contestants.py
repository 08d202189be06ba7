"""Who takes part in the training step: each with its own model, optimizer and way of averaging
gradients.

All train the same ResNet-18 from the same weights on the same pictures. Running statistics of
BatchNorm stay each worker's own for all of them, as in the published scripts of PowerSGD: what is
compared is the exchange of gradients.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from accordion import Config, attach
from accordion.config import BucketsPerExchange
from accordion.session.optimizer_steps import StepMode
from tests.bench.peers_package import PackagePowerSGD, find_clone
from tests.bench.peers_powersgd import PeerPowerSGD
from tests.bench.resnet import resnet18

LR = 0.01
RANK = 4
ADVISED: Mapping[str, Any] = {"bucket_cap_mb": 5, "gradient_as_bucket_view": True}
"""DDP's settings as our README advises them; `none` is compared with plain DDP at DDP's own."""
PLANNING_STEPS = 70
"""Steps that cover a first exchange plan and either a trial and the return from it, or a second
plan.
"""
EPOCH_STEPS = 50
"""Steps between two decisions of `cost_aware`: they cover a plan, a trial and the return from it.
"""
PACKAGE = "epfml package"
"""Contestant that is there if a clone is named."""
WHOLE_MODEL_MB = 1000
"""A bucket that holds every gradient, so that nothing leaves before backward has ended."""


class Contestant:
    """Forward and backward, then whatever `_finish` does."""

    payload = 0
    """Bytes handed to the network so far, where the contestant counts them."""
    settling_steps = 1
    """Steps before it is timed."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.optimizer = torch.optim.SGD(
            module.parameters(), lr=LR, momentum=0.9, weight_decay=1e-4
        )

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        """One training step; the loss before it."""
        loss = nn.functional.cross_entropy(self.module(images), labels)
        loss.backward()
        self._finish()
        return loss.detach()

    def _finish(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def parameters(self) -> Tensor:
        """All of them, flat."""
        return torch.cat([parameter.detach().view(-1) for parameter in self.module.parameters()])


class HalfDdp(Contestant):
    """DDP with PyTorch's fp16 hook."""

    def __init__(self) -> None:
        module = ddp()
        module.register_comm_hook(None, fp16_compress_hook)
        super().__init__(module)


class Accordion(Contestant):
    """Ours, at a level that does not change."""

    mode: StepMode = "session"

    def __init__(
        self,
        method: str,
        options: Mapping[str, Any],
        *,
        overlap: bool = True,
        buckets_per_exchange: BucketsPerExchange = "auto",
        policy: str = "two_level",
        **settings: Any,
    ) -> None:
        super().__init__(ddp(**settings))
        config = Config(
            method=method,
            low=options,
            high=options,
            buckets_per_exchange=buckets_per_exchange,
            policy=policy,
        )
        if buckets_per_exchange == "auto":
            self.settling_steps = PLANNING_STEPS
        self._session = attach(
            self.module, config, optimizer=self.optimizer, overlap=overlap, step=self.mode
        )

    @property
    def payload(self) -> int:
        return self._session.ledger.total.payload

    @property
    def exchange_plan(self) -> tuple[int, ...]:
        """Buckets by exchange, as decided."""
        return self._session.decision.exchange_plan

    @property
    def levels(self) -> str:
        """Names of the levels in force."""
        return "+".join(
            sorted({level.name for level in self._session.decision.level_by_layer.values()})
        )

    def _finish(self) -> None:
        self._session.step()
        self.optimizer.zero_grad()


class CostAware(Accordion):
    """Ours with the policy that takes the fastest of `none`, `half` and the light level; an epoch
    ends each time it has settled.
    """

    decisions = 3
    """The exchange plan of the first is that of the light level; the second one measures its own.
    """

    def __init__(self) -> None:
        super().__init__("powersgd", {"rank": RANK}, policy="cost_aware", **ADVISED)
        self.settling_steps = self.decisions * EPOCH_STEPS + PLANNING_STEPS
        self._steps = 0

    def _finish(self) -> None:
        super()._finish()
        self._steps += 1
        if self._steps % EPOCH_STEPS == 0 and self._steps <= self.decisions * EPOCH_STEPS:
            self._session.end_epoch(lr=LR, next_lr=LR)


class Following(Accordion):
    """Ours in an unchanged loop, which calls `optimizer.step()`."""

    mode: StepMode = "optimizer"

    def _finish(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


class Package(Contestant):
    """epfml's package after backward."""

    def __init__(self) -> None:
        super().__init__(resnet18())
        self._package = PackagePowerSGD(list(self.module.parameters()), rank=RANK)

    def _finish(self) -> None:
        self._package.take_step(self.optimizer)


class Peer(Contestant):
    """epfml's method after backward, re-implemented; the gradients keep the residual, so they are
    never set to zero.
    """

    def __init__(self, sides: int) -> None:
        super().__init__(resnet18())
        self._parameters = list(self.module.parameters())
        self._aggregator = PeerPowerSGD(self._parameters, rank=RANK, sides=sides)

    def _finish(self) -> None:
        gradients = [parameter.grad for parameter in self._parameters]
        averaged = self._aggregator.aggregate_(gradients)
        self.payload += self._aggregator.payload_bytes
        for parameter, gradient in zip(self._parameters, averaged, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient


def ddp(**settings: Any) -> DistributedDataParallel:
    """The model under DDP, with PyTorch's own settings but for BatchNorm's statistics."""
    with warnings.catch_warnings():
        # Its successor is not there in the oldest torch that we support.
        warnings.simplefilter("ignore", FutureWarning)
        # The seed gives all workers the same weights; sending them takes 14 s at 25 Mbit/s.
        return DistributedDataParallel(
            resnet18(), broadcast_buffers=False, init_sync=False, **settings
        )


CONTESTANTS: Mapping[str, Callable[[], Contestant]] = {
    "ddp": lambda: Contestant(ddp()),
    "fp16": HalfDdp,
    "accordion": lambda: Accordion("powersgd", {"rank": RANK}, **ADVISED),
    "accordion default": lambda: Accordion("powersgd", {"rank": RANK}),
    "accordion separate": lambda: Accordion(
        "powersgd", {"rank": RANK}, buckets_per_exchange=1, **ADVISED
    ),
    "accordion together": lambda: Accordion(
        "powersgd", {"rank": RANK}, buckets_per_exchange="all", **ADVISED
    ),
    "accordion following": lambda: Following("powersgd", {"rank": RANK}, **ADVISED),
    "accordion alternating": lambda: Accordion(
        "powersgd", {"rank": RANK, "factors": "alternating"}, **ADVISED
    ),
    "accordion blocking": lambda: Accordion("powersgd", {"rank": RANK}, overlap=False, **ADVISED),
    "accordion after backward": lambda: Accordion(
        "powersgd", {"rank": RANK}, overlap=False, **{**ADVISED, "bucket_cap_mb": WHOLE_MODEL_MB}
    ),
    "epfml": lambda: Peer(sides=2),
    "epfml alternating": lambda: Peer(sides=1),
    **({PACKAGE: Package} if find_clone() else {}),
    "cost_aware": CostAware,
    "half": lambda: Accordion("half", {}, buckets_per_exchange=1, **ADVISED),
    "half together": lambda: Accordion("half", {}, buckets_per_exchange="all", **ADVISED),
    "none advised": lambda: Accordion("none", {}, buckets_per_exchange=1, **ADVISED),
    "none": lambda: Accordion("none", {}),
    "alone": lambda: Contestant(resnet18()),
}
ALONE = "alone"
"""Averages nothing: the part of a step that no exchange can take away."""
