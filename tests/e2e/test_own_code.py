"""Code of users over REST on real Ray: the examples of deploy/jobs, a script that is disturbed in
mid-run, and a mistake.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from accordion_client.commands.pack import pack_folder
from accordion_client.sdk.errors import Refused
from accordion_service.schemas.overrides import OverrideRequest
from tests.conftest import Require
from tests.e2e.real_up import WAIT_S, Up, accordion, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
JOBS = Path(__file__).parents[2] / "deploy/jobs"
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


def submit(up: Up, name: str, *more: str) -> str:
    """Submit an example by the command line; return the job's id."""
    process = accordion(up.home, "submit", str(JOBS / name / "job.yaml"), "--json", *more)
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    return str(json.loads(out)["id"])


def ended(up: Up, job_id: str) -> Any:
    wait_for(lambda: up.client.job(job_id).status in ENDED, lambda: up.client.job(job_id))
    return up.client.job(job_id)


def slow_script(up: Up, **changes: Any) -> str:
    """The example with steps of 50 ms and twelve epochs: time to interfere."""
    spec = yaml.safe_load((JOBS / "own-script/job.yaml").read_text())
    text = (JOBS / "own-script/code/train.py").read_text()
    folder = up.home / "slow"
    folder.mkdir(exist_ok=True)
    slow = text.replace(
        "            session.step()",
        "            __import__('time').sleep(0.05)\n            session.step()",
    )
    assert slow != text
    (folder / "train.py").write_text(slow)
    training = {**spec["training"], "epochs": 12}
    return up.client.submit(
        {
            **spec,
            "training": training,
            "code": up.client.upload(pack_folder(folder)).sha256,
            **changes,
        }
    ).id


def check_result(up: Up, job: Any) -> None:
    """Its model can be downloaded, and its storage has the code that trained it."""
    assert job.status == "SUCCEEDED", job.message
    last = up.client.epochs(job.id).items[-1]
    assert last.metrics["accuracy"] > 0.9
    assert 0 < last.bytes.payload < last.bytes.dense
    file = up.home / f"{job.id}.safetensors"
    out, err = accordion(up.home, "download", job.id, "--to", str(file)).communicate(timeout=WAIT_S)
    assert "from checkpoint g" in out, err
    tensors = load_file(file)
    assert sum(tensor.numel() for tensor in tensors.values()) > 1000
    copy = up.home / "storage" / job.id / "code.zip"
    code = (up.home / "code" / job.spec["code"]).with_suffix(".zip")
    assert copy.read_bytes() == code.read_bytes()


def test_the_example_of_a_task_trains_to_its_end(up: Up) -> None:
    job = ended(up, submit(up, "own-task"))
    check_result(up, job)
    epochs = up.client.epochs(job.id).items
    assert [epoch.epoch for epoch in epochs] == list(range(job.spec["training"]["epochs"]))


def test_a_script_goes_on_after_a_killed_worker_and_after_a_resize(up: Up) -> None:
    job_id = slow_script(up, workers={"min": 2, "max": 2, "cpus": 1})
    wait_for(lambda: len(up.client.epochs(job_id).items) >= 2)
    os.kill(worker_of(up), 9)
    wait_for(lambda: len(up.client.epochs(job_id).items) >= 5)
    up.client.resize(job_id, 1, 1)
    job = ended(up, job_id)
    check_result(up, job)
    assert any("epoch 0: accuracy 0." in line for line in up.client.logs(job_id))
    epochs = up.client.epochs(job_id).items
    assert [epoch.epoch for epoch in epochs] == list(range(12))
    assert {epoch.samples for epoch in epochs} == {1437}
    assert [epochs[0].world_size, epochs[-1].world_size] == [2, 1]
    # 23 steps an epoch: none was lost, none was made twice.
    assert [epoch.step for epoch in epochs] == [23 * (number + 1) for number in range(12)]


def test_a_script_gets_its_variables_and_its_secret_is_not_in_the_log(up: Up) -> None:
    up.client.set_secret("hf-token", "hf_seen-by-the-script-only")
    folder = up.home / "prints"
    folder.mkdir()
    lines = (
        "import os",
        "print(*map(os.environ.get, ('PLAIN', 'NUMBER', 'HF_TOKEN')), flush=True)",
        "raise SystemExit(os.environ['HF_TOKEN'])",
    )
    (folder / "train.py").write_text("\n".join(lines))
    spec = yaml.safe_load((JOBS / "own-script/job.yaml").read_text())
    env = {"PLAIN": "one", "NUMBER": 3, "HF_TOKEN": {"secret": "hf-token"}}
    code = up.client.upload(pack_folder(folder)).sha256
    job = ended(up, up.client.submit({**spec, "code": code, "env": env, "max_failures": 0}).id)
    assert job.status == "FAILED"
    assert "sys.exit('***')" in job.message
    lines = list(up.client.logs(job.id))
    assert any("one 3 ***" in line for line in lines)
    stored = [file.read_bytes() for file in (up.home / "storage").rglob("*") if file.is_file()]
    assert not any(b"hf_seen" in content for content in stored)


