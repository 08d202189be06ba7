"""Request and response models of secrets."""

from __future__ import annotations

from datetime import datetime

from pydantic import ConfigDict, Field

from accordion_service.schemas.jobs import Answer, Request
from accordion_workers.spec.types import MAX_VALUE_LENGTH


class SecretRequest(Request):
    """A secret. No response contains its value."""

    value: str = Field(min_length=1, max_length=MAX_VALUE_LENGTH, pattern=r"^[^\x00]*$")
    """Value that a job's variable gets, such as an access token. Any text of up to 32,000
    characters without NUL.
    """

    model_config = ConfigDict(
        hide_input_in_errors=True, json_schema_extra={"examples": [{"value": "hf_..."}]}
    )


class SecretView(Answer):
    """A secret without its value."""

    name: str
    """Name by which `env` of a spec refers to it: `{"HF_TOKEN": {"secret": "hf-token"}}`."""
    set_at: datetime
    """Time at which the value was set."""
    readable: bool = True
    """Whether the service can decrypt the value. If not, its key was lost or replaced: a job that
    refers to the secret waits until the secret is set again, or the key is back.
    """


class SecretList(Answer):
    """Your secrets, by name."""

    items: list[SecretView]
    """The secrets."""
