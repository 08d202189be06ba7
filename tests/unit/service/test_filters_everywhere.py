"""The page of the audit log has the filters of the api; all else takes them from the queries."""

from __future__ import annotations

import re
from pathlib import Path

from accordion_service.api import dashboard
from accordion_service.schemas.queries import AuditQuery

AUDIT_PAGE = Path(dashboard.__file__).parent / "templates/audit.html"


def test_the_page_has_every_filter_of_the_audit_log() -> None:
    fields = re.findall(r'<input [^>]*name="([^"]+)"', AUDIT_PAGE.read_text())
    assert set(fields) == AuditQuery.model_fields.keys()
