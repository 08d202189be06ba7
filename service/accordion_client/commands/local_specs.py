"""Specs of jobs that a command runs on this machine, without the service."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accordion_workers.records.contract import JobSpec


def check_spec(spec: dict[str, Any], explain_refusal: Callable[[JobSpec], str]) -> JobSpec:
    """Return a spec whose workers the option `--workers` has set, checked in the words of the
    service.

    Raises:
        SettingsError: the spec is wrong, or `explain_refusal` has a reason against it.
    """
    from accordion_service.errors import SettingsError

    try:
        checked = parse_job(spec)
    except SettingsError as error:
        raise SettingsError(name_option(str(error))) from None
    refusal = explain_refusal(checked)
    if refusal:
        raise SettingsError(refusal)
    return checked


def parse_job(spec: dict[str, Any]) -> JobSpec:
    """Return a spec, checked in the words of the service.

    Raises:
        SettingsError: the spec is wrong.
    """
    from pydantic import ValidationError

    from accordion_client.sdk.answers import describe_item
    from accordion_service.errors import SettingsError
    from accordion_service.schemas.invalid_values import describe_errors
    from accordion_workers.records.contract import JobSpec

    try:
        return JobSpec.model_validate(spec)
    except ValidationError as error:
        found = [{**item, "loc": ("body", *item["loc"])} for item in error.errors()]
        items = describe_errors(found, JobSpec, spec)
        raise SettingsError("\n".join(map(describe_item, items))) from None


def name_option(message: str) -> str:
    """Return a message about the spec with the option that sets its number of workers."""
    return message.replace("workers.max", "--workers").replace("workers.min", "--workers")


def build_environment(spec: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a process that runs the job: this process's, those of the spec
    without references to secrets, which the service alone knows, and the paths of data that are on
    this machine.

    Raises:
        SettingsError: the variable of data that are fetched for jobs is not set.
    """
    from accordion_service.process.child_processes import inherit_environment

    environment = inherit_environment(lambda _: True) | _read_variables(spec)
    _add_data(spec, environment)
    return environment


def _read_variables(spec: dict[str, Any]) -> dict[str, str]:
    env = spec.get("env")
    if not isinstance(env, dict):
        return {}
    return {name: str(value) for name, value in env.items() if isinstance(value, str | int)}


def _add_data(spec: dict[str, Any], environment: dict[str, str]) -> None:
    from accordion_service.errors import SettingsError
    from accordion_workers.records.contract import name_variable

    data = spec.get("data")
    for name, location in data.items() if isinstance(data, dict) else ():
        variable = name_variable(str(name))
        if str(location).startswith("/"):
            environment.setdefault(variable, str(location))
        elif variable not in environment:
            raise SettingsError(
                f"the spec names data {name!r} at {location}, and this command fetches none; set"
                f" {variable} to a path on this machine that has them"
            )
