"""The library on one GPU: `python -m tests.bench.gpu [--quick] [--out FOLDER]`.

Encode and decode of every method against the card's copy bandwidth, the detector's statistic
against the optimizer's step, and a training step against plain DDP. Contestants take turns, and
times are of the card (CUDA events). The group has one rank, by NCCL, so a collective costs its
launch and no time on a link. Writes `gpu.json` and `gpu.md`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from accordion.base.messages import LayerInfo, Level
from accordion.compress.compression_engine import Engine
from accordion.compress.exchange import GroupNetwork, run_flows
from accordion.compress.layer_stacks import Layer
from accordion.compressors import COMPRESSORS, ladder_of
from accordion.config import Config, DetectorConfig, Window
from accordion.session.session import attach
from accordion_workers.models.resnet import ResNet18
from tests.bench import report
from tests.bench.timing import Spread

RESULTS = Path(__file__).with_name("results")
BUCKET_BYTES = 25 << 20
ROUNDS, CALLS = 20, 3
BATCH = 512
Shapes = Mapping[str, tuple[int, ...]]


def resnet50_shapes() -> Shapes:
    """Layers of a ResNet-50 with more than one dimension: 54 of 25.5 M values."""
    shapes: dict[str, tuple[int, ...]] = {"stem": (64, 3, 7, 7)}
    width_in = 64
    for stage, (blocks, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)]):
        for block in range(blocks):
            name = f"{stage}.{block}"
            shapes[f"{name}.a"] = (width, width_in, 1, 1)
            shapes[f"{name}.b"] = (width, width, 3, 3)
            shapes[f"{name}.c"] = (4 * width, width, 1, 1)
            if block == 0:
                shapes[f"{name}.short"] = (4 * width, width_in, 1, 1)
            width_in = 4 * width
    return shapes | {"head": (1000, 2048)}


MODELS: Mapping[str, Shapes] = {
    "one layer of 25.6 M": {"layer": (5000, 5120)},
    "54 layers of a ResNet-50, 25.5 M": resnet50_shapes(),
    "one layer of 100 M": {"layer": (10_000, 10_000)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Seconds of every round."""

    card: Sequence[float]
    host: Sequence[float]
    """Until the host had enqueued the work, or had waited for it."""


class Exchange:
    """All that an exchange does for a model's gradients in a group of one, bucket by bucket."""

    def __init__(self, shapes: Shapes, level: Level, device: torch.device) -> None:
        infos = [LayerInfo(name=name, shape=shape) for name, shape in shapes.items()]
        self.engine = Engine(infos, seed=0, world_size=1)
        self.engine.plan = dict.fromkeys(shapes, level)
        sizes = {name: torch.Size(shape).numel() for name, shape in shapes.items()}
        self.values = sum(sizes.values())
        self._network = GroupNetwork(dist.group.WORLD, device)
        draw = torch.Generator(device).manual_seed(0)
        self._draws = itertools.cycle(
            [torch.randn(self.values, generator=draw, device=device) for _ in range(2)]
        )
        self._flat = torch.empty(self.values, device=device)
        parts = torch.split(self._flat, list(sizes.values()))
        self.layers = [
            Layer(name=name, gradient=part.view(shape))
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        ]
        self._buckets = list(_buckets(self.layers))
        self._is_skipped = torch.zeros((), dtype=torch.bool, device=device)

    def prepare(self) -> None:
        """New gradients."""
        self._flat.copy_(next(self._draws))

    def __call__(self) -> None:
        for bucket in self._buckets:
            stacks = self.engine.build_stacks(bucket)
            run_flows([stack.flow for stack in stacks], self._network, self._count)
            self.engine.hold_updates(stacks)
        self.engine.write_updates(is_skipped=self._is_skipped)
        self.engine.commit_step()

    def observe(self) -> None:
        """The statistic alone."""
        self.engine.observe_gradients(self.layers)
        self.engine.commit_step()

    def _count(self, _: int, request: Any) -> None:
        self.engine.ledger.count(("layer",), request, "bench")


def _buckets(layers: Sequence[Layer]) -> Sequence[Sequence[Layer]]:
    """Cut layers into buckets as DDP does, full at 25 MiB."""
    found: list[list[Layer]] = [[]]
    for layer in layers:
        if found[-1] and sum(part.gradient.nbytes for part in found[-1]) >= BUCKET_BYTES:
            found.append([])
        found[-1].append(layer)
    return found


