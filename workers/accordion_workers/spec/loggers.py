"""The part of a job's specification that names its loggers, which the service fills with epochs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from accordion_workers.spec.env import SecretRef
from accordion_workers.spec.patterns import URL_PATTERN, WANDB_NAME_PATTERN
from accordion_workers.spec.types import Strict

MAX_LOGGERS = 4
"""Maximum number of loggers of a job."""
_PLAIN = r"^[^\x00-\x1f\x7f]*$"


class TensorboardSpec(Strict):
    """Event files of TensorBoard in the service's folder of loggers, which the job shows."""

    kind: Literal["tensorboard"]
    """`tensorboard`."""


class MlflowSpec(Strict):
    """A run of MLflow."""

    kind: Literal["mlflow"]
    """`mlflow`."""
    tracking_uri: str | None = Field(default=None, max_length=2000, pattern=URL_PATTERN)
    """URL of the tracking server, such as `https://mlflow.example.com`; it needs an address that
    webhooks may have, too. Null: an SQLite file in the service's folder of loggers.
    """
    experiment: str = Field(default="accordion", min_length=1, max_length=250, pattern=_PLAIN)
    """Name of the experiment, which is created if there is none."""
    run_name: str | None = Field(default=None, min_length=1, max_length=250, pattern=_PLAIN)
    """Name of the run. Null: the name of the job."""
    username: str | None = Field(default=None, min_length=1, max_length=250, pattern=_PLAIN)
    """User of basic authentication; needs `password`."""
    password: SecretRef | None = None
    """Your secret with the password of `username`."""
    token: SecretRef | None = None
    """Your secret with a bearer token."""

    @model_validator(mode="after")
    def _check_credentials(self) -> MlflowSpec:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password belong together; give both, or neither")
        if self.username is not None and self.token is not None:
            raise ValueError("username and token are two ways to log in; give one of them")
        if self.tracking_uri is None and (self.username is not None or self.token is not None):
            raise ValueError(
                "there are credentials but no tracking_uri; give one, or leave the credentials out"
            )
        return self


class WandbSpec(Strict):
    """A run of Weights & Biases."""

    kind: Literal["wandb"]
    """`wandb`."""
    project: str = Field(min_length=1, max_length=128, pattern=WANDB_NAME_PATTERN)
    """Name of the project: letters, digits and `_.-`."""
    entity: str | None = Field(
        default=None, min_length=1, max_length=128, pattern=WANDB_NAME_PATTERN
    )
    """User or team that owns the project. Null: the default of the API key."""
    mode: Literal["online", "offline"] = "online"
    """`online`: sent while the job runs. `offline`: written to the service's folder of loggers when
    the job has ended, for `wandb sync`.
    """
    api_key: SecretRef | None = None
    """Your secret with the API key; required for `online`."""

    @model_validator(mode="after")
    def _check_key(self) -> WandbSpec:
        if self.mode == "online" and self.api_key is None:
            raise ValueError(
                'mode online needs an API key; give api_key, such as {"secret": "wandb"}, or take'
                " mode offline"
            )
        return self


LoggerSpec = Annotated[TensorboardSpec | MlflowSpec | WandbSpec, Field(discriminator="kind")]


def list_logger_secrets(logger: LoggerSpec) -> dict[str, str]:
    """Return the names of the secrets that a logger refers to, by field."""
    fields = ((name, getattr(logger, name)) for name in type(logger).model_fields)
    return {name: value.secret for name, value in fields if isinstance(value, SecretRef)}


__all__ = [
    "MAX_LOGGERS",
    "LoggerSpec",
    "MlflowSpec",
    "TensorboardSpec",
    "WandbSpec",
    "list_logger_secrets",
]
