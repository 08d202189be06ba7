from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from accordion.config import BatchConfig, WarmUp
from accordion_workers.records.contract import Bytes, EndRecord, EpochRecord, JobSpec, Record
from accordion_workers.spec.workers import WorkersSpec
from accordion_workers.training.sampler import micro_batches

JOBS = Path(__file__).parents[3] / "deploy" / "jobs"
DIGITS = {"task": {"name": "digits-mlp"}}
SCRIPT = {"task": {"name": "script"}, "code": "0" * 64}


def refusal(**parts) -> str:
    with pytest.raises(ValidationError) as caught:
        JobSpec.model_validate({**DIGITS, **parts})
    return str(caught.value)


def test_a_spec_needs_nothing_but_a_task():
    spec = JobSpec.model_validate(DIGITS)
    assert spec.task.options == {"hidden": 512, "min_step_s": 0.0}
    assert spec.compression.low == {"rank": 4, "factors": "both", "refresh_every": 0}
    assert spec.compression.high == {"rank": 1, "factors": "both", "refresh_every": 0}


@pytest.mark.parametrize("file", sorted(JOBS.glob("*.yaml")), ids=lambda file: file.name)
def test_every_job_file_is_a_spec(file):
    assert JobSpec.model_validate(yaml.safe_load(file.read_text())).name == file.stem


def test_there_are_job_files():
    assert {"digits.yaml", "digits-watch.yaml"} <= {file.name for file in JOBS.iterdir()}


def test_a_spec_survives_json():
    spec = JobSpec.model_validate(
        {**DIGITS, "labels": {"team": "vision"}, "compression": {"method": "topk"}}
    )
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


def test_a_script_survives_json_and_has_a_range_of_its_rate_alone():
    spec = JobSpec.model_validate(SCRIPT)
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    ranges = {"override_ranges": {"lr": [0.1, 1.0]}}
    assert JobSpec.model_validate({**SCRIPT, "training": ranges}).config().optimizer_ranges == {
        "lr": (0.1, 1.0)
    }
    ranges["override_ranges"]["clip_norm"] = [0.1, 1.0]
    assert "training.override_ranges has more than lr" in refusal(**SCRIPT, training=ranges)


PARTS = {
    "task": {"name": "digits-mlp", "options": {"hidden": 256}},
    "workers": {"min": 1, "max": 2},
    "training": {"epochs": 5, "lr_decay": {"at": [2, 3]}},
    "compression": {"low": {"rank": 3}, "buckets_per_exchange": 2},
    "batch": {"low": 64, "high": 128},
    "policy": {"window": {"steps": 9}},
    "priority": 7,
}


def as_floats(value):
    if isinstance(value, dict):
        return {name: as_floats(one) for name, one in value.items()}
    if isinstance(value, list):
        return [as_floats(one) for one in value]
    return float(value) if isinstance(value, int) else value


def test_floats_without_a_fraction_are_whole_numbers():
    spec = JobSpec.model_validate(as_floats(PARTS))
    assert spec.model_dump_json() == JobSpec.model_validate(PARTS).model_dump_json()


