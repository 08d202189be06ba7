"""Environment variables of a job: which ones are accepted, and what workers get."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from accordion_workers.records.contract import JobSpec, Launch, list_secret_names, resolve_env

TASK = {"task": {"name": "digits-mlp"}}
TOKEN = {"HF_TOKEN": {"secret": "hf-token"}}


def parse(env: Any) -> JobSpec:
    return JobSpec.model_validate({**TASK, "env": env})


def test_variables_and_references_are_kept() -> None:
    spec = parse({"HF_HOME": "/mnt/hf", "OMP_NUM_THREADS": 2, "EMPTY": "", **TOKEN})
    assert spec.model_dump(mode="json")["env"] == {
        "HF_HOME": "/mnt/hf",
        "OMP_NUM_THREADS": "2",
        "EMPTY": "",
        **TOKEN,
    }
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    assert list_secret_names(spec.env) == {"HF_TOKEN": "hf-token"}


def test_a_reference_takes_the_value_of_its_secret() -> None:
    env = parse({"HF_HOME": "/mnt/hf", **TOKEN}).env
    assert resolve_env(env, {"hf-token": "hf_abc", "other": "x"}) == {
        "HF_HOME": "/mnt/hf",
        "HF_TOKEN": "hf_abc",
    }
    with pytest.raises(KeyError, match="hf-token"):
        resolve_env(env, {})


@pytest.mark.parametrize(
    ("env", "detail"),
    [
        ({"DEBUG": True}, "True is not a text; put it in quotes"),
        ({"RATE": 0.5}, "0.5 is not a text; put it in quotes"),
        ({"NOTHING": None}, "None is not a text; put it in quotes"),
        ({"TOKEN": {"secrets": "hf-token"}}, 'a reference has one field, such as {"secret"'),
        ({"TOKEN": {"secret": "a", "key": "b"}}, 'a reference has one field, such as {"secret"'),
        ({"TOKEN": {"secret": 3}}, 'a reference has one field, such as {"secret"'),
        ({"TOKEN": {"secret": "../key"}}, "'../key' is not the name of a secret; give up to 63"),
        ({"TOKEN": {"secret": "x" * 64}}, "is not the name of a secret; give up to 63"),
        ({"A-B": "x"}, "should match pattern"),
        ({"": "x"}, "should match pattern"),
        ({"LONG": "x" * 32_001}, "a text of 32001 characters; at most 32000 fit"),
        ({f"V{number}": "" for number in range(65)}, "65 variables; at most 64 are passed on"),
        ({"RANK": "0"}, "RANK is set by the service for each worker"),
        ({"RAY_ADDRESS": "x"}, "RAY_ADDRESS has the prefix of Ray's settings"),
        ({"ACCORDION_HOME": "x"}, "ACCORDION_HOME has the prefix of the service's own settings"),
        ({"LD_PRELOAD": "x"}, "LD_PRELOAD is read before a worker knows its job"),
        ({"PYTHONPATH": "x"}, "PYTHONPATH is read before a worker knows its job"),
        ({"NUL": "a\0b"}, "holds a NUL character"),
        (["A=1"], "should be a valid dictionary"),
    ],
)
def test_other_variables_are_refused_with_a_way_out(env: Any, detail: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse(env)
    [error] = caught.value.errors()
    assert detail in error["msg"]
    assert error["loc"][0] == "env"


def test_a_launch_knows_its_secrets_and_does_not_show_them() -> None:
    env = {"HF_HOME": "/mnt/hf", "HF_TOKEN": "hf_abcdef"}
    launch = Launch(
        job_id="a", attempt=1, workers=1, storage="", spec=parse({"HF_HOME": "x", **TOKEN}), env=env
    )
    assert launch.list_secret_values() == ["hf_abcdef"]
    assert "hf_abcdef" not in repr(launch)
    assert Launch.model_validate_json(launch.model_dump_json()).env == env