@pytest.mark.parametrize("framework", ["transformers", "lightning"])
def test_the_loop_of_a_framework_survives_what_a_job_survives(up: Up, framework: str) -> None:
    job_id = slow_framework(up, framework)
    wait_for(lambda: len(up.client.epochs(job_id).items) >= 2)
    os.kill(worker_of(up), 9)
    wait_for(lambda: len(up.client.epochs(job_id).items) >= 3)
    up.client.override(job_id, OverrideRequest(level="low"))
    wait_for(lambda: up.client.overrides(job_id).items[0].state == "APPLIED")
    up.client.pause(job_id)
    wait_for(lambda: up.client.job(job_id).status == "PAUSED")
    up.client.resume(job_id)
    wait_for(lambda: len(up.client.epochs(job_id).items) >= 6)
    up.client.resize(job_id, 1, 1)
    job = ended(up, job_id)
    check_result(up, job)
    epochs = up.client.epochs(job_id).items
    assert [epoch.step for epoch in epochs] == [22 * (number + 1) for number in range(10)]
    assert {epoch.samples for epoch in epochs} == {1408}
    assert [epochs[0].world_size, epochs[-1].world_size] == [2, 1]
    assert set(epochs[-1].level_by_layer.values()) == {"low"}


def slow_framework(up: Up, framework: str) -> str:
    """The example of a framework with forward passes that take 50 ms more."""
    spec = yaml.safe_load((JOBS / f"frameworks/{framework}.yaml").read_text())
    folder = up.home / f"slow-{framework}"
    shutil.copytree(JOBS / "frameworks/code", folder)
    model = folder / "digits.py"
    text, line = model.read_text(), "        logits = self.layers(inputs)\n"
    assert text.count(line) == 1
    model.write_text(text.replace(line, f"        __import__('time').sleep(0.05)\n{line}"))
    code = up.client.upload(pack_folder(folder)).sha256
    workers = {"min": 2, "max": 2, "cpus": 1}
    return up.client.submit({**spec, "code": code, "workers": workers}).id


def worker_of(up: Up) -> int:
    """Process id of one worker of the only job that runs."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            ours = f"{up.home}/".encode() in (path / "environ").read_bytes()
            found += (
                [int(path.name)]
                if ours and (path / "cmdline").read_bytes().startswith(b"ray::Worker")
                else []
            )
        except OSError:
            continue
    assert found
    return max(found)


def test_a_task_that_is_not_there_ends_the_job_at_once_and_says_why(up: Up) -> None:
    job = ended(up, submit(up, "own-task", "--set", "task.name=spirals:Spiral"))
    assert (job.status, job.reason) == ("FAILED", "TASK_RAISED")
    assert "module 'spirals' has no class 'Spiral'; it has Spirals" in job.message
    assert len(up.client.attempts(job.id).items) == 1


def test_the_example_of_a_sharded_script_trains_saves_and_is_resized(
    up: Up, require: Require
) -> None:
    text = require.data("tinyshakespeare") / "input.txt"
    options = ("--set", f"data.text={text}", "--set", "training.epochs=6")
    job_id = submit(up, "lm-fsdp2", *options)
    wait_for(lambda: len(up.client.epochs(job_id).items) >= 2)
    with pytest.raises(Refused, match=r"workers\.max is 3, and 2 workers hold one"):
        up.client.resize(job_id, 2, 3)
    up.client.resize(job_id, 2, 2)
    job = ended(up, job_id)
    assert job.status == "SUCCEEDED", job.message
    epochs = up.client.epochs(job_id).items
    assert [epochs[0].world_size, epochs[-1].world_size] == [4, 2]
    assert epochs[-1].metrics["held_out_loss"] < epochs[0].metrics["held_out_loss"]
    file = up.home / f"{job_id}.safetensors"
    out, err = accordion(up.home, "download", job_id, "--to", str(file)).communicate(timeout=WAIT_S)
    assert "from checkpoint g" in out, err
    tensors = load_file(file)
    assert tensors["blocks.0.linear1.weight"].shape == (256, 64)
