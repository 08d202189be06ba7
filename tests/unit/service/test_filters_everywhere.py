"""Filters of lists: the api, both clients, the command line and the page of the audit log have the
same ones.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from accordion_client.commands.audit import audit
from accordion_client.commands.listing import list_jobs
from accordion_client.sdk.accounts import AccountRequests
from accordion_client.sdk.jobs import JobRequests
from accordion_service.api import dashboard
from accordion_service.api.accounts import AuditQuery
from accordion_service.api.jobs import ListQuery

NAMES_IN_CLIENT = {"id": "id_prefix"}
NAMES_IN_COMMAND = {"id": "id_", "name": "exact_name", "name_prefix": "name"}
NAMES_IN_AUDIT_COMMAND = {"token_id": "token", "request_id": "request"}
"""Names that differ from those of the api."""
AUDIT_PAGE = Path(dashboard.__file__).parent / "templates/audit.html"


def test_both_clients_have_every_filter_of_the_api() -> None:
    wanted = {NAMES_IN_CLIENT.get(name, name) for name in ListQuery.model_fields}
    assert wanted <= set(inspect.signature(JobRequests.jobs).parameters)


def test_the_command_has_every_filter_of_the_api() -> None:
    wanted = {NAMES_IN_COMMAND.get(name, name) for name in ListQuery.model_fields}
    assert wanted <= set(inspect.signature(list_jobs).parameters)


def test_both_clients_have_every_filter_of_the_audit_log() -> None:
    wanted = set(AuditQuery.model_fields)
    assert wanted <= set(inspect.signature(AccountRequests.audit).parameters)


def test_the_command_has_every_filter_of_the_audit_log() -> None:
    wanted = {NAMES_IN_AUDIT_COMMAND.get(name, name) for name in AuditQuery.model_fields}
    assert wanted <= set(inspect.signature(audit).parameters)


def test_the_page_has_every_filter_of_the_audit_log() -> None:
    fields = re.findall(r'<input [^>]*name="([^"]+)"', AUDIT_PAGE.read_text())
    assert set(fields) == set(AuditQuery.model_fields) - {"limit", "cursor"}
