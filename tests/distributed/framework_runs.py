"""The examples with frameworks, several runs in one pair of processes: `framework_runs.py NAME
FOLDER`.

Rank 0 prints what the runs gave as one JSON line behind an `@`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from accordion import Session
from accordion.compress.ledger import OVERHEAD

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
EPOCHS, BEFORE = 6, 3
"""Epochs of a run, and those before its interruption, which is in the middle of a window of two
epochs.
"""
LAUNCHED_BY = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "TORCHELASTIC_RUN_ID",
)


def load_example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"train_with_{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().view(-1) for parameter in model.parameters()])


def residuals(session: Session) -> torch.Tensor:
    owed = session.state_dict()["engine"]["residuals"]
    return torch.cat([owed[layer].view(-1) for layer in sorted(owed)])


def counts(session: Session) -> dict[str, Any]:
    total = session.ledger.total
    # An interrupted run of Lightning saves once more.
    saving = session.ledger.by_collective[f"{OVERHEAD} gather on rank 0"].payload
    levels = [level.name for level in session.decision.level_by_layer.values()]
    return {
        "sent": total.payload - saving,
        "dense": total.dense,
        "steps": session.steps,
        "epoch": session.epoch,
        "levels": levels,
        "skipped": session.skipped_steps,
    }


def differs_from_first(values: torch.Tensor) -> float:
    first = values.clone()
    dist.broadcast(first, 0)
    return float((first - values).abs().max())


def run_as_pair(example: ModuleType, folder: Path) -> tuple[dict[str, Any], torch.Tensor]:
    """What the runs of two processes gave, and the mean of the residuals that they ended with."""
    plain, _ = example.train(folder / "plain", epochs=EPOCHS, compress=False)
    whole, session = example.train(folder / "whole", epochs=EPOCHS)
    example.train(folder / "parts", epochs=BEFORE)
    resumed, again = example.train(folder / "parts", epochs=EPOCHS, resume=True)
    apart = torch.tensor([differs_from_first(flat(model)) for model in (plain, whole, resumed)])
    equal = torch.tensor(
        [torch.equal(flat(whole), flat(resumed)), torch.equal(*map(residuals, (session, again)))]
    )
    dist.all_reduce(apart, dist.ReduceOp.MAX)
    dist.all_reduce(equal := equal.int(), dist.ReduceOp.MIN)
    mean = residuals(again)
    dist.all_reduce(mean)
    found = {
        "accuracy": {"plain": example.accuracy_of(plain), "compressed": example.accuracy_of(whole)},
        "whole": counts(session),
        "resumed": counts(again),
        "apart": apart.tolist(),
        "equal": equal.tolist(),
    }
    return found, mean / 2


def run_alone(example: ModuleType, folder: Path, mean: torch.Tensor) -> dict[str, Any]:
    """What the first steps of one process gave that resumes the checkpoint of two."""
    if example.__name__ != "lightning":
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)
    options = {"processes": 1} if example.__name__ == "lightning" else {}
    owed = []
    load = Session.load_state_dict
    Session.load_state_dict = lambda session, state: (
        load(session, state),
        owed.append(residuals(session)),
    )
    model, session = example.train(folder / "parts", epochs=EPOCHS + 1, resume=True, **options)
    return {
        **counts(session),
        "owed": float((owed[0] - mean).abs().max()),
        "accuracy": example.accuracy_of(model),
    }


def main(name: str, folder: Path) -> None:
    example, rank = load_example(name), int(os.environ["RANK"])
    found, mean = run_as_pair(example, folder)
    dist.destroy_process_group()
    if rank == 0:
        for variable in LAUNCHED_BY:
            os.environ.pop(variable)
        found["alone"] = run_alone(example, folder, mean)
        print(f"@{json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
