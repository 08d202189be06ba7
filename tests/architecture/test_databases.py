"""Which tests of the store and of the api run on SQLite, on PostgreSQL or on both."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.api.conftest import check_opened, check_statements, refused_early
from tests.architecture.source import ROOT
from tests.database_kinds import ON_BOTH_DATABASES, check_exception, kinds_of

ON_SQLITE, ON_POSTGRESQL = ["sqlite"], ["postgresql"]
ON_BOTH = ON_SQLITE + ON_POSTGRESQL
SHARED = "shared_database_url"
SQLITE_FILE = '"sqlite:///'
NAMES_A_FILE = {
    "tests/api/test_foreign_jobs.py": "copies the database of either kind",
    "tests/api/test_logger_servers.py": "the file of a server of MLflow",
    "tests/unit/service/test_cli_backups.py": "moves the file of a home to another file",
    "tests/unit/service/test_cli_json.py": "moves the file of a home to another file",
    "tests/unit/service/test_database_errors.py": "a file that cannot be opened",
    "tests/unit/service/test_settings.py": "URLs that are only read",
    "tests/unit/service/test_store.py": "many processes that open a new file; a file in the way",
}
"""Test files of the service that name a SQLite file, and what for."""


def test_tests_of_the_service_open_the_database_that_they_are_given() -> None:
    files = [
        path for name in ("api", "unit/service") for path in (ROOT / "tests" / name).glob("test_*")
    ]
    found = {str(path.relative_to(ROOT)) for path in files if SQLITE_FILE in path.read_text()}
    assert found == NAMES_A_FILE.keys()


@pytest.mark.parametrize(
    ("reasons", "used", "sentence"),
    [
        ((), ["database_url"], r"with \(\); give one reason"),
        ((" ",), ["database_url"], "give one reason"),
        (("it damages a file",), [], "uses neither database_url nor shared_database_url"),
    ],
)
def test_an_exception_without_a_reason_or_a_database_is_refused(
    reasons: tuple[str, ...], used: list[str], sentence: str
) -> None:
    with pytest.raises(pytest.UsageError, match=sentence):
        check_exception("tests/x.py::test_y", pytest.mark.sqlite_only(*reasons).mark, used)
    check_exception("x", pytest.mark.sqlite_only("it damages a file").mark, ["database_url"])


def item(kind: str | None = None, *marks: pytest.Mark, fixture: str = "database_url") -> Any:
    """A test that runs on that kind of database."""
    calls = SimpleNamespace(params={fixture: kind}) if kind else None
    return SimpleNamespace(
        callspec=calls,
        get_closest_marker=lambda name: next((m for m in marks if m.name == name), None),
    )


@pytest.mark.parametrize(
    ("test", "opened", "sentence"),
    [
        (item("postgresql"), {"sqlite"}, "opens no database at that URL"),
        (item("postgresql"), set(), "opens no database at that URL"),
        (item("postgresql", fixture=SHARED), {"sqlite"}, "opens no database at that URL"),
        (item(), {"sqlite"}, r"opens \['sqlite'\] and runs once"),
    ],
)
def test_a_test_that_would_never_open_postgresql_fails(
    test: Any, opened: set[str], sentence: str
) -> None:
    with pytest.raises(pytest.fail.Exception, match=sentence):
        check_opened(test, opened)


@pytest.mark.parametrize(
    ("test", "opened"),
    [
        (item("postgresql"), {"postgresql", "sqlite"}),
        (item("sqlite"), {"sqlite"}),
        (item(), set()),
        (item(None, pytest.mark.sqlite_only("it damages a file").mark), {"sqlite"}),
        (item("sqlite", fixture=SHARED), {"sqlite"}),
        (item("postgresql", fixture=SHARED), {"postgresql"}),
        (item("postgresql", fixture=SHARED), set()),
    ],
)
def test_other_tests_do_not_fail(test: Any, opened: set[str]) -> None:
    check_opened(test, opened)


def test_a_request_that_reaches_the_database_is_not_refused_early() -> None:
    early = item(None, refused_early.mark)
    with pytest.raises(pytest.fail.Exception, match=r"reached the database \('SELECT 1'\)"):
        check_statements(early, ["SELECT 1"])
    check_statements(early, [])
    check_statements(item(), ["SELECT 1"])


def chosen(file: str, test: str, *, postgresql: bool) -> list[str]:
    """Databases of a test of a file that `kinds_of` has not seen in this session."""
    asked = SimpleNamespace(getoption=lambda _: postgresql)
    return kinds_of(
        SimpleNamespace(
            config=asked,
            definition=SimpleNamespace(path=Path(f"{file}.py")),
            function=SimpleNamespace(__name__=test),
            module=SimpleNamespace(__name__=f"planted.{file}.{postgresql}"),
        )
    )


def test_every_test_runs_on_postgresql_in_one_of_the_two_commands() -> None:
    runs = [
        [chosen(file, test, postgresql=asked) for test in ("test_a", "test_b")]
        for file in ("api/test_planted", "api/test_writers")
        for asked in (False, True)
    ]
    assert runs == [
        [ON_BOTH, ON_SQLITE],
        [[], ON_POSTGRESQL],
        [ON_BOTH, ON_BOTH],
        [[], []],
    ]


def test_files_on_both_databases_exist() -> None:
    files = {f"{path.parent.name}/{path.stem}" for path in (ROOT / "tests").rglob("test_*.py")}
    assert files >= ON_BOTH_DATABASES
