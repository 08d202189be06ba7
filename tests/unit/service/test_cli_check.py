"""`accordion check` and `accordion schema`: what is wrong with a job file, without a service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from accordion_client.commands.check import build_schema
from tests.unit.service.conftest import Accordion

DEPLOY = Path(__file__).parents[3] / "deploy"
FILES = sorted(path for folder in ("jobs", "recipes") for path in (DEPLOY / folder).rglob("*.yaml"))


def names(path: Path) -> str:
    return str(path.relative_to(DEPLOY))


@pytest.mark.parametrize("file", FILES, ids=names)
def test_every_job_file_of_the_project_is_one(alone: Accordion, file: Path) -> None:
    said = alone("check", file)
    assert (said.code, said.out.startswith(f"{file} is a job: task ")) == (0, True), said


@pytest.mark.parametrize("file", FILES, ids=names)
def test_the_schema_describes_every_job_file(file: Path) -> None:
    jsonschema.validate(yaml.safe_load(file.read_text()), build_schema())


@pytest.mark.parametrize(
    "wrong",
    [
        {"task": {"name": "digits-mlp"}, "trainings": {}},
        {"task": {"name": "digits-mlp"}, "training": {"epochs": 0}},
        {"task": {"name": "digits-mlp"}, "code": 5},
        {"workers": {"max": 2}},
    ],
)
def test_the_schema_refuses_what_a_job_file_must_not_have(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, build_schema())


def test_the_schema_is_printed_for_editors(alone: Accordion) -> None:
    said = alone("schema")
    assert (said.code, json.loads(said.out)) == (0, build_schema())
    jsonschema.Draft202012Validator.check_schema(json.loads(said.out))


def test_a_wrong_key_is_told_as_the_service_tells_it(alone: Accordion, spec: Path) -> None:
    said = alone("check", spec, "--set", "training.epoch=5")
    assert (said.code, said.out) == (2, "")
    assert "training.epoch: unknown key 'epoch'; did you mean 'epochs'" in said.err


def test_what_does_not_go_together_is_told(alone: Accordion, spec: Path) -> None:
    said = alone("check", spec, "--set", "local_steps={low: 4}", "--set", "compression.method=topk")
    assert said.code == 2
    assert "local_steps cannot be combined with topk" in said.err


def test_a_model_to_start_with_may_be_named(alone: Accordion, spec: Path) -> None:
    assert alone("check", spec, "--set", "warm_start.job=last week's").code == 0


def test_a_checked_file_is_printed_with_all_defaults(alone: Accordion, spec: Path) -> None:
    found = alone("check", spec, "--set", "workers={min: 1, max: 2}", "--json").json()
    assert (found["workers"]["max"], found["checkpoint"]["keep"]) == (2, 2)
    assert "1 to 2 workers" in alone("check", spec, "--set", "workers={min: 1, max: 2}").out


def test_code_that_is_not_there_is_named(alone: Accordion, spec: Path) -> None:
    said = alone("check", spec, "--set", "code=./nowhere")
    assert said.code == 2
    assert "nowhere cannot be read" in said.err


def test_a_script_that_its_code_lacks_is_named(alone: Accordion, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("pass")
    file = tmp_path / "job.yaml"
    file.write_text("task: {name: script, options: {file: training.py}}\ncode: ./code\n")
    said = alone("check", file)
    assert (said.code, "is 'training.py', which the code lacks; it holds train.py" in said.err) == (
        2,
        True,
    )
    file.write_text("task: {name: script, options: {file: train.py}}\ncode: ./code\n")
    assert alone("check", file).code == 0


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        ("class Other: pass", "models.py has no class 'Mine'; it has Other"),
        ("class Mine(: pass", "models.py of the code is no Python: invalid syntax"),
        ("class Mine: pass", ""),
        ("try:\n    import fast\nexcept ImportError:\n    class Mine: pass", ""),
        ("from base import Mine", ""),
        ("from base import *", ""),
        ("if True:\n    Mine = type('Mine', (), {})", ""),
    ],
)
def test_a_class_that_its_module_lacks_is_named(
    alone: Accordion, tmp_path: Path, module: str, sentence: str
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "models.py").write_text(module)
    file = tmp_path / "job.yaml"
    file.write_text("task: {name: 'models:Mine'}\ncode: ./code\n")
    said = alone("check", file)
    assert (said.code, sentence in said.err) == (2 if sentence else 0, True)
    file.write_text("task: {name: 'installed.models:Mine'}\ncode: ./code\n")
    said = alone("check", file)
    assert (said.code, "installed/models.py is not in the code" in said.err) == (0, True)


def test_a_guest_is_no_job(alone: Accordion, spec: Path) -> None:
    said = alone("check", spec, "--set", "task={name: guest}")
    assert (said.code, "for runs that register themselves" in said.err) == (2, True)


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        ("training.lr_decay.at=[2, 30]", "lr_decay.at has 30, and the last epoch is 4"),
        (
            "training.lr_decay={shape: table, points: [[0, 1], [90, 0]]}",
            "points ends at epoch 90, and the job at 5",
        ),
        ("training.warmup.epochs=5", "warmup.epochs is 5, and the job has 5"),
        ("training.optimizer={name: adamw, lr: 0.1}", "lr is 0.1 with adamw"),
        ("training.lr_decay.at=[2, 4]", ""),
        ("parallelism={shard: 2}", "shard is 2, as workers.max: all workers hold one model"),
    ],
)
def test_what_hardly_anybody_wants_is_doubted(
    alone: Accordion, spec: Path, change: str, doubt: str
) -> None:
    two = ("--set", "workers={min: 2, max: 2}")
    said = alone("check", spec, "--set", "training.epochs=5", *two, "--set", change)
    assert (said.code, "is a job" in said.out) == (0, True)
    assert doubt in said.err
    assert bool(said.err) == bool(doubt)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("lr: 0.1", ["lr: unknown key 'lr'; did you mean 'training.optimizer.lr'?"]),
        ("epochs: 9", ["epochs: unknown key 'epochs'; did you mean 'training.epochs'?"]),
        ("max_restarts: 9", ["unknown key 'max_restarts'; did you mean 'max_failures'?"]),
        (
            "training: {lr: 0.1}",
            ["training.lr: unknown key 'lr'; did you mean 'training.optimizer"],
        ),
        ("training: {learning_rate: 1}", ["did you mean 'training.optimizer.lr'?"]),
        ("kind: RayJob", ["kind: unknown key 'kind'; allowed keys: 'name'"]),
        ("batch: {min: 9}", ["batch.min: unknown key 'min'; allowed keys: 'low'"]),
        (
            "{run: torchrun x.py, resources: {accelerators: 'A100:8'}}",
            [
                "run: is of a SkyPilot task; in a job file: task: {name: script",
                "resources.accelerators: is of a SkyPilot task; in a job file: workers: {gpus",
            ],
        ),
        (
            "{apiVersion: v1, kind: PyTorchJob, spec: {pytorchReplicaSpecs: {}}}",
            ["spec.pytorchReplicaSpecs: is of a PyTorchJob; in a job file: task: {name"],
        ),
        (
            "{apiVersion: v1, kind: RayJob, spec: {}}",
            ["kind: is of a RayJob; in a job file: task: {name: script"],
        ),
        (
            "{distributed_type: MULTI_GPU, num_processes: 8, mixed_precision: bf16}",
            ["num_processes: is of a configuration of Accelerate; in a job file: workers"],
        ),
    ],
)
def test_keys_of_other_tools_are_translated(
    alone: Accordion, tmp_path: Path, text: str, sentences: list[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    said = alone("check", file)
    assert said.code == 2
    for sentence in sentences:
        assert sentence in said.err
