"""Ways of training that a hook meets, each as a model, DDP's options and how a step is taken; and
the law for all.

The law: what the workers were sent, averaged over them, is what their optimizers got.

    mean over workers of (raw gradient + residual before - residual after) = gradient after the
    exchange
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from accordion.compressors import COMPRESSORS, ladder_of
from accordion.config import BucketsPerExchange, Config, DetectorConfig, LayerPlan, Window
from accordion.hook.layers import named_layers
from accordion.session.optimizer_steps import StepMode
from accordion.session.session import Session, attach
from tests.distributed.small import SmallNet, batch

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def cross_entropy(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(inputs).float(), labels)


class Tied(nn.Module):
    """One matrix used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(16, 40)
        self.there = nn.Linear(40, 40)
        self.back = nn.Linear(40, 40)
        self.back.weight = self.there.weight
        self.leave = nn.Linear(40, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.back(self.there(self.enter(x.flatten(1))).relu()).relu())


class Branches(nn.Module):
    """Two ways through; `way` says which of them is taken, 2 means both."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(16, 48)
        self.ways = nn.ModuleList(nn.Linear(48, 40) for _ in range(2))
        self.leave = nn.Linear(40, 4)
        self.never = nn.Linear(33, 33)
        self.way = 0

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x.flatten(1)).relu()
        x = self.ways[0](x) + self.ways[1](x) if self.way == 2 else self.ways[self.way](x)
        return self.leave(x.relu())


class Complex(nn.Module):
    """Complex layers of one and two dimensions, one of them transposed in memory, before a real
    one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Parameter(torch.randn(16, 48, dtype=torch.complex64) / 4)
        self.turned = nn.Parameter((torch.randn(40, 48, dtype=torch.complex64) / 7).T)
        self.scale = nn.Parameter(torch.ones(40, dtype=torch.complex64))
        self.leave = nn.Linear(40, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(
            (x.flatten(1).to(self.enter.dtype) @ self.enter @ self.turned * self.scale).abs()
        )


class Flat(nn.Module):
    """Every parameter has one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.shift = nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) * self.scale + self.shift)[:, :4]


class Deep(nn.Module):
    """Eight matrices, unless the depth says otherwise, and the last."""

    def __init__(self, depth: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(depth))
        self.leave = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers:
            x = x + layer(x).tanh()
        return self.leave(x)


def frozen() -> nn.Module:
    model = SmallNet()
    model.first.requires_grad_(requires_grad=False)
    return model


def channels_last() -> nn.Module:
    model = SmallNet()
    model.conv = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1))
    return model.to(memory_format=torch.channels_last)


def compiled() -> nn.Module:
    model: Any = torch.compile(SmallNet(), backend="aot_eager")
    return model


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way of training."""

    model: Callable[[], nn.Module] = SmallNet
    ddp: Mapping[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    """Type of the parameters and inputs."""
    autocast: torch.dtype | None = None
    pieces: int = 1
    """Backward passes a step, all but the last under `no_sync`."""
    scaled: bool = False
    zeroed: bool = False
    """Gradients are set to zero between steps and not to None."""
    clip: float | None = None
    mode: StepMode = "session"
    """Who takes the optimizer's step."""
    groups: bool = False
    mixed: bool = False
    """Layers of one bucket have different methods."""
    compiled: bool = False
    """The DDP module itself is compiled."""
    way_of: Callable[[int, int], int] | None = None
    """Branch by rank and step."""
    buckets_per_exchange: BucketsPerExchange = 1
    precision: float = 2**-18
    """Precision of the result, relative to the largest entry: some fifty roundings in fp32."""


WAYS: Mapping[str, Way] = {
    "as usual": Way(),
    "accumulated over no_sync": Way(pieces=4),
    "bf16 autocast": Way(autocast=torch.bfloat16, precision=2**-7),
    "fp16 autocast with scaler": Way(autocast=torch.float16, scaled=True, precision=2**-9),
    "accumulated and scaled": Way(pieces=2, scaled=True),
    "clipped": Way(clip=0.01),
    "scaled and clipped": Way(clip=0.01, scaled=True),
    "several groups": Way(groups=True),
    "frozen layer": Way(model=frozen),
    "unused layers": Way(model=Branches, ddp={"find_unused_parameters": True}),
    "layers unused in some steps": Way(
        model=Branches, ddp={"find_unused_parameters": True}, way_of=lambda _, step: step % 2
    ),
    "layers unused in some steps, gradients as views": Way(
        model=Branches,
        ddp={"find_unused_parameters": True, "gradient_as_bucket_view": True},
        way_of=lambda _, step: step % 2,
    ),
    "layers unused in some steps, gradients set to zero": Way(
        model=Branches,
        ddp={"find_unused_parameters": True},
        way_of=lambda _, step: step % 2,
        zeroed=True,
    ),
    "layers unused in some steps, gradients as views set to zero": Way(
        model=Branches,
        ddp={"find_unused_parameters": True, "gradient_as_bucket_view": True},
        way_of=lambda _, step: step % 2,
        zeroed=True,
    ),
    "layers unused on one rank": Way(
        model=Branches,
        ddp={"find_unused_parameters": True, "bucket_cap_mb": 0.002},
        way_of=lambda rank, step: (rank + step) % 3,
    ),
    "tied layers": Way(model=Tied),
    "one bucket": Way(ddp={"bucket_cap_mb": 100}),
    "nine buckets": Way(model=Deep, ddp={"bucket_cap_mb": 0.0001}),
    "nine buckets, three to an exchange": Way(
        model=Deep, ddp={"bucket_cap_mb": 0.0001}, buckets_per_exchange=3
    ),
    "static graph in one exchange": Way(ddp={"static_graph": True}, buckets_per_exchange="all"),
    "unused layers in one exchange": Way(
        model=Branches,
        ddp={"find_unused_parameters": True, "bucket_cap_mb": 0.002},
        way_of=lambda rank, step: (rank + step) % 3,
        buckets_per_exchange="all",
    ),
    "static graph": Way(ddp={"static_graph": True}),
    "static graph of several dtypes": Way(model=Complex, ddp={"static_graph": True}),
    "gradients as bucket views": Way(ddp={"gradient_as_bucket_view": True}),
    "compiled, then DDP": Way(model=compiled, ddp={"bucket_cap_mb": 25}),
    "DDP, then compiled": Way(compiled=True, ddp={"bucket_cap_mb": 25}),
    "channels last": Way(model=channels_last),
    # Both the twin's gradient and the exchanged one are rounded to 8 bits, the residual is not.
    "bf16 parameters": Way(dtype=torch.bfloat16, precision=2**-6),
    "fp64 parameters": Way(dtype=torch.float64, precision=2**-18),
    "vectors only": Way(model=Flat),
    "complex parameters": Way(model=Complex, ddp={"bucket_cap_mb": 0.002}),
    "several methods in a bucket": Way(mixed=True, ddp={"bucket_cap_mb": 100}),
}


@dataclass
class Trial:
    """One worker that trains in one way."""

    way: Way
    rank: int
    ddp: DistributedDataParallel
    session: Session
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None
    called: Any
    """What the script calls: the DDP module, or its compiled form."""

    def named(self) -> dict[str, nn.Parameter]:
        named = named_layers(self.ddp.module)
        return {name: parameter for name, parameter in named.items() if parameter.requires_grad}

    def parameters(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.ddp.module.parameters()]

    def owed(self) -> dict[str, Tensor]:
        found = self.session.state_dict()["engine"]["residuals"]
        return {name: residual.double() for name, residual in found.items()}

    def raw(self, twin: nn.Module, step: int) -> dict[str, Tensor]:
        """This worker's own gradient of the step, from a model without DDP."""
        twin.load_state_dict(self._model().state_dict())
        twin.zero_grad()
        self._select(twin, step)
        scale = self.scaler.get_scale() if self.scaler else 1.0
        self._backward(twin, step, scale=lambda loss: loss * scale)
        return {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad / scale
            for name, parameter in named_layers(twin).items()
            if parameter.requires_grad
        }

    def backward(self, step: int) -> None:
        self._select(self.ddp.module, step)
        self._backward(self.called, step, self.scaler.scale if self.scaler else lambda loss: loss)

    def finish(self) -> bool:
        """Clip if the way says so, and step."""
        if self.way.clip is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.ddp.parameters(), self.way.clip)
        taken = self._take_step()
        self.optimizer.zero_grad(set_to_none=not self.way.zeroed)
        return taken

    def _take_step(self) -> bool:
        if self.way.mode != "optimizer":
            taken = self.session.step().taken
            if self.way.mode == "session":
                return taken
        skipped = self.session.skipped_steps
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        return self.session.skipped_steps == skipped

    def step(self, step: int) -> bool:
        self.backward(step)
        return self.finish()

    def account(self, steps: Iterable[int]) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
        """Take the steps: what this worker gave and what came back, by layer, in fp64."""
        twin, owed, accounts = copy.deepcopy(self._model()), self.owed(), []
        for step in steps:
            gave, got = self._account(twin, step)
            before, owed = owed, self.owed()
            for name in gave:
                for residuals, sign in ((before, 1.0), (owed, -1.0)):
                    if name in residuals:
                        gave[name] += sign * residuals[name].reshape(-1)
            accounts.append((gave, got))
        return accounts

    def _account(self, twin: nn.Module, step: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Take a step: this worker's own gradient and the exchanged one, by layer, in fp64."""
        raw = self.raw(twin, step)
        self.backward(step)
        scale = self.scaler.get_scale() if self.scaler else 1.0
        got = {
            name: torch.zeros_like(raw[name]) if parameter.grad is None else parameter.grad / scale
            for name, parameter in self.named().items()
        }
        assert self.finish()
        return (
            {name: self._flat(value) for name, value in raw.items()},
            {name: self._flat(value) for name, value in got.items()},
        )

    def _model(self) -> nn.Module:
        """The model inside DDP, not compiled."""
        model: nn.Module = getattr(self.ddp.module, "_orig_mod", self.ddp.module)
        return model

    def _flat(self, value: Tensor) -> Tensor:
        """Return a tensor in fp64; complex values become interleaved real and imaginary parts."""
        return (torch.view_as_real(value) if value.is_complex() else value).double().reshape(-1)

    def _select(self, model: nn.Module, step: int) -> None:
        if self.way.way_of is not None:
            model.way = self.way.way_of(self.rank, step)

    def _backward(self, model: Any, step: int, scale: Callable[[Tensor], Tensor]) -> None:
        inputs, labels = batch(self.rank, step)
        pieces = list(
            zip(
                inputs.to(self.way.dtype).chunk(self.way.pieces),
                labels.chunk(self.way.pieces),
                strict=True,
            )
        )
        for place, (x, y) in enumerate(pieces):
            last = place == len(pieces) - 1 or not isinstance(model, DistributedDataParallel)
            with nullcontext() if last else model.no_sync():
                with self._cast():
                    loss = cross_entropy(model, x, y) / len(pieces)
                scale(loss).backward()

    def _cast(self) -> AbstractContextManager[Any]:
        return torch.autocast("cpu", self.way.autocast) if self.way.autocast else nullcontext()


def trial(rank: int, way: Way, method: str, **settings: Any) -> Trial:
    """`rung` is the level's name, `overlap` goes to `attach`; all others are of `Config`."""
    overlap = settings.pop("overlap", True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = way.model()
        if way.dtype != torch.float32:  # `to` would make complex parameters real
            model.to(way.dtype)
    ddp = DistributedDataParallel(
        model, **{"bucket_cap_mb": 0.02, "broadcast_buffers": False, **way.ddp}
    )
    weights = list(ddp.parameters())
    groups = (
        [{"params": weights[::2]}, {"params": weights[1::2], "lr": 0.01}] if way.groups else weights
    )
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    scaler = (
        torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=10**6)
        if way.scaled
        else None
    )
    session = attach(
        ddp,
        config_of(way, method, **settings),
        optimizer=optimizer,
        scaler=scaler,
        step=way.mode,
        overlap=overlap,
    )
    called = torch.compile(ddp, backend="aot_eager") if way.compiled else ddp
    return Trial(way, rank, ddp, session, optimizer, scaler, called)


def config_of(way: Way, method: str, rung: str = "high", **settings: Any) -> Config:
    level = ladder_of(method)[rung == "high"]
    by_layer = {}
    if way.mixed:
        others = sorted(COMPRESSORS)
        by_layer = {
            f"middle.{place}.weight": LayerPlan(
                method=others[(others.index(method) + place + 1) % len(others)]
            )
            for place in range(3)
        }
    detector = DetectorConfig(window=Window(epochs=1))
    return Config(
        method=method,
        low=level.options,
        high=level.options,
        by_layer=by_layer,
        detector=detector,
        **{"buckets_per_exchange": way.buckets_per_exchange, **settings},
    )
