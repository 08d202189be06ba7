"""The command line against a live service over the scripted cluster: what is printed, and the exit
code.
"""

from __future__ import annotations

import io
import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from accordion_client import Client
from accordion_client.commands.demo import packaged_spec
from accordion_client.commands.spec_file import parse_spec, set_value
from accordion_service.errors import SettingsError
from accordion_workers.records.contract import JobSpec
from tests.api.conftest import Live
from tests.programs import run_program
from tests.unit.service.conftest import Accordion, job_name


def test_submit_prints_the_id_and_how_to_watch_it(accordion: Accordion, spec: Path) -> None:
    said = accordion("submit", spec)
    assert said.code == 0
    assert "is QUEUED as" in said.out
    assert "accordion watch" in said.out


def test_submit_warns_of_a_job_that_can_never_fit(accordion: Accordion, spec: Path) -> None:
    said = accordion("submit", spec, "--set", "workers.memory=4TB")
    assert said.code == 0
    assert " waits: needs 1 worker of 1 CPU and 4000.0 GB, but the whole cluster" in said.err
    assert "lower workers.memory" in said.err
    assert accordion("cancel", said.out.split()[0]).code == 0


def test_submit_takes_json_and_changed_values(accordion: Accordion, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text('{"task": {"name": "digits-mlp"}}')
    changes = ("training.epochs=2", "compression.high={rank: 2}", "labels.team=vision")
    options = [word for change in changes for word in ("--set", change)]
    found = accordion("submit", file, *options, "--json").json()["spec"]
    assert (found["training"]["epochs"], found["compression"]["high"], found["labels"]) == (
        2,
        {"rank": 2, "factors": "both", "refresh_every": 0},
        {"team": "vision"},
    )


def test_a_dry_run_shows_the_whole_spec_and_stores_nothing(
    accordion: Accordion, spec: Path, service: Live
) -> None:
    with Client(service.url) as client:
        before = len(list(client.all_jobs()))
        said = accordion("submit", spec, "--dry-run")
        assert "window:" in said.out
        assert "# would " in said.out
        assert len(list(client.all_jobs())) == before


def test_following_a_job_tells_its_epochs_and_ends_with_its_outcome(
    accordion: Accordion, spec: Path
) -> None:
    said = accordion("submit", spec, "--follow")
    assert said.code == 0
    assert [f"epoch   {n} of 0-2" in said.out for n in (0, 1, 2)] == [True] * 3
    assert all(
        word in said.out for word in ("loss", "accuracy", "saved", "critical low", "SUCCEEDED")
    )


def test_watching_a_job_that_fails_gives_exit_code_1_and_the_reason(
    accordion: Accordion, spec: Path
) -> None:
    raising = ["--set", "task={name: synthetic, options: {raise_at_step: 3}}"]
    said = accordion("submit", spec, *raising, "--follow")
    assert said.code == 1
    assert "FAILED: RuntimeError: raised on purpose in step 3" in said.out


def test_watch_as_json_gives_every_event_a_line(accordion: Accordion, spec: Path) -> None:
    job_id = accordion("submit", spec, "--json").json()["id"]
    said = accordion("watch", job_id, "--json")
    events = [json.loads(line) for line in said.out.splitlines()]
    numbers = [event["seq"] for event in events if event["type"] != "progress"]
    assert said.code == 0
    assert numbers == list(range(1, len(numbers) + 1))
    assert events[-1]["type"] == "end"


def test_a_job_is_named_by_the_beginning_of_its_id_or_its_name(
    accordion: Accordion, spec: Path, request
) -> None:
    job_id = accordion("submit", spec, "--json").json()["id"]
    by_start, by_name = (
        accordion("show", name, "--json").json()["job"] for name in (job_id[:18], job_name(request))
    )
    assert by_start["id"] == by_name["id"] == job_id


def test_list_shows_jobs_newest_first(accordion: Accordion, spec: Path) -> None:
    ids = [accordion("submit", spec, "--json").json()["id"] for _ in range(2)]
    listed = [job["id"] for job in accordion("list", "--json").json()["items"]]
    table = accordion("list").out
    assert listed[:2] == ids[::-1]
    assert table.index(ids[1][:13]) < table.index(ids[0][:13])
    first, hint = (
        accordion("list", "--limit", "1", "--json").json(),
        accordion("list", "--limit", "1"),
    )
    cursor = first["next_cursor"]
    assert hint.out.endswith(
        f"more jobs exist; --cursor {cursor} lists the next ones, --limit 0 all\n"
    )
    rest = accordion("list", "--limit", "0", "--cursor", cursor, "--json").json()
    assert [job["id"] for job in first["items"] + rest["items"]][:2] == ids[::-1]
    assert rest["next_cursor"] is None


def test_show_tells_in_what_a_job_computes_where_that_is_not_fp32(
    accordion: Accordion, spec: Path
) -> None:
    job_id = accordion("submit", spec, "--set", "training.precision=bf16", "--json").json()["id"]
    assert "digits-mlp in bf16, powersgd" in accordion("show", job_id).out


def test_show_tells_epochs_layers_overrides_decisions_attempts_and_checkpoints(
    accordion: Accordion, spec: Path
) -> None:
    job_id = accordion("submit", spec, "--json").json()["id"]
    assert accordion("watch", job_id).code == 0
    text, whole = accordion("show", job_id).out, accordion("show", job_id, "--json").json()
    assert all(
        word in text
        for word in ("SUCCEEDED", "3 of 3 epochs done", "in force", "fc1.weight", "decisions")
    )
    assert len(whole["epochs"]) == 3
    assert [one["number"] for one in whole["attempts"]] == [1]
    kept = [one["name"] for one in whole["checkpoints"] if one["kept"]]
    assert kept == ["epoch-00002", "epoch-00003"]
    attempt, newest = (
        next(line for line in text.splitlines() if line.startswith(start)).split()
        for start in ("1  ", "epoch-00003")
    )
    assert (attempt[1], newest[1], newest[-1]) == ("ended", "3", "newest")
    assert "epoch-00001" not in text
    parts = {"job", "schedule", "overrides", "decisions", "epochs", "loggers"}
    assert whole.keys() == parts | {"attempts", "checkpoints"}


def test_why_tells_what_holds_a_job_up_with_the_parts_of_a_step(
    accordion: Accordion, spec: Path
) -> None:
    uncompressed = ("--set", "compression.method=none")
    job_id = accordion("submit", spec, *uncompressed, "--json").json()["id"]
    assert accordion("watch", job_id).code == 0
    text, whole = accordion("why", job_id).out, accordion("why", job_id, "--json").json()
    sentence, change, *table = text.splitlines()
    assert sentence == whole["sentence"]
    assert change.startswith(f"{whole['change']['text']}: ")
    assert change.endswith(" times as many samples per second.")
    parts = {line.partition("  ")[0].strip() for line in table[3:]}
    assert parts == {"compute, optimize", "communicate", "slow worker", "evaluate", "checkpoint"}


def test_show_and_doctor_tell_where_checkpoints_are_and_who_saw_that_place(
    accordion: Accordion, spec: Path
) -> None:
    job_id = accordion("submit", spec, "--json").json()["id"]
    assert accordion("watch", job_id).code == 0
    used = accordion("show", job_id, "--json").json()["job"]["storage"]
    assert (used["workers"], used["hosts"]) == (2, 2)
    shown, found = accordion("show", job_id).out, accordion("doctor").out
    for text in (shown, found):
        assert f"{used['place']}, shared: verified by 2 workers on 2 hosts at " in text


def test_a_metric_is_shown_by_its_own_name(accordion: Accordion, spec: Path) -> None:
    language = ["--set", "task={name: lm-lstm, options: {data: /texts}}"]
    said = accordion("submit", spec, *language, "--follow").out
    job_id = accordion("list", "--limit", "1", "--json").json()["items"][0]["id"]
    listed, shown = accordion("list", "--limit", "1").out, accordion("show", job_id).out
    assert all("perplexity 53.07" in text for text in (said, listed, shown))
    assert "PERPLEXITY" in shown
    assert "accuracy" not in (said + listed + shown).lower()


def test_logs_of_a_job_that_wrote_nothing_say_why(accordion: Accordion, spec: Path) -> None:
    large = ["--set", "workers={min: 4, max: 4, cpus: 64}"]
    job_id = accordion("submit", spec, *large, "--json").json()["id"]
    said = accordion("logs", job_id)
    assert (said.code, said.out) == (0, "")
    assert f"({job_id}) has written nothing: QUEUED, " in said.err
    accordion("cancel", job_id)


def test_logs_tell_who_wrote_each_line(accordion: Accordion, spec: Path) -> None:
    job_id = accordion("submit", spec, "--json").json()["id"]
    followed = accordion("logs", job_id, "--follow").out.splitlines()
    assert "[rank 0] epoch 2 ended" in followed
    assert accordion("logs", job_id).out.splitlines() == followed
    assert {"who": "rank 0", "text": "epoch 2 ended"} in map(
        json.loads, accordion("logs", job_id, "--json").out.splitlines()
    )


def test_cancel_ends_a_running_job(accordion: Accordion, running: str) -> None:
    said = accordion("cancel", running)
    assert said.code == 0
    assert "is STOPPING" in said.out
    assert accordion("watch", running).code == 1


WRONG = [
    pytest.param("task: {name: digit}", "task: unknown task 'digit'; known are", id="task"),
    pytest.param(
        "task: {name: digits-mlp}\ncompression: {method: zip}", "compression: .*'zip'", id="method"
    ),
    pytest.param(
        "task: {name: digits-mlp}\ntrainig: {}", "trainig: unknown key 'trainig'", id="field"
    ),
    pytest.param(
        "task: {name: digits-mlp}\nworkers: {min: 3, max: 2}",
        "accordion: workers.min is 3, above",
        id="min",
    ),
    pytest.param("- a list", "holds a list; a spec is a mapping", id="list"),
    pytest.param("", "holds nothing", id="empty"),
    pytest.param(
        "task: {name: a}\ntask: {name: b}",
        "line 1, gives 'task' more than once; keep one",
        id="twice",
    ),
    pytest.param(
        "task: {name: a, options: {no: 1, 'no': 2}}",
        "gives 'no' more than once",
        id="twice in other words",
    ),
    pytest.param(
        '{"task": {"name": "a", "name": "b"}}', "gives 'name' more than once", id="twice in JSON"
    ),
    pytest.param("task: [", "neither YAML nor JSON: .* in line", id="syntax"),
    pytest.param("task: !a", "in line 1, .*; put texts that begin with ! in quotes", id="tag"),
    pytest.param("{task: !a}", "in line 1, .*; put texts that begin with ! in quotes", id="in {}"),
    pytest.param("task: {{ a }}", "unhashable key in line 1, column 8$", id="template"),
]


@pytest.mark.parametrize(("text", "sentence"), WRONG)
def test_a_wrong_spec_is_a_usage_error_with_one_sentence(
    accordion: Accordion, tmp_path: Path, text: str, sentence: str
) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    said = accordion("submit", file)
    assert (said.code, said.out) == (2, "")
    assert re.search(sentence, said.err)
    assert "Traceback" not in said.err


USAGE = [
    pytest.param(["submit", "nowhere.yaml"], "nowhere.yaml cannot be read", id="no file"),
    pytest.param(
        ["show", "nothing"], "there is no job 'nothing'; 'accordion list' shows all", id="no job"
    ),
    pytest.param(["list", "--status", "ODD"], "query.status.0: 'ODD' is rejected", id="status"),
    pytest.param(["frobnicate"], "No such command 'frobnicate'", id="command"),
    pytest.param(["shwo"], "No such command 'shwo'. Did you mean 'show'", id="similar command"),
    pytest.param(["list", "--limit", "-1"], "Invalid value for '--limit'", id="range"),
    pytest.param(["override", "x"], "give one of --level", id="no level"),
    pytest.param(
        ["override", "x", "--level", "low", "--batch", "low"],
        "give one of --level",
        id="two levels",
    ),
    pytest.param(
        ["override", "x", "--level", "low", "--apply-at", "soon"], "--apply-at is 'soon'", id="when"
    ),
]


@pytest.mark.parametrize(("arguments", "sentence"), USAGE)
def test_a_usage_error_gives_exit_code_2_and_a_sentence(
    accordion: Accordion, arguments: list[str], sentence: str
) -> None:
    said = accordion(*arguments)
    assert said.code == 2
    assert sentence in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("level", ["strong", "rank=0", "rank=x", "7"])
def test_a_level_that_the_job_does_not_have_is_refused(
    accordion: Accordion, running: str, level: str
) -> None:
    said = accordion("override", running, "--level", level)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("accordion: level: ")


@pytest.mark.parametrize("command", [["list"], ["submit", "-"], ["watch", "x"], ["cancel", "x"]])
def test_without_a_service_the_exit_code_is_3(
    alone: Accordion, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("task: {name: digits-mlp}"))
    said = alone(*command)
    assert said.code == 3
    assert "no service responds at http://127.0.0.1:1" in said.err
    assert "accordion up" in said.err


def test_the_doctor_finds_a_healthy_service(accordion: Accordion, running: str) -> None:
    said = accordion("doctor", "--json")
    states = {item["name"]: item["state"] for item in said.json()["findings"]}
    assert said.code == 0
    assert {
        "python",
        "packages",
        "disk",
        "memory",
        "service",
        "database",
        "scheduler",
        "ray",
    } <= states.keys()
    assert set(states.values()) == {"ok"}


def test_the_doctor_finds_files_that_others_may_read(alone: Accordion, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "ray.token").write_text("secret")
    (home / "ray.token").chmod(0o644)
    said = alone("doctor")
    assert said.code == 1
    assert f"other users can read {home}/ray.token (644); chmod 600 {home}/ray.token" in said.out


def test_the_doctor_finds_a_taken_port(alone: Accordion, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("ACCORDION_PORT", str(taken.getsockname()[1]))
        said = alone("doctor")
    assert said.code == 1
    assert "cannot be used (Address already in use); end what uses it" in said.out


def test_doctor_names_a_wrong_setting(alone: Accordion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCORDION_PORT", "many")
    said = alone("doctor")
    assert said.code == 1
    assert "ACCORDION_PORT is 'many'" in said.out


def fresh(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import sys; {code}"]
    return run_program(command)


def test_without_its_packages_the_command_says_what_to_install() -> None:
    done = fresh(
        "sys.modules['typer'] = None; from accordion_client.commands.main import main; main()"
    )
    assert done.returncode == 2
    assert "'typer'; pip install accordion-train" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_loads_nothing_heavy() -> None:
    code = "from accordion_client.commands.cli_app import run_command; run_command(['--help'])"
    done = fresh(f"{code}; print(*sys.modules)")
    assert "Exit codes" in done.stdout
    assert {"ray", "torch", "sqlalchemy", "fastapi", "httpx2"}.isdisjoint(done.stdout.split())


def test_show_loads_no_database_no_server_and_no_spec() -> None:
    done = fresh(
        "from accordion_client.commands.cli_app import run_command;"
        " code = run_command(['show', 'nothing', '--url', 'http://127.0.0.1:1']);"
        " print(code, *sys.modules)"
    )
    code, *loaded = done.stdout.split()
    assert code == "3", done.stderr
    assert "accordion_client" in loaded
    assert {"fastapi", "ray", "sqlalchemy", "torch", "accordion_workers.spec.job"}.isdisjoint(
        loaded
    )
    others = {
        "accordion_client.commands.listing",
        "accordion_client.commands.watch",
        "accordion_service.schemas.plans",
    }
    assert others.isdisjoint(loaded)


def test_set_reaches_into_places_that_the_file_does_not_have() -> None:
    spec: dict = {}
    set_value(spec, "a.b.c=[1, 2]")
    assert spec == {"a": {"b": {"c": [1, 2]}}}


@pytest.mark.parametrize("change", ["a", "=1", "a..b=1", "task.name.x=1", "a=["])
def test_a_malformed_change_is_refused(change: str) -> None:
    with pytest.raises(SettingsError, match="--set"):
        set_value({"task": {"name": "digits-mlp"}}, change)


def test_json_numbers_stay_numbers() -> None:
    assert parse_spec('{"lr": 1e-4}', "x") == {"lr": 0.0001}


def test_the_job_of_the_demo_is_a_valid_spec_and_the_one_of_deploy() -> None:
    deploy = Path(__file__).parents[3] / "deploy" / "jobs" / "digits.yaml"
    assert JobSpec.model_validate(packaged_spec()).task.name == "digits-mlp"
    assert packaged_spec() == parse_spec(deploy.read_text(), "digits.yaml")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("labels: {a: !!binary aGk=}", "use texts, finite numbers"),
        ("training: {optimizer: {lr: .nan}}", "finite numbers"),
        ("x: &x [*x]", "no alias that contains itself"),
        ("labels: {a: !!int x}", "put texts in quotes"),
        ("x: " + "[" * 3000, "nested too deeply"),
    ],
)
def test_a_file_that_no_request_can_carry_is_refused_with_the_way_out(
    alone: Accordion, tmp_path: Path, text: str, reason: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("task: {name: digits-mlp}\n" + text)
    said = alone("submit", file)
    assert said.code == 2
    assert reason in said.err


@pytest.mark.parametrize("command", ["api", "list"])
def test_a_home_that_is_a_file_is_said_in_a_sentence(
    alone: Accordion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ACCORDION_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("ACCORDION_PORT", "0" if command == "api" else "1")
    said = alone(command)
    assert said.code in {2, 3}
    assert "unexpected error" not in said.err


def test_no_auth_beside_a_token_is_refused(
    alone: Accordion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCORDION_ADMIN_TOKEN", "a-token-of-twenty-chars")
    said = alone("up", "--no-auth")
    assert said.code == 2
    assert "--no-auth contradicts ACCORDION_ADMIN_TOKEN" in said.err


def test_env_names_the_way_out_where_no_service_runs(alone: Accordion) -> None:
    answer = alone("env")
    assert answer.code == 2
    assert "start it with `accordion up`, or set ACCORDION_HOME" in answer.err


@pytest.mark.parametrize("width", [80, 100, 160, 240])
def test_the_list_of_jobs_never_cuts_a_name(
    accordion: Accordion, spec: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    name = "a-name-of-38-characters-as-people-give"
    job = accordion("submit", spec, "--set", f"name={name}", "--json").json()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    said = re.sub(r"\x1b\[[\d;]*m", "", accordion("list", "--name", name).out)
    assert f"{job['id'][:13]}  {name} " in said
    assert ("METRICS" in said) == (width >= 160)
    assert max(len(line.rstrip()) for line in said.splitlines()) <= width
    accordion("cancel", job["id"])
