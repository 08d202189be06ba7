"""`accordion up` without Ray: its home directory and lock, and what its programs see."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from accordion_client.machine.programs import (
    LocalInstance,
    build_programs,
    driver_environment,
    free_port,
)
from accordion_client.machine.up import last_log_line, up
from accordion_service.access.guards import access_of
from accordion_service.errors import SettingsError, StartError
from accordion_service.process.child_processes import Program
from accordion_service.settings.home import Home, Running
from accordion_service.settings.settings import Settings, load_settings
from accordion_service.store.migrations import upgrade

RECORD = Running(
    pid=7, url="http://127.0.0.1:9", ray_address="127.0.0.1:8", ray_dir="/tmp/none", pids={"api": 3}
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.make()
    home.make_secrets()
    return home


def test_the_home_directory_and_its_secrets_are_the_owners_only(home: Home) -> None:
    home.write(RECORD)
    files = (home.path, home.ray_token, home.token, home.path / "up.json")
    modes = {path.name: path.stat().st_mode & 0o777 for path in files}
    assert modes == {"home": 0o700, "ray.token": 0o600, "token": 0o600, "up.json": 0o600}


def test_the_tokens_are_kept_over_a_restart(home: Home) -> None:
    before = home.ray_token.read_text(), home.token.read_text()
    home.make_secrets()
    assert (home.ray_token.read_text(), home.token.read_text()) == before
    assert {len(token) for token in before} == {64}


def test_a_secret_that_others_may_read_is_closed_at_the_next_start(home: Home) -> None:
    home.token.chmod(0o644)
    home.make_secrets()
    assert home.token.stat().st_mode & 0o777 == 0o600


def test_a_second_holder_is_told_who_holds_it_and_the_way_out(home: Home) -> None:
    with home.locked():
        home.write(RECORD)
        with (
            pytest.raises(
                StartError,
                match=r"process 7, at http://127.0.0.1:9; use that one, stop it with 'kill 7'",
            ),
            home.locked(),
        ):
            pytest.fail("two hold it")


def test_a_record_counts_only_while_its_writer_holds_the_lock(home: Home) -> None:
    with home.locked():
        home.write(RECORD)
        assert home.running() == RECORD
    assert home.running() is None
    assert home.last() == RECORD


def test_a_home_that_cannot_be_made_is_told_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match=r"file/home cannot be used .*ACCORDION_HOME"):
        Home(tmp_path / "file" / "home").make()


def test_a_taken_port_is_told_with_the_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=rf"port {port} on 127.0.0.1 cannot be used .*--port"):
            up(Settings(home=tmp_path / "home", port=port), print)
    assert not list(tmp_path.glob("home/logs/*"))


def test_a_database_that_cannot_be_used_is_told_before_anything_starts(home: Home) -> None:
    settings = Settings(home=home.path, port=0)
    upgrade(settings.database)
    with closing(sqlite3.connect(home.path / "accordion.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '0032'")
    with pytest.raises(StartError, match="made before the first release"):
        up(settings, print)
    assert not list(home.logs.glob("*"))


def test_a_bind_beyond_this_machine_needs_a_token(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="ACCORDION_ADMIN_TOKEN"):
        up(Settings(home=tmp_path, host="0.0.0.0", no_auth=True), print)
    assert not list(tmp_path.iterdir())


def test_a_start_on_a_full_disk_is_told_with_the_way_out(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(Home, "write", Mock(side_effect=full))
    said = r"cannot be started \(No space left on device\); .*ACCORDION_HOME"
    with pytest.raises(StartError, match=said):
        up(Settings(home=home.path, port=0), print)


ENDS_UP_THE_SECOND_TIME = """
import json, os, pathlib, signal, time
home = pathlib.Path({home!r})
if not (home / "ran").exists():
    (home / "ran").touch()
    raise SystemExit