@pytest.mark.parametrize("value", [5.5, "5", True, float("inf"), float("nan")])
def test_what_is_not_a_whole_number_is_refused(value):
    assert "training.epochs" in refusal(training={"epochs": value})
    assert "number of buckets" in refusal(compression={"buckets_per_exchange": value})


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (
            {"task": {"name": "digits"}},
            "unknown task 'digits'; known are digits-mlp, cifar-resnet18",
        ),
        (
            {"task": {"name": "digits-mlp", "options": {"hiden": 3}}},
            "has no option 'hiden'; known are hidden",
        ),
        ({"task": {"name": "digits-mlp", "options": {"hidden": 0}}}, "is 0; it must be at least 1"),
        (
            {"workers": {"memory": "lots"}},
            "memory is a number of bytes or a text such as 4GB, from 300MB to 1PiB",
        ),
        (
            {"workers": {"memory": 4}},
            "memory is a number of bytes or a text such as 4GB, from 300MB to 1PiB",
        ),
        (
            {"workers": {"min": 3, "max": 2}},
            "workers.min is 3, above workers.max 2; lower min or raise max",
        ),
        (
            {"parallelism": {"shard": 1}},
            "shard is 1, and without shards each worker has the whole model; leave parallelism out",
        ),
        (
            {"workers": {"min": 1, "max": 2}, "parallelism": {"shard": 2}},
            "workers.min is 1, and 2 workers hold one model together (parallelism.shard); give a"
            " multiple of 2, such as 2",
        ),
        (
            {**SCRIPT, "workers": {"min": 3, "max": 4}, "parallelism": {"shard": 3}},
            "workers.max is 4, and 3 workers hold one model together (parallelism.shard); give a"
            " multiple of 3, such as 3 or 6",
        ),
        (
            {"workers": {"resources": {"GPU": 1}}},
            "resources has GPU, which is not a custom resource; use cpus, gpus, memory",
        ),
        ({"workers": {"resources": {"fpga": 1.5}}}, "resources has 1.5 of fpga; give a whole"),
        ({"compression": {"method": "zip"}}, "unknown compression method 'zip'; known are none"),
        (
            {"compression": {"buckets_per_exchange": 0}},
            "0 is not a number of buckets; give 1 or more, 'all' or 'auto'",
        ),
        ({"compression": {"warm_up": {"steps": 0}}}, "greater than or equal to 1"),
        (
            {"compression": {"warm_up": {"steps": 9, "level": "low"}}},
            "Input should be 'none' or 'half'",
        ),
        (
            {"compression": {"buckets_per_exchange": "every"}},
            "'every' is not a number of buckets; give 1 or more, 'all' or 'auto'",
        ),
        (
            {"compression": {"method": "powersgd", "low": {"rang": 1}}},
            "has no option 'rang'; known are factors, rank",
        ),
        ({"policy": {"name": "mine"}}, "unknown policy 'mine'; known are two_level"),
        (
            {"policy": {"window": {"epochs": 1, "steps": 1}}},
            "window has epochs=1 and steps=1; give exactly one",
        ),
        (
            {"batch": {"low": 32, "high": 128}, "training": {"global_batch": 64}},
            "batch.low is 32 and training.gl",
        ),
        ({"batch": {"high": 64}}, "low=64 and high=64; give two whole numbers of samples"),
        (
            {"batch": {"low": 64, "high": 512}, "workers": {"max": 5}},
            "gives 4 shares for workers.max 5",
        ),
        (
            {"workers": {"max": 5}},
            "gives 4 shares for workers.max 5; lower micro_batch or workers.max",
        ),
        ({"training": {"precision": "fp8"}}, "Input should be 'fp32', 'bf16' or 'fp16'"),
        (
            {"task": {"name": "script"}, "code": "0" * 64, "training": {"precision": "bf16"}},
            "precision is bf16, and a script chooses its own; leave it out, and use torch.autocast",
        ),
        (
            {"training": {"precision": "fp16"}},
            (
                "precision is fp16 and workers.gpus is 0; processors lack parts of fp16, so take"
                " bf16 or fp32"
            ),
        ),
        ({"policy": {"statistic": "sum"}}, "Input should be 'mean' or 'paper'"),
        ({"speling": 1}, "Extra inputs are not permitted"),
        ({"labels": {f"k{n}": "v" for n in range(33)}}, "33 labels; at most 32 are kept"),
    ],
)
def test_a_wrong_spec_is_refused_with_the_value_and_the_way_out(parts, sentence):
    assert sentence in refusal(**parts)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_refused(value):
    assert "finite number" in refusal(training={"optimizer": {"lr": value}})


def test_a_spec_gives_the_librarys_settings():
    config = JobSpec.model_validate(
        {**DIGITS, "policy": {"threshold": 0.3, "lr_drop": 0.2, "statistic": "paper"}}
    ).config()
    assert (config.detector.threshold, config.detector.lr_drop, config.detector.window.epochs) == (
        0.3,
        0.2,
        2,
    )
    assert config.detector.statistic == "paper"