def timed(
    works: Mapping[str, Callable[[], object]],
    rounds: int,
    prepare: Mapping[str, Callable[[], None]] | None = None,
) -> dict[str, Timed]:
    """Seconds a call of each work in every round; two rounds before the first are not counted."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(rounds + 2):
        for name, work in works.items():
            pairs = [_once(work, (prepare or {}).get(name)) for _ in range(CALLS)]
            card, host = zip(*pairs, strict=True)
            found[name].append((statistics.mean(card), statistics.mean(host)))
    return {
        name: Timed(card=[c for c, _ in pairs[2:]], host=[h for _, h in pairs[2:]])
        for name, pairs in found.items()
    }


def _once(work: Callable[[], object], prepare: Callable[[], None] | None) -> tuple[float, float]:
    if prepare is not None:
        prepare()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    started = time.perf_counter()
    begin.record()
    work()
    end.record()
    host = time.perf_counter() - started
    end.synchronize()
    return 1e-3 * begin.elapsed_time(end), host


def waits_of(work: Callable[[], object]) -> int:
    """How often the host waits for the card in one call."""
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)


class Copy:
    """Reads and writes 1 GiB each: the card's copy bandwidth."""

    bytes_per_call = 2 << 30

    def __init__(self, device: torch.device) -> None:
        self._source = torch.ones(1 << 28, device=device)
        self._target = torch.zeros_like(self._source)

    def __call__(self) -> None:
        self._target.copy_(self._source)


def encode_rows(device: torch.device, rounds: int) -> list[dict[str, Any]]:
    """Every method at both levels, for each model."""
    rows, copy = [], Copy(device)
    for model, shapes in MODELS.items():
        for method, row in COMPRESSORS.items():
            for level in ladder_of(method):
                rows.append(_encode_row(model, shapes, level, copy, device, rounds))
                print(_said(rows[-1]), flush=True)
                if not row.low:
                    break
    return rows


def _encode_row(
    model: str, shapes: Shapes, level: Level, copy: Copy, device: torch.device, rounds: int
) -> dict[str, Any]:
    torch.cuda.empty_cache()
    exchange = Exchange(shapes, level, device)
    before = torch.cuda.memory_allocated(device)
    exchange.prepare()
    exchange()
    torch.cuda.reset_peak_memory_stats(device)
    found = timed({"ours": exchange, "copy": copy}, rounds, {"ours": exchange.prepare})
    peak, kept = torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device)
    exchange.prepare()
    waits = waits_of(exchange)
    passes = 4 if COMPRESSORS[level.method].feedback else 2
    floor_s = [passes * 4 * exchange.values / copy.bytes_per_call * s for s in found["copy"].card]
    shares = [floor / ours for floor, ours in zip(floor_s, found["ours"].card, strict=True)]
    return {
        "row": "encode",
        "model": model,
        "level": f"{level.method} {_options(level)}".strip(),
        "card_ms": _ms(found["ours"].card),
        "host_ms": _ms(found["ours"].host),
        "share_of_copy": round(Spread.of(shares).median, 3),
        "passes": passes,
        "waits": waits,
        "copies_kept": round((kept - before) / (4 * exchange.values), 2),
        "copies_at_peak": round((peak - before) / (4 * exchange.values), 2),
        "copy_TB_s": round(copy.bytes_per_call / Spread.of(found["copy"].card).median / 1e12, 2),
    }


def statistic_row(device: torch.device, rounds: int) -> dict[str, Any]:
    """The detector's statistic of a ResNet-50 against SGD with momentum on the same values."""
    shapes = MODELS["54 layers of a ResNet-50, 25.5 M"]
    exchange = Exchange(shapes, ladder_of("none")[0], device)
    exchange.prepare()
    parameters = [torch.nn.Parameter(torch.zeros_like(x.gradient)) for x in exchange.layers]
    for parameter, layer in zip(parameters, exchange.layers, strict=True):
        parameter.grad = layer.gradient
    optimizer = torch.optim.SGD(parameters, lr=1e-6, momentum=0.9)
    works = {"ours": exchange.observe, "peer": optimizer.step, "copy": Copy(device)}
    found = timed(works, rounds)
    return _against("statistic of a ResNet-50", "SGD's step", found)


def step_rows(device: torch.device, rounds: int) -> list[dict[str, Any]]:
    """A step of ResNet-18 on 512 pictures with each method against plain DDP."""
    draw = torch.Generator(device).manual_seed(0)
    inputs = torch.randn(BATCH, 3, 32, 32, generator=draw, device=device)
    labels = torch.randint(0, 10, (BATCH,), generator=draw, device=device)
    rows = []
    for autocast in (False, True):
        works: dict[str, Callable[[], object]] = {"ddp": _step(None, inputs, labels, autocast)}
        works |= {name: _step(name, inputs, labels, autocast) for name in COMPRESSORS}
        found = timed(works, rounds)
        dtype = "bf16 autocast" if autocast else "fp32"
        rows += [
            _against(
                f"step of ResNet-18, {BATCH} pictures, {dtype}, {name}",
                "plain DDP",
                {"ours": found[name], "peer": found["ddp"]},
            )
            for name in COMPRESSORS
        ]
    return rows