while json.loads((home / "up.json").read_text())["pids"].get("api") != os.getpid():
    time.sleep(0.01)
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(600)
"""


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[Running]:
    """Records to be written; after the start, each can be written the second time only."""
    tried, write = [], Home.write

    def write_later(home: Home, running: Running) -> None:
        tried.append(running)
        if len(tried) > 2 and tried.count(running) == 1:
            raise OSError(28, "No space left on device")
        write(home, running)

    monkeypatch.setattr(Home, "write", write_later)
    return tried


def test_up_goes_on_while_its_record_cannot_be_written(
    home: Home, monkeypatch: pytest.MonkeyPatch, writes: list[Running]
) -> None:
    code = ENDS_UP_THE_SECOND_TIME.format(home=str(home.path))
    command, log = (sys.executable, "-c", code), home.logs / "api.log"
    api = Program(name="api", command=command, environment=dict(os.environ), log=log)
    monkeypatch.setattr("accordion_client.machine.up.build_programs", lambda _: [api])
    monkeypatch.setattr("accordion_client.machine.up.list_unready", lambda _: "")
    up(Settings(home=home.path, port=0), print)
    assert writes.count(writes[-1]) == 2


HANGS_UP_THE_FIRST_TIME = """
import os, pathlib, signal, time
ran = pathlib.Path({home!r}, "ran")
if not ran.exists():
    ran.touch()
    os.kill(os.getppid(), signal.SIGHUP)
    raise SystemExit