@pytest.mark.parametrize(("given", "expected"), [("all", "all"), ("auto", "auto"), (3, 3)])
def test_a_spec_gives_the_librarys_buckets_per_exchange(given, expected):
    spec = JobSpec.model_validate({**DIGITS, "compression": {"buckets_per_exchange": given}})
    assert spec.config().buckets_per_exchange == expected
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ({"steps": 50}, WarmUp(steps=50)),
        ({"steps": 5, "level": "half"}, WarmUp(steps=5, level="half")),
    ],
)
def test_a_spec_gives_the_librarys_warm_up(given, expected):
    spec = JobSpec.model_validate({**DIGITS, "compression": {"warm_up": given}})
    assert spec.config().warm_up == expected
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    "payload",
    [
        EndRecord(status="FAILED", reason="TASK_RAISED", message="the task raised"),
        EpochRecord(
            epoch=1,
            step=2,
            world_size=2,
            loss=None,
            lr=0.1,
            global_batch=64,
            samples=128,
            seconds_by_phase={"compute": 1.0},
            bytes={"payload": 1},
            regime_by_layer={"w": "critical"},
            level_by_layer={"w": "low"},
        ),
    ],
)
def test_a_record_comes_back_from_json_as_what_it_was(payload):
    record = Record(attempt=1, generation=2, seq=3, time=4.0, payload=payload)
    assert Record.model_validate_json(record.model_dump_json()) == record


def test_bytes_since_a_moment_leave_out_methods_that_sent_nothing_since():
    before = Bytes(payload=5, payload_by_method={"none": 5}, wire=9, wire_by_method={"none": 9})
    later = Bytes(payload=3, payload_by_method={"qsgd": 3})
    now = Bytes.add_up([before, later])
    assert now.payload_by_method == {"none": 5, "qsgd": 3}
    assert (now.payload, now.wire, now.since(before)) == (8, 9, later)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"workers": {"cpus": 5e-324}}, "greater than or equal to 0.001"),
        ({"workers": {"gpus": 1.5}}, "workers.gpus is 1.5; give a whole number"),
        ({"workers": {"gpus": 0.5, "max": 2}}, "could share a GPU, which NCCL refuses"),
        ({"workers": {"gpus": 2}}, "workers.gpus is 2, and a worker trains on one GPU"),
        ({"workers": {"max": "2"}}, "valid integer"),
        ({"training": {"epochs": True}}, "valid integer"),
        ({"training": {"optimizer": {"nesterov": True, "momentum": 0}}}, "give a momentum above 0"),
        (
            {"training": {"optimizer": {"name": "adamw", "momentum": 0.5}}},
            "adamw has no momentum; leave it out, or take sgd",
        ),
        (
            {"training": {"optimizer": {"betas": [0.9, 0.99]}}},
            "sgd has no betas; leave it out, or take adam or adamw or nadam or radam",
        ),
        (
            {"compression": {"method": "topk", "low": {"density": 10**400}}},
            "give one that a float can hold",
        ),
    ],
)
def test_numbers_that_nobody_can_mean_are_refused_in_a_sentence(change, sentence):
    with pytest.raises(ValidationError, match=re.escape(sentence)):
        JobSpec.model_validate({"task": {"name": "digits-mlp"}, **change})


def test_a_stored_spec_reads_back_as_it_was():
    for optimizer in ({"name": "adamw", "lr": 0.001}, {"nesterov": True}):
        spec = JobSpec.model_validate(
            {"task": {"name": "digits-mlp"}, "training": {"optimizer": optimizer}}
        )
        assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    "parts",
    [
        {"batch": {"low": 32, "high": 128}},
        {"batch": {"high": 128}, "training": {"global_batch": 32}},
        {"batch": {"low": 32, "high": 128}, "training": {"global_batch": 32}},
    ],
)
def test_the_low_batch_and_the_global_batch_are_one_number_wherever_it_is_given(parts):
    spec = JobSpec.model_validate({**DIGITS, **parts})
    assert spec.batch is not None
    assert (spec.batch.low, spec.training.global_batch) == (32, 32)
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    assert spec.config().batch == BatchConfig(low=32, high=128)


def test_every_worker_gets_a_part_from_the_least_batch_on():
    spec = JobSpec.model_validate({**DIGITS, "workers": {"max": 3}})
    assert [
        len(micro_batches(range(spec.min_global_batch + more), spec.training.micro_batch))
        for more in (-1, 0)
    ] == [2, 3]


def test_the_schema_of_memory_has_the_bounds_that_are_checked() -> None:
    memory = str(WorkersSpec.model_json_schema()["properties"]["memory"])
    assert "'minimum': 300000000" in memory
    assert f"'maximum': {2**50}" in memory
    assert "'ge'" not in memory
