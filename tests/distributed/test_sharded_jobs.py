"""Scripts as jobs whose workers hold a model together: trained, saved, resumed and exported as
those whose workers have all of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from accordion_workers.checkpoint.checkpoint_files import read_manifest
from accordion_workers.checkpoint.saved_model import read_model
from accordion_workers.checkpoint.storage import LocalStorage
from accordion_workers.records.contract import DesiredState, Launch, ModelSource
from tests.distributed.code_jobs import Result, how_it_ended, launch, packed, run_own_script
from tests.distributed.loop_jobs import RecordingLink

SCRIPT = """
import json
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from accordion_workers import session

session.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(64, 24)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
loader = DataLoader(data, batch_sampler=session.batches(len(data)))
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(24, 33), nn.Tanh(), nn.BatchNorm1d(33), nn.Linear(33, 1))
WRAP
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
session.attach(model, optimizer, scheduler=scheduler)
for epoch in session.epochs(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        session.backward(nn.functional.mse_loss(model(inputs), targets))
        session.step()
    scheduler.step()
whole = [getattr(one, "full_tensor", lambda one=one: one)() for one in model.parameters()]
print(json.dumps(torch.cat([one.detach().flatten() for one in whole]).tolist()))
"""
SHARDED = """
for part in (model[0], model):
    fully_shard(part, mesh=session.mesh["shard"])
"""
WITH_DDP = "model = DistributedDataParallel(model, broadcast_buffers=False)"
MESH_OF_ITS_OWN = """
fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (2,)))
"""
STOP_IN_EPOCH_1 = RecordingLink(
    orders=DesiredState(version=1, stop="pause"), order_after=("epoch", 0)
)


def order(
    folder: Path,
    wrap: str = SHARDED,
    shard: int | None = 2,
    *,
    script: str = SCRIPT,
    rate: str = "0.01",
    **changes: Any,
) -> Launch:
    spec = {
        "task": {"name": "script"},
        "workers": {"min": 4, "max": 4},
        "training": {"epochs": 3, "global_batch": 16, "micro_batch": 4},
        "compression": {"method": "none"},
        "parallelism": None if shard is None else {"shard": shard},
        **changes,
    }
    folder.mkdir(exist_ok=True)
    text = script.replace("WRAP", wrap).replace("lr=0.01", f"lr={rate}")
    code = packed(folder, {"train.py": text})
    return launch(folder / "storage", spec, code)


def trained(results: list[Result]) -> torch.Tensor:
    """The parameters that all workers have at the end."""
    assert {result.outcome for result in results} == {"completed"}
    values = [torch.tensor(json.loads(result.said.splitlines()[-1])) for result in results]
    assert all(torch.equal(value, values[0]) for value in values)
    return values[0]


def saved_model(folder: Path) -> dict[str, torch.Tensor]:
    """The model of the newest checkpoint."""
    storage = LocalStorage(folder / "storage" / "checkpoints")
    names = sorted(storage.names(), reverse=True)
    return dict(read_model(storage, names, job_id="job-1").state)


def test_shards_are_no_difference_to_what_is_learned(run_group, tmp_path):
    sharded = run_group(4, run_own_script, order(tmp_path / "a"))
    whole = run_group(4, run_own_script, order(tmp_path / "b", WITH_DDP, None))
    torch.testing.assert_close(trained(sharded), trained(whole), rtol=1e-4, atol=1e-5)
    ours, theirs = (result[0].link.of("epoch") for result in (sharded, whole))
    assert [one.loss for one in ours] == pytest.approx([one.loss for one in theirs], rel=1e-4)
    # A worker exchanges its part only.
    assert ours[-1].bytes.dense < 0.6 * theirs[-1].bytes.dense


@pytest.mark.parametrize("method", ["none", "powersgd"])
def test_a_resumed_job_has_the_bits_of_an_uninterrupted_one(run_group, tmp_path, method):
    job = order(tmp_path / "a", compression={"method": method})
    stopped = run_group(4, run_own_script, job, STOP_IN_EPOCH_1)
    assert {result.outcome for result in stopped} == {"stopped"}
    resumed = run_group(4, run_own_script, job, None, 2)
    assert resumed[0].link.of("started")[0].resumed_from is not None
    whole = run_group(4, run_own_script, order(tmp_path / "b", compression={"method": method}))
    assert torch.equal(trained(resumed), trained(whole))


AVERAGED = """
average = nn.Linear(24, 33)
fully_shard(average, mesh=session.mesh["shard"])
nn.init.constant_(average.weight, 0.0)
nn.init.constant_(average.bias, 0.0)
def follow():
    for one, other in zip(average.parameters(), model[0].parameters()):
        one.data.lerp_(other.data, 0.5)
    for one in average.parameters():
        print(json.dumps(one.full_tensor().flatten().tolist()[:9]))
