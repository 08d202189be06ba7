"""The pages without a browser: what is served, and what is not."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from accordion_service.api.app import create_app
from accordion_service.api.dashboard.assets import compute_fingerprint, list_assets
from accordion_service.settings.settings import load_settings

ROOT = Path(__file__).parents[3]


@pytest.fixture
def client(tmp_path, migrated_file):
    shutil.copy(migrated_file, tmp_path / "accordion.db")
    return TestClient(create_app(load_settings(home=tmp_path)), base_url="http://127.0.0.1")


@pytest.mark.parametrize("path", ["/", "/audit", "/cluster", "/login", "/jobs/unknown"])
def test_all_that_a_page_loads_is_served(client, path):
    loaded = re.findall(r'(?:src|href)="(/static/[^"]+)"', client.get(path).text)
    assert loaded
    assert {client.get(address).status_code for address in loaded} == {200}


def test_modules_import_only_modules_that_are_served():
    names = {Path(name).name for name in list_assets()}
    modules = [
        asset.path.read_text() for name, asset in list_assets().items() if name.startswith("js/")
    ]
    imported = {name for text in modules for name in re.findall(r'from "\./([^"]+)"', text)}
    assert imported
    assert imported <= names


def test_files_may_be_kept_for_ever_since_their_address_changes_with_them(client):
    answer = client.get(f"/static/pages/{compute_fingerprint()}/style.css")
    assert "immutable" in answer.headers["cache-control"]
    assert client.get("/").headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "name", ["../router.py", "..%2Frouter.py", "/etc/passwd", "js", "unknown.js"]
)
def test_no_other_file_can_be_had(client, name):
    assert client.get(f"/static/pages/{compute_fingerprint()}/{name}").status_code == 404


def test_pages_hold_no_inline_script_and_no_handler(client):
    for path in ("/", "/audit", "/cluster", "/login"):
        text = client.get(path).text
        assert not re.search(r"<script(?![^>]*\bsrc=)", text)
        assert not re.search(r"\son[a-z]+=", text)


def test_text_of_users_is_shown_as_text(client):
    text = client.get("/login", params={"next": '"><script src=x>'}).text
    assert "<script src=x>" not in text
