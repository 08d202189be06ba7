"""The page of the audit log and the Python client have the filters of the api; all else takes them
from the queries.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from accordion_service.api import dashboard
from accordion_service.schemas.queries import AuditKeywords, AuditQuery, JobKeywords, JobQuery

AUDIT_PAGE = Path(dashboard.__file__).parent / "templates/audit.html"


def test_the_page_has_every_filter_of_the_audit_log() -> None:
    fields = re.findall(r'<input [^>]*name="([^"]+)"', AUDIT_PAGE.read_text())
    assert set(fields) == AuditQuery.model_fields.keys()


@pytest.mark.parametrize(
    ("keywords", "filters"),
    [
        (AuditKeywords, AuditQuery.model_fields.keys()),
        (JobKeywords, JobQuery.model_fields.keys() - {"archived"}),  # has another type there
    ],
)
def test_the_python_client_takes_every_filter(keywords: type, filters: set[str]) -> None:
    assert keywords.__annotations__.keys() == filters
