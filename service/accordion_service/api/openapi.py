"""Writes the schema of the REST API to `openapi.json`; run by `make openapi`."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from accordion_service.api.app import create_app
from accordion_service.settings.settings import load_settings

OPENAPI_JSON = Path(__file__).with_name("openapi.json")


def openapi_text() -> str:
    """Return the schema of the REST API as JSON, sorted by key for readable diffs."""
    with TemporaryDirectory() as home:
        app = create_app(load_settings(home=Path(home), no_auth=True))
        schema = app.openapi()
        app.state.accordion.database.close()
    return json.dumps(schema, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    OPENAPI_JSON.write_text(openapi_text())
