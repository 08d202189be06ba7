"""What api and scheduler refuse at their start."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from accordion_service.api.app import create_app
from accordion_service.errors import StartError
from accordion_service.scheduler.process import serve_scheduler
from accordion_service.settings.settings import Settings, load_settings


@pytest.mark.parametrize("start", [create_app, serve_scheduler])
@pytest.mark.parametrize("home", ["/proc/x", "{}/file", "{}/read only"])
def test_a_home_that_cannot_be_used_is_refused(
    tmp_path: Path,
    database_url: str,
    start: Callable[[Settings], object],
    home: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_text("")
    # Root, who runs the tests, may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, _: path.name != "read only")
    settings = load_settings(
        home=home.format(tmp_path), database_url=database_url, no_auth=True, ray_address="x:1"
    )
    with pytest.raises(StartError, match=r"home .* cannot be used \(.*\); name another with ACC"):
        start(settings)
