"""Filters of lists: the api, both clients and the command line have the same ones."""

from __future__ import annotations

import inspect

from service.api.jobs import ListQuery
from service.client.job_requests import JobRequests
from service.commands.listing import list_jobs

NAMES_IN_CLIENT = {"id": "id_prefix"}
NAMES_IN_COMMAND = {"id": "id_", "name": "exact_name", "name_prefix": "name"}
"""Names that differ from those of the api."""


def test_both_clients_have_every_filter_of_the_api() -> None:
    wanted = {NAMES_IN_CLIENT.get(name, name) for name in ListQuery.model_fields}
    assert wanted <= set(inspect.signature(JobRequests.jobs).parameters)


def test_the_command_has_every_filter_of_the_api() -> None:
    wanted = {NAMES_IN_COMMAND.get(name, name) for name in ListQuery.model_fields}
    assert wanted <= set(inspect.signature(list_jobs).parameters)
