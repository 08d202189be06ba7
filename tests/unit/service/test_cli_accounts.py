"""`accordion whoami`, `user`, `token` and `audit`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from accordion_client import Client
from tests.api.conftest import Live, serve_live
from tests.unit.service.conftest import Accordion

ADMIN = "the-admin-token-of-the-settings"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    yield from serve_live(tmp_path_factory.mktemp("guarded"), admin_token=ADMIN)


@pytest.fixture
def team(alone: Accordion, guarded: Live, monkeypatch: pytest.MonkeyPatch) -> Accordion:
    """The command line of the admin."""
    monkeypatch.setenv("ACCORDION_URL", guarded.url)
    monkeypatch.setenv("ACCORDION_TOKEN", ADMIN)
    return alone


def new_token(team: Accordion, name: str, *options: str) -> str:
    team("user", "add", name)
    said = team("token", "new", "--user", name, *options)
    assert said.code == 0, said.err
    return said.out.strip()


def test_a_user_submits_with_a_token_and_is_named(
    team: Accordion, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "added ada as editor" in team("user", "add", "ada").out
    token = team("token", "new", "--user", "ada", "--label", "laptop").out.strip()
    monkeypatch.setenv("ACCORDION_TOKEN", token)
    user, _, place, allowed = team("whoami").out.split(maxsplit=3)
    assert (user, place.startswith("http://")) == ("ada", True)
    assert allowed.startswith("(override, read, submit, tokens, until 20")
    job = team("submit", spec, "--json").json()
    assert job["owner"] == "ada"
    refused = team("user", "list")
    assert (refused.code, "needs the scope 'admin'" in refused.err) == (2, True)
    assert "owner      ada" in team("show", job["id"]).out
    monkeypatch.setenv("ACCORDION_TOKEN", ADMIN)
    assert "OWNER" not in team("list").out
    by_name = team("audit", "--job", job["name"], "--json").json()["items"]
    team("submit", spec)
    assert [line.split()[2] for line in team("list").out.splitlines()] == ["OWNER", "admin", "ada"]
    assert "job.submitted" in team("audit", "--user", "ada").out
    [entry] = team("audit", "--subject", job["id"], "--json").json()["items"]
    assert by_name == [entry]
    assert (entry["user"], entry["after"]["name"]) == ("ada", job["name"])


def test_the_audit_log_is_filtered_by_token_request_and_time(
    team: Accordion, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = new_token(team, "tess")
    monkeypatch.setenv("ACCORDION_TOKEN", token)
    job = team("submit", spec, "--json").json()
    monkeypatch.setenv("ACCORDION_TOKEN", ADMIN)

    def listed(*options: str) -> list[str]:
        items = team("audit", *options, "--json").json()["items"]
        return [entry["subject"] for entry in items]

    by_token = ("--token", token.split("_")[1])
    [entry] = team("audit", *by_token, "--json").json()["items"]
    assert entry["subject"] == job["id"]
    assert listed("--request", entry["request_id"]) == [job["id"]]
    made_at = datetime.fromisoformat(entry["time"])
    earlier, later = (str(made_at + timedelta(seconds=shift)) for shift in (-1, 1))
    assert listed(*by_token, "--time-after", earlier, "--time-before", later) == [job["id"]]
    assert listed(*by_token, "--time-after", later) == []
    assert listed(*by_token, "--time-before", earlier) == []
    assert listed("--time-after", "2999-01-01") == []
    wrong = team("audit", "--time-after", "yesterday")
    assert wrong.code == 2
    said = " ".join(wrong.err.replace("│", " ").split())
    assert "--time-after is 'yesterday'; give a date or time such as 2027-01-31" in said


def test_the_audit_log_takes_a_whole_token_and_sends_only_its_id(
    team: Accordion, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = new_token(team, "tom")
    monkeypatch.setenv("ACCORDION_TOKEN", token)
    job = team("submit", spec, "--json").json()
    monkeypatch.setenv("ACCORDION_TOKEN", ADMIN)
    sent: list[str | None] = []
    read_page = Client.audit

    def note_and_read(self: Client, **filters: Any) -> Any:
        sent.append(filters["token_id"])
        return read_page(self, **filters)

    monkeypatch.setattr(Client, "audit", note_and_read)
    [entry] = team("audit", "--token", token, "--json").json()["items"]
    assert (entry["subject"], sent) == (job["id"], [token.split("_")[1]])
    wrong = team("audit", "--token", ADMIN)
    assert (wrong.code, ADMIN in wrong.err, len(sent)) == (2, False, 1)
    assert "neither the ID of a token" in wrong.err


def test_lists_say_that_nothing_matches_and_that_a_user_is_unknown(
    team: Accordion, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = new_token(team, "nora")
    assert team("list", "--owner", "nora").out == "no job matches\n"
    unknown = "; there is no user 'nobody', 'accordion user list' shows all\n"
    assert team("list", "--owner", "nobody").out == f"no job matches{unknown}"
    assert team("audit", "--user", "nobody").out == f"no change matches{unknown}"
    nothing = "no change matches; the audit log has no change"
    assert team("audit", "--user", "nora").out == f"{nothing} by the user 'nora'\n"
    for option, what in (("token", "with the token"), ("request", "by the request")):
        assert team("audit", f"--{option}", "0" * 12).out == f"{nothing} {what} {'0' * 12}\n"
    by_name = f"{nothing} of 'nonsense'; a job is named by --job nonsense\n"
    assert team("audit", "--subject", "nonsense").out == by_name
    both = team("audit", "--subject", "two words", "--user", "nora").out
    assert both.endswith("'nora' or of 'two words'; a job is named by --job 'two words'\n")
    assert team("audit", "--time-before", "2020-01-31").out == "no change matches\n"
    assert team("list", "--owner", "nobody", "--json").json()["items"] == []
    monkeypatch.setenv("ACCORDION_TOKEN", token)
    assert team("list", "--owner", "nobody").out == "no job matches\n"


@pytest.mark.parametrize(
    ("width", "extra"), [(100, []), (220, ["TOKEN"]), (300, ["TOKEN", "REQUEST"])]
)
def test_the_table_of_changes_has_tokens_and_requests_where_there_is_room(
    team: Accordion, spec: Path, monkeypatch: pytest.MonkeyPatch, width: int, extra: list[str]
) -> None:
    token = new_token(team, "tina")
    monkeypatch.setenv("ACCORDION_TOKEN", token)
    team("submit", spec)
    monkeypatch.setenv("ACCORDION_TOKEN", ADMIN)
    [entry, *_] = team("audit", "--token", token, "--json").json()["items"]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    said = re.sub(r"\x1b\[[\d;]*m", "", team("audit", "--token", token).out)
    header, first, *_ = said.splitlines()
    assert header.split() == ["TIME", "USER", *extra, "ACTION", "SUBJECT", "CHANGE"]
    cells = {"TOKEN": entry["token_id"], "REQUEST": entry["request_id"]}
    assert [name for name, cell in cells.items() if cell in first] == extra


def test_a_token_is_read_from_a_file(
    team: Accordion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(new_token(team, "bob") + "\n")
    monkeypatch.delenv("ACCORDION_TOKEN")
    monkeypatch.setenv("ACCORDION_TOKEN_FILE", str(file))
    assert team("whoami", "--json").json()["user"] == "bob"


def test_tokens_are_listed_and_revoked(team: Accordion) -> None:
    made = new_token(team, "carol", "--label", "CI", "--scope", "read", "--days", "0")
    token_id = made.split("_")[1]
    _, listed = team("token", "list", "--user", "carol").out.splitlines()
    assert listed.split()[:6] == ["carol", token_id, "CI", "read", "never", "never"]
    new_token(team, "dora", "--label", "laptop")
    assert "--all lists those of all users" in team("token", "list").out
    assert "--all" not in team("token", "list", "--all").out
    owners = {line.split()[0] for line in team("token", "list", "--all").out.splitlines()}
    assert {"carol", "dora"} <= owners
    both = team("token", "list", "--all", "--user", "carol")
    assert (both.code, "give either --user or --all" in both.err) == (2, True)
    assert f"token {token_id} of carol (CI) is revoked" in team("token", "revoke", made).out
    assert team("token", "list", "--user", "carol", "--json").json()["items"][0]["revoked_at"]


def test_a_list_of_tokens_as_json_does_not_ask_who_calls(
    team: Accordion, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Client] = []
    read_caller = Client.caller

    def note_and_read(self: Client) -> Any:
        asked.append(self)
        return read_caller(self)

    monkeypatch.setattr(Client, "caller", note_and_read)
    assert team("token", "list", "--json").code == 0
    assert not asked
    assert "--all lists" in team("token", "list").out
    assert len(asked) == 1


def test_users_change_roles_and_are_disabled(team: Accordion) -> None:
    team("user", "add", "dan", "--role", "viewer")
    assert team("user", "change", "dan", "--role", "operator").out == "dan is operator\n"
    assert team("user", "change", "dan", "--disable").out == "dan is operator and disabled\n"
    assert team("user", "change", "dan", "--enable").out == "dan is operator\n"
    rows = team("user", "list").out.splitlines()
    assert [row.split()[:2] for row in rows if row.startswith("dan")] == [["dan", "operator"]]
    changes = team("audit", "--subject", "dan", "--action", "user.changed").out
    assert "role: viewer → operator" in changes
    assert "disabled: False → True" in changes
    newest = team("audit", "--subject", "dan", "--limit", "1", "--json").json()
    after = ("--cursor", str(newest["next_cursor"]), "--limit", "0", "--json")
    rest = team("audit", "--subject", "dan", *after).json()["items"]
    actions = [entry["action"] for entry in newest["items"] + rest]
    assert actions == ["user.changed"] * 3 + ["user.added"]


def test_a_wrong_role_is_refused_with_the_known_ones(team: Accordion) -> None:
    said = team("user", "add", "eve", "--role", "king")
    assert said.code == 2
    assert "viewer" in said.err


def test_a_job_is_not_submitted_to_be_followed_without_the_scope_to_read(
    team: Accordion, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCORDION_TOKEN", new_token(team, "ci", "--scope", "submit"))
    said = team("submit", spec, "--follow")
    assert (said.code, said.out) == (2, "")
    assert "needs the scope 'read', and the token of user 'ci' has submit" in said.err
    made = team("submit", spec)
    assert made.code == 0, made.err
    monkeypatch.setenv("ACCORDION_TOKEN", ADMIN)
    assert len(team("list", "--owner", "ci").out.splitlines()) == 2


def test_a_wrong_scope_is_refused_with_the_known_ones(team: Accordion) -> None:
    said = team("token", "new", "--scope", "everything")
    assert said.code == 2
    assert "'read:all'" in said.err


def test_a_token_is_named_with_label_or_name(team: Accordion) -> None:
    for option in ("--label", "--name"):
        token = team("token", "new", option, "laptop", "--json").json()
        assert token["label"] == "laptop"