"""


def test_a_sharded_module_that_the_session_keeps_is_resumed(run_group, tmp_path):
    text = SCRIPT.replace("=scheduler)", "=scheduler, average=average)")
    text = text.replace("    scheduler.step()", "    scheduler.step()\n    follow()")
    job = order(tmp_path / "a", SHARDED + AVERAGED, script=text)
    run_group(4, run_own_script, job, STOP_IN_EPOCH_1)
    resumed = run_group(4, run_own_script, job, None, 2)
    whole = run_group(4, run_own_script, order(tmp_path / "b", SHARDED + AVERAGED, script=text))
    assert resumed[3].said.splitlines()[-3:] == whole[3].said.splitlines()[-3:]


VERSIONED = """
class Versioned(nn.Linear):
    _version = 7
    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *others):
        assert local_metadata.get("version") == 7, local_metadata
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *others)
"""


@pytest.mark.parametrize(("wrap", "shard"), [(SHARDED, 2), (WITH_DDP, None)])
def test_a_module_is_resumed_with_the_version_that_it_was_saved_with(
    run_group, tmp_path, wrap, shard
):
    text = SCRIPT.replace("session.init", VERSIONED + "session.init")
    text = text.replace("nn.Linear(24", "Versioned(24")
    job = order(tmp_path / "a", wrap, shard, script=text)
    run_group(2, run_own_script, job, STOP_IN_EPOCH_1)
    trained(run_group(2, run_own_script, job, None, 2))


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4)])
def test_a_job_goes_on_with_another_number_of_replicas(run_group, tmp_path, before, after):
    job = order(tmp_path / "a", compression={"method": "topk"})
    run_group(before, run_own_script, job, STOP_IN_EPOCH_1)
    resumed = run_group(after, run_own_script, job, None, 2)
    (started,) = resumed[0].link.of("started")
    assert started.resumed_from is not None
    assert started.world_size == after
    epochs = resumed[0].link.of("epoch")
    assert [one.epoch for one in epochs] == [1, 2]
    assert epochs[-1].samples == 64
    assert torch.isfinite(trained(resumed)).all()


def test_without_compression_the_number_of_replicas_changes_nothing(run_group, tmp_path):
    text = SCRIPT.replace("nn.BatchNorm1d(33)", "nn.Identity()")  # it sees one worker's samples
    job = order(tmp_path / "a", script=text)
    run_group(4, run_own_script, job, STOP_IN_EPOCH_1)
    resumed = trained(run_group(2, run_own_script, job, None, 2))
    whole = trained(run_group(4, run_own_script, order(tmp_path / "b", script=text)))
    torch.testing.assert_close(resumed, whole, rtol=1e-3, atol=1e-4)


def test_a_checkpoint_gives_the_whole_model(run_group, tmp_path):
    values = trained(run_group(4, run_own_script, order(tmp_path / "a")))
    model = saved_model(tmp_path / "a")
    parameters = [value for name, value in model.items() if name.endswith(("weight", "bias"))]
    assert torch.equal(torch.cat([one.flatten() for one in parameters]), values)
    assert model["2.num_batches_tracked"] > 0
    storage = LocalStorage(tmp_path / "a" / "storage" / "checkpoints")
    manifest = read_manifest(storage, max(storage.names()), "job-1")
    names = {file.name for file in manifest.files}
    assert names == {"shared.pt", "shard-0.pt", "shard-1.pt", *(f"rank-{n}.pt" for n in range(4))}


def start_with(rank: int, job: Launch, source: ModelSource) -> list[float]:
    """Return the parameters of a job that starts with a model and trains at a rate of 0."""
    other = job.model_copy(update={"job_id": "job-2", "warm_start": source})
    return json.loads(run_own_script(rank, other).said.splitlines()[-1])


@pytest.mark.parametrize(
    ("first", "then"), [((SHARDED, 2), (WITH_DDP, None)), ((WITH_DDP, None), (SHARDED, 2))]
)
def test_a_job_starts_with_the_model_of_one_that_shards_or_not(run_group, tmp_path, first, then):
    values = trained(run_group(4, run_own_script, order(tmp_path / "a", *first)))
    directory = tmp_path / "a" / "storage" / "checkpoints"
    names = tuple(sorted(LocalStorage(directory).names(), reverse=True))
    source = ModelSource(job_id="job-1", url=None, directory=str(directory), names=names)
    job = order(tmp_path / "b", *then, rate="0.0, weight_decay=0.0")
    for started in run_group(4, start_with, job, source):
        assert started == pytest.approx(values.tolist())


def test_local_steps_are_those_of_a_whole_replica(run_group, tmp_path):
    local = {"low": 2, "high": 2}
    results = run_group(4, run_own_script, order(tmp_path / "a", local_steps=local))
    epochs = results[0].link.of("epoch")
    assert trained(results).isfinite().all()
    # 4 steps of an epoch have 2 exchanges.
    assert epochs[0].bytes.payload < 0.7 * epochs[0].bytes.dense


LOCAL = {"local_steps": {"low": 3, "high": 3}}
"""Rounds of 3 steps; an epoch has 4."""
EVALUATED = """
    with torch.no_grad():
        loss = nn.functional.mse_loss(model.eval()(data[:16][0]), data[:16][1])
    model.train()
    session.end_epoch(held_out=loss)