def _step(
    method: str | None, inputs: Tensor, labels: Tensor, autocast: bool
) -> Callable[[], object]:
    torch.manual_seed(0)
    ddp = DistributedDataParallel(ResNet18(10).to(inputs.device), device_ids=[inputs.device])
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-4, momentum=0.9)
    session = None
    if method is not None:
        detector = DetectorConfig(window=Window(epochs=1))
        session = attach(ddp, Config(method=method, detector=detector), optimizer=optimizer)

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
            loss = cross_entropy(ddp(inputs), labels)
        loss.backward()
        optimizer.step() if session is None else session.step()
        optimizer.zero_grad()

    return step


def _against(work: str, peer: str, found: Mapping[str, Timed]) -> dict[str, Any]:
    pairs = zip(found["ours"].card, found["peer"].card, strict=True)
    ratios = Spread.of([ours / other for ours, other in pairs])
    return {
        "row": "against",
        "work": work,
        "peer": peer,
        "ours_over_peer": round(ratios.median, 3),
        "least": round(ratios.least, 3),
        "most": round(ratios.most, 3),
        "card_ms": _ms(found["ours"].card),
        "peer_ms": _ms(found["peer"].card),
        "host_ms": _ms(found["ours"].host),
    }


def _ms(seconds: Sequence[float]) -> float:
    return round(1e3 * Spread.of(seconds).median, 3)


def _options(level: Level) -> str:
    return ", ".join(f"{name} {value}" for name, value in level.options.items())


ENCODE_HEAD = {
    "level": "method and options",
    "card_ms": "card, ms",
    "host_ms": "host, ms",
    "share_of_copy": "share of copy bandwidth",
    "waits": "host waits",
    "copies_kept": "copies kept",
    "copies_at_peak": "at peak",
}
AGAINST_HEAD = {
    "work": "work",
    "peer": "peer",
    "ours_over_peer": "ours / peer",
    "least": "least",
    "most": "most",
    "card_ms": "ours, ms",
    "peer_ms": "peer, ms",
    "host_ms": "host, ms",
}


def _said(row: Mapping[str, Any]) -> str:
    return " · ".join(f"{key} {value}" for key, value in row.items() if key != "row")


def _table(head: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [[*head.values()], ["---"] * len(head), *([str(row[k]) for k in head] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def written(found: Mapping[str, Any]) -> str:
    """The figures in Markdown."""
    facts = [
        f"- {name}: {found[name]}" for name in ("card", "command", "commit", "machine", "versions")
    ]
    encode = [row for row in found["rows"] if row["row"] == "encode"]
    against = [row for row in found["rows"] if row["row"] == "against"]
    lines = ["# The library on one GPU", "", *facts, "", LEGEND, ""]
    for model in dict.fromkeys(row["model"] for row in encode):
        rows = [row for row in encode if row["model"] == model]
        lines += [f"## Encode and decode, {model}", "", *_table(ENCODE_HEAD, rows), ""]
    lines += ["## Against peers", "", *_table(AGAINST_HEAD, against)]
    return "\n".join(lines) + "\n"


LEGEND = (
    "Medians over rounds in which the contestants take turns. The share of copy bandwidth is the"
    " time in which the card copies what must be read and written at least (gradient and update;"
    " with error feedback the residual too, twice) over the time of ours. Host is until the work"
    " was enqueued: where it is as long as the card's, launches bound the row. Waits are those of"
    " the host for the card in one exchange. Copies are of the parameters in fp32, gradients not"
    " counted. One rank by NCCL: no time on a link is in any figure."
)


def main(arguments: Sequence[str]) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu")
    parser.add_argument("--quick", action="store_true", help="two rounds: shows that it works")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of gpu.json and gpu.md")
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.exit("there is no GPU: nothing is measured")
    device, rounds = torch.device("cuda:0"), 2 if asked.quick else ROUNDS
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    around = report.surroundings()
    around["commit"] = os.environ.get("ACCORDION_COMMIT", around["commit"])
    rows = [*encode_rows(device, rounds), statistic_row(device, rounds), *step_rows(device, rounds)]
    dist.destroy_process_group()
    found = {
        "card": torch.cuda.get_device_name(device),
        "command": shlex.join(["python", "-m", "tests.bench.gpu", *arguments]),
        **around,
        "rows": rows,
    }
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "gpu.json").write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    (asked.out / "gpu.md").write_text(written(found))
    print(written(found))


if __name__ == "__main__":
    main(sys.argv[1:])
