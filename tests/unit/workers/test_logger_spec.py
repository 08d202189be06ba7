"""Loggers in the spec of a job: which ones are accepted, and what refused ones are told."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from accordion_workers.records.contract import JobSpec
from accordion_workers.spec.loggers import MAX_LOGGERS, list_logger_secrets

TASK = {"task": {"name": "digits-mlp"}}
SERVER = {"kind": "mlflow", "tracking_uri": "https://mlflow.test"}
KEY = {"secret": "key"}


def parse(*loggers: dict[str, Any]) -> JobSpec:
    return JobSpec.model_validate({**TASK, "loggers": list(loggers)})


def test_a_job_has_no_logger_unless_it_names_one() -> None:
    assert JobSpec.model_validate(TASK).loggers == ()


def test_loggers_are_kept_with_their_defaults() -> None:
    spec = parse({"kind": "tensorboard"}, SERVER, {"kind": "wandb", "project": "p", "api_key": KEY})
    assert [logger.kind for logger in spec.loggers] == ["tensorboard", "mlflow", "wandb"]
    assert spec.loggers[1].experiment == "accordion"
    assert spec.loggers[2].mode == "online"
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


def test_secrets_of_a_logger_are_listed_by_field() -> None:
    spec = parse({**SERVER, "username": "ada", "password": KEY}, {**SERVER, "token": KEY})
    assert [list_logger_secrets(logger) for logger in spec.loggers] == [
        {"password": "key"},
        {"token": "key"},
    ]


@pytest.mark.parametrize(
    ("logger", "detail"),
    [
        ({"kind": "comet"}, "does not match any of the expected tags"),
        ({"kind": "tensorboard", "directory": "/etc"}, "Extra inputs are not permitted"),
        ({"kind": "mlflow", "tracking_uri": "file:///etc"}, "String should match pattern"),
        ({"kind": "mlflow", "tracking_uri": "sqlite:////tmp/x.db"}, "String should match pattern"),
        ({**SERVER, "username": "ada"}, "username and password belong together"),
        ({**SERVER, "password": KEY}, "username and password belong together"),
        (
            {**SERVER, "username": "ada", "password": KEY, "token": KEY},
            "username and token are two ways to log in",
        ),
        ({"kind": "mlflow", "token": KEY}, "there are credentials but no tracking_uri"),
        ({**SERVER, "token": "abc"}, "Input should be a valid dictionary"),
        ({"kind": "wandb", "project": "p"}, "mode online needs an API key"),
        ({"kind": "wandb", "project": "../p", "mode": "offline"}, "String should match pattern"),
        ({"kind": "wandb", "mode": "offline"}, "Field required"),
    ],
)
def test_a_refused_logger_is_told_why(logger: dict[str, Any], detail: str) -> None:
    with pytest.raises(ValidationError, match=detail):
        parse(logger)


def test_more_loggers_than_the_limit_are_refused() -> None:
    assert len(parse(*[{"kind": "tensorboard"}] * MAX_LOGGERS).loggers) == MAX_LOGGERS
    with pytest.raises(ValidationError, match=f"at most {MAX_LOGGERS} items"):
        parse(*[{"kind": "tensorboard"}] * (MAX_LOGGERS + 1))
