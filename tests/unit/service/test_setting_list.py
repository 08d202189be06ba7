"""`accordion settings`, and warnings about variables that are not settings."""

from __future__ import annotations

from pathlib import Path

import pytest
import uvicorn
from structlog.testing import capture_logs

from accordion_service.api.app import serve_api
from accordion_service.settings.setting_list import describe_unknown_variables, list_settings
from accordion_service.settings.settings import Settings, list_variables, load_settings
from tests.unit.service.conftest import Accordion

SECRET = "a-secret-of-20-chars"


def test_every_setting_is_described_in_one_line() -> None:
    lines = list(list_settings(load_settings()))
    assert len(lines) == len(Settings.model_fields)
    assert [line.name for line in lines if not line.description or "\n" in line.description] == []


def test_a_setting_is_listed_with_its_variable_and_whether_it_is_the_default() -> None:
    found = {line.name: line for line in list_settings(load_settings(port=9, lease_s=3.0))}
    assert (found["ACCORDION_PORT"].value, found["ACCORDION_PORT"].is_default) == ("9", False)
    assert found["ACCORDION_LEASE_S"].is_default
    assert found["ACCORDION_TOKEN"].is_default
    assert found["ACCORDION_TOKEN"].value == ""


def test_a_directory_that_nobody_set_is_a_default() -> None:
    [home] = [line for line in list_settings(load_settings()) if line.name == "ACCORDION_HOME"]
    assert home.is_default


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("admin_token", SECRET),
        ("database_url", f"postgresql://ada:{SECRET}@host/db"),
        ("database_url", f"postgresql://ada:a/{SECRET}@@host/db"),
        ("database_url", f"postgresql://host/db?user=ada&password={SECRET}"),
        ("pip_index_url", f"https://ada:{SECRET}@host/simple"),
        ("storage", f"s3://key:{SECRET}@bucket/path"),
    ],
)
def test_a_secret_is_not_listed(name: str, value: str) -> None:
    lines = list(list_settings(load_settings(**{name: value})))
    [line] = [line for line in lines if line.name == f"ACCORDION_{name.upper()}"]
    assert "***" in line.value
    assert SECRET not in str(lines)


@pytest.mark.parametrize(
    ("name", "similar"),
    [
        ("ACCORDION_PROT", "ACCORDION_PORT"),
        ("ACCORDION_JOB_RETENTION", "ACCORDION_JOB_RETENTION_S"),
        ("ACCORDION_ADMIN_TOKEN_FLIE", "ACCORDION_ADMIN_TOKEN_FILE"),
        ("ACCORDION_DATA_CACHE_BYTE", "ACCORDION_DATA_CACHE_BYTES"),
        ("accordion_prot", "ACCORDION_PORT"),
    ],
)
def test_a_mistyped_variable_is_named_with_the_one_that_was_meant(name: str, similar: str) -> None:
    assert describe_unknown_variables([name]) == (
        f"{name} (did you mean {similar}?) is not a setting and has no effect; 'accordion settings'"
        " lists all"
    )


def test_several_unknown_variables_are_named_in_one_sentence() -> None:
    names = ["ACCORDION_ZZZZZZ", "ACCORDION_HOST", "ACCORDION_QQQQQQ"]
    assert describe_unknown_variables(names) == (
        "ACCORDION_ZZZZZZ, ACCORDION_QQQQQQ are not settings and have no effect; 'accordion"
        " settings' lists all"
    )


def test_variables_of_clients_data_and_tests_are_known() -> None:
    names = "TOKEN URL RAY_TOKEN DATA DATA_TRAIN REQUIRE CRASHES TEST_ENGINE LAST_START"
    assert describe_unknown_variables(f"ACCORDION_{name}" for name in names.split()) == ""


def test_only_variables_that_begin_like_settings_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCORDION_PROT", "1")
    monkeypatch.setenv("MY_ACCORDION_PORT", "1")
    assert "ACCORDION_PROT" in list_variables()
    assert "MY_ACCORDION_PORT" not in list_variables()


def test_settings_are_listed_and_the_changed_ones_marked(
    alone: Accordion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCORDION_ADMIN_TOKEN", SECRET)
    everything, changed = alone("settings"), alone("settings", "--changed")
    assert "ACCORDION_LEASE_S" in everything.out
    assert "ACCORDION_LEASE_S" not in changed.out
    rows = {line.split()[0]: line.split() for line in changed.out.splitlines()}
    assert rows["ACCORDION_ADMIN_TOKEN"][1:3] == ["*", "***"]
    assert rows["ACCORDION_PORT"][1:3] == ["*", "1"]
    assert SECRET not in everything.out


def test_a_mistyped_variable_is_named_by_settings_and_the_doctor(
    alone: Accordion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCORDION_PROT", "8080")
    listed, found = alone("settings"), alone("doctor").out
    assert "accordion: ACCORDION_PROT (did you mean ACCORDION_PORT?) is not a setting" in listed.err
    assert "note  settings     ACCORDION_PROT (did you mean ACCORDION_PORT?)" in found


def test_a_mistyped_variable_is_named_when_the_service_starts(
    alone: Accordion, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ACCORDION_PROT", "8080")
    monkeypatch.setenv("ACCORDION_HOST", "192.0.2.1")  # of no machine, so nothing starts
    monkeypatch.setenv("ACCORDION_ADMIN_TOKEN", SECRET)
    said = alone("up")
    assert said.code == 2
    assert said.err.startswith("accordion: ACCORDION_PROT (did you mean ACCORDION_PORT?)")


def test_a_mistyped_variable_is_in_the_log_of_the_api(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ACCORDION_PROT", "8080")
    monkeypatch.setattr(uvicorn.Server, "run", lambda _, sockets: sockets[0].close())
    monkeypatch.setattr("accordion_service.api.app.configure_logs", lambda *_: None)
    with capture_logs() as logs:
        serve_api(load_settings(home=tmp_path, port=0))
    [warning] = [line for line in logs if line["event"] == "unknown settings"]
    assert "ACCORDION_PROT" in warning["error"]
    assert warning["log_level"] == "warning"