"""


@pytest.mark.parametrize(("wrap", "shard"), [(SHARDED, 2), (WITH_DDP, None)])
def test_a_script_evaluates_after_an_epoch_that_ends_within_a_round(
    run_group, tmp_path, wrap, shard
):
    text = SCRIPT.replace("    scheduler.step()", "    scheduler.step()" + EVALUATED)
    results = run_group(4, run_own_script, order(tmp_path, wrap, shard, script=text, **LOCAL))
    assert trained(results).isfinite().all()
    assert [set(one.metrics) for one in results[0].link.of("epoch")] == [{"held_out"}] * 3


def test_a_script_evaluates_within_an_epoch_once_it_ended_the_round(run_group, tmp_path):
    check = """
        if session.step_and_epoch[0] == 2:
            session.finish_round()
            with torch.no_grad():
                model.eval()(data[:16][0])
            model.train()
"""
    text = SCRIPT.replace("        session.step()", "        session.step()" + check)
    results = run_group(4, run_own_script, order(tmp_path, script=text, **LOCAL))
    assert trained(results).isfinite().all()


DRIFT = """
def drift():
    if session.rank == 3 and session.epoch == 1:
        model[0].weight.detach().to_local().add_(0.001)
"""


def test_a_part_that_drifts_is_replaced_by_that_of_the_first_replica(run_group, tmp_path):
    text = SCRIPT.replace("    scheduler.step()", "    scheduler.step()\n    drift()")
    job = order(tmp_path / "a", SHARDED + DRIFT, script=text)
    results = run_group(4, run_own_script, job)
    (line,) = [line for line in results[0].link.lines if "drifted" in line]
    assert line.startswith("parameters of ranks [3] drifted from those of ranks 0 to 1 by")
    assert trained(results).isfinite().all()


@pytest.mark.parametrize(
    ("wrap", "shard", "told"),
    [
        (WITH_DDP, 2, "parallelism.shard is 2 and session.attach() got a module that is not"),
        (
            MESH_OF_ITS_OWN,
            None,
            "the run does not say how many workers hold one model together; give the job file",
        ),
        (SHARDED, None, "the run does not say how many workers hold one model together"),
        *(
            (
                f"fully_shard(model, mesh={mesh})",
                2,
                f"got a model that is sharded over ranks {held}",
            )
            for mesh, held in (
                ("session.mesh", "[[0, 1]], and in this run ranks [0, 1] hold one together"),
                ('session.mesh["replicate"]', "["),
            )
        ),
        (SHARDED, 4, "parallelism.shard is 4 and the run has 2 workers; start a multiple of 4"),
    ],
)
def test_a_script_that_does_not_fit_its_parallelism_is_told(run_group, tmp_path, wrap, shard, told):
    for error, _ in run_group(2, how_it_ended, order(tmp_path / "a", wrap, shard)):
        assert told in str(error)


def test_another_number_of_shards_than_the_saved_one_is_refused(run_group, tmp_path):
    run_group(4, run_own_script, order(tmp_path / "a"), STOP_IN_EPOCH_1)
    for error, _ in run_group(4, how_it_ended_in_2, order(tmp_path / "a", shard=4)):
        assert "is of a model in 2 parts, and this run has parallelism.shard 4" in str(error)


def how_it_ended_in_2(rank: int, job: Launch) -> Any:
    return how_it_ended(rank, job, generation=2)