ran.with_name("ran again").touch()
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(600)
"""


def test_up_under_nohup_outlives_its_terminal(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    command = (sys.executable, "-c", HANGS_UP_THE_FIRST_TIME.format(home=str(home.path)))
    log, environment = home.logs / "api.log", dict(os.environ)
    api = Program(name="api", command=command, environment=environment, log=log)
    monkeypatch.setattr("accordion_client.machine.up.build_programs", lambda _: [api])
    monkeypatch.setattr("accordion_client.machine.up.list_unready", lambda _: "")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        up(Settings(home=home.path, port=0), print)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (home.path / "ran again").exists()


def a_place(home: Home, **more) -> LocalInstance:
    folders = {"ray_dir": home.path, "temp_dir": home.path / "tmp"}
    return LocalInstance(
        home=home, host="127.0.0.1", port=9, ray_port=free_port("127.0.0.1", 0), **folders, **more
    )


def test_workers_put_temporary_files_into_a_private_folder(
    environments: dict[str, dict[str, str]], home: Home
) -> None:
    assert environments["ray"]["TMPDIR"] == str(home.path / "tmp")


def test_the_api_asks_for_the_token_of_the_home(home: Home) -> None:
    place = a_place(home, token_file=home.token)
    environments = {part.name: part.environment for part in build_programs(place)}
    assert environments["api"]["ACCORDION_ADMIN_TOKEN_FILE"] == str(home.token)
    assert "ACCORDION_ADMIN_TOKEN_FILE" not in environments["scheduler"] | environments["ray"]


@pytest.mark.parametrize("no_auth", [True, False])
def test_the_api_is_told_that_no_token_is_wanted(
    home: Home, monkeypatch: pytest.MonkeyPatch, *, no_auth: bool
) -> None:
    monkeypatch.delenv("ACCORDION_NO_AUTH")
    place = a_place(home, token_file=None if no_auth else home.token, no_auth=no_auth)
    api = next(part.environment for part in build_programs(place) if part.name == "api")
    for name in os.environ.keys() - api.keys():
        monkeypatch.delenv(name)
    for name, value in api.items():
        monkeypatch.setenv(name, value)
    home.make()
    home.make_secrets()
    assert (access_of(load_settings()).token is None) == no_auth


@pytest.fixture
def environments(home: Home, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """What the three programs would see, where our own environment is full of secrets."""
    for name in (
        "ACCORDION_ADMIN_TOKEN",
        "ACCORDION_DATABASE_URL",
        "ACCORDION_PIP_INDEX_URL",
        "AWS_SECRET_ACCESS_KEY",
        "RAY_AUTH_TOKEN",
    ):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:6379")
    place = a_place(home)
    return {part.name: dict(part.environment) for part in build_programs(place)}


def test_workers_see_no_secret_of_the_service(environments: dict[str, dict[str, str]]) -> None:
    assert "secret" not in environments["ray"].values()
    assert not [name for name in environments["ray"] if name.startswith("ACCORDION_")]


def test_workers_see_the_variables_that_users_name(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.setenv(name, name)
    monkeypatch.setenv("ACCORDION_PASS_TO_WORKERS", "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY")
    passed = load_settings().pass_to_workers
    place = a_place(home, passed_variables=passed)
    seen = next(part.environment for part in build_programs(place) if part.name == "ray")
    assert {name for name in seen if name.startswith("AWS_")} == {
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
    }


def test_each_part_sees_what_it_needs_and_not_what_is_for_others(
    environments: dict[str, dict[str, str]],
) -> None:
    api, scheduler = environments["api"], environments["scheduler"]
    assert api["ACCORDION_ADMIN_TOKEN"] == scheduler["ACCORDION_DATABASE_URL"] == "secret"
    assert "ACCORDION_ADMIN_TOKEN" not in scheduler
    assert scheduler["ACCORDION_PIP_INDEX_URL"] == "secret"
    assert "ACCORDION_PIP_INDEX_URL" not in api
    assert scheduler["RAY_ADDRESS"].startswith("127.0.0.1:")
    assert {name for name in api if name.startswith("RAY_")} == set()
    assert environments["ray"]["RAY_memory_monitor_refresh_ms"] == "0"
    assert {
        name for name in scheduler.keys() & environments["ray"].keys() if name == "RAY_AUTH_TOKEN"
    } == set()


def test_drivers_get_no_settings_of_the_head_process(home: Home) -> None:
    assert set(driver_environment(home, "127.0.0.1:6379")) == {
        "RAY_ADDRESS",
        "RAY_AUTH_MODE",
        "RAY_AUTH_TOKEN_PATH",
        "RAY_DEDUP_LOGS_SKIP_REGEX",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",
        "RAY_ROTATION_BACKUP_COUNT",
        "RAY_ROTATION_MAX_BYTES",
    }


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", "nothing"),
        ("one\ntwo\n\n", "two"),
        ('{"event": "began"}\n', "began"),
        ('{"event": "x", "error": "why"}', "why"),
    ],
)
def test_last_log_line_is_the_last_sentence_of_the_log(tmp_path: Path, log: str, said: str) -> None:
    (tmp_path / "log").write_text(log)
    assert last_log_line(tmp_path / "log") == said


def test_a_dashboard_without_its_packages_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accordion_client.machine.up.find_spec", lambda _: None)
    with pytest.raises(
        StartError, match=r"ACCORDION_RAY_DASHBOARD is true.*pip install 'ray\[default\]=="
    ):
        up(Settings(home=tmp_path, port=0, ray_dashboard=True), print)


def test_ray_offers_the_cpus_that_are_set_and_at_least_four_otherwise(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCORDION_RAY_CPUS", "1")
    few = load_settings().ray_cpus
    for cpus, given, offered in [(2, None, "4"), (16, None, "16"), (16, few, "1")]:
        monkeypatch.setattr("os.cpu_count", lambda cpus=cpus: cpus)
        command = build_programs(a_place(home, ray_cpus=given))[0].command
        assert command[command.index("--num-cpus") + 1] == offered


def test_ray_starts_its_dashboard_on_loopback_where_one_is_wanted(home: Home) -> None:
    ray, wanted = (
        "".join(build_programs(a_place(home, ray_dashboard_port=port))[0].command)
        for port in (0, 8265)
    )
    assert "--include-dashboard=false" in ray
    assert "--include-dashboard=true--dashboard-host=127.0.0.1--dashboard-port=8265" in wanted
