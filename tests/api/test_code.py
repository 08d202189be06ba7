"""Uploads of code: what is kept, what is refused, and that a spec can name only what is there."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from accordion_service.api.app import create_app
from accordion_service.job_inputs.code import CodeStore
from accordion_service.settings.settings import load_settings
from tests.api.conftest import LOCAL, refused_early
from tests.api.world import DIGITS, World
from tests.unit.workers.archives import HOSTILE, Hostile, archive, named

CODE, JOBS = "/api/v1/code", "/api/v1/jobs"
GOOD = archive(("mine/", b""), ("mine/task.py", b"class Mine: ...\n"), ("mine/table.csv", b"1,2\n"))
SHA = hashlib.sha256(GOOD).hexdigest()
OWN = {**DIGITS, "task": {"name": "mine.task:Mine", "options": {"depth": 3, "name": "x"}}}


def upload(client: TestClient, data: bytes, kind: str = "application/zip") -> Any:
    return client.post(CODE, content=data, headers={"Content-Type": kind})


def kept(home: Path) -> list[str]:
    return (
        sorted(path.name for path in (home / "code").iterdir()) if (home / "code").exists() else []
    )


@dataclass
class Shared:
    """One service for tests that change nothing."""

    client: TestClient
    home: Path


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, shared_database_url: str) -> Iterator[Shared]:
    home = tmp_path_factory.mktemp("shared")
    app = create_app(load_settings(home=home, database_url=shared_database_url))
    with TestClient(app, base_url=LOCAL) as client:
        yield Shared(client, home)
    app.state.accordion.database.close()


def test_code_is_named_by_its_content(client: TestClient, world: World) -> None:
    answer = upload(client, GOOD)
    assert (answer.status_code, answer.headers["location"]) == (201, f"{CODE}/{SHA}")
    assert answer.json() == {"sha256": SHA, "files": 2, "size_bytes": len(GOOD)}
    assert client.get(answer.headers["location"]).json() == answer.json()
    assert kept(world.settings.home) == [f"{SHA}.zip"]
    assert (world.settings.home / "code" / f"{SHA}.zip").read_bytes() == GOOD


def test_uploading_again_changes_nothing(client: TestClient, world: World) -> None:
    assert upload(client, GOOD).json() == upload(client, GOOD).json()
    assert kept(world.settings.home) == [f"{SHA}.zip"]


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.__name__)
@refused_early
def test_a_hostile_archive_is_refused_and_leaves_nothing_behind(
    shared: Shared, hostile: Hostile
) -> None:
    answer = upload(shared.client, hostile())
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert HOSTILE[hostile] in answer.json()["detail"]
    assert "Traceback" not in answer.text
    assert kept(shared.home) == []


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("random.py", "Python's own module 'random'"),
        ("json/x.py", "Python's own module 'json'"),
        ("accordion_workers/tasks/x.py", "our package 'accordion_workers'"),
        ("accordion.py", "our package 'accordion'"),
        ("pydantic/x.py", "of the installed distribution 'pydantic'"),
        ("yaml.abi3.so", "of the installed distribution 'PyYAML'"),
        ("sitecustomize.py", "imports by itself at every start"),
        ("usercustomize.py", "imports by itself at every start"),
    ],
)
@refused_early
def test_a_module_whose_name_is_taken_is_refused(shared: Shared, name: str, sentence: str) -> None:
    answer = upload(shared.client, named(name))
    assert answer.status_code == 422
    assert sentence in answer.json()["detail"]
    assert repr(name) in answer.json()["detail"]
    assert kept(shared.home) == []


@refused_early
def test_a_file_that_changes_pythons_path_is_refused(shared: Shared) -> None:
    answer = upload(shared.client, archive(("m.py", b""), ("m.pth", b"import os")))
    assert "'m.pth' could change Python's path" in answer.json()["detail"]


@refused_early
def test_an_archive_without_python_is_refused(shared: Shared) -> None:
    assert (
        "holds no Python module"
        in upload(shared.client, archive(("notes.txt", b"x"))).json()["detail"]
    )


@refused_early
def test_a_body_of_another_kind_is_refused(shared: Shared) -> None:
    answer = upload(shared.client, GOOD, "application/json")
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")


def test_an_upload_ends_where_it_is_too_large(tmp_path: Path, database_url: str) -> None:
    read = []

    def pieces() -> Any:
        for number in range(1000):
            read.append(number)
            yield bytes(1024)

    settings = load_settings(home=tmp_path, database_url=database_url, max_code_bytes=4096)
    app = create_app(settings)
    with TestClient(app, base_url=LOCAL) as client:
        answer = client.post(CODE, content=pieces(), headers={"Content-Type": "application/zip"})
    app.state.accordion.database.close()
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert "ACCORDION_MAX_CODE_BYTES" in answer.json()["detail"]
    assert kept(tmp_path) == []


def test_code_may_be_larger_than_other_bodies(tmp_path: Path, database_url: str) -> None:
    settings = load_settings(home=tmp_path, database_url=database_url, max_body_bytes=1024)
    app = create_app(settings)
    data = archive(("m.py", b""), ("data.bin", hashlib.shake_256(b"").digest(5000)))
    with TestClient(app, base_url=LOCAL) as client:
        assert upload(client, data).status_code == 201
    app.state.accordion.database.close()


def test_upload_requires_the_token(tmp_path: Path, database_url: str) -> None:
    settings = load_settings(
        home=tmp_path, database_url=database_url, admin_token="0123456789abcdef"
    )
    app = create_app(settings)
    with TestClient(app, base_url=LOCAL) as client:
        assert upload(client, GOOD).status_code == 401
        assert (
            client.post(CODE, content=GOOD, headers={"Origin": "http://evil.example"}).status_code
            == 403
        )
    app.state.accordion.database.close()
    assert kept(tmp_path) == []


@pytest.mark.parametrize("sha", ["0" * 64, "0" * 63, "A" * 64])
def test_code_that_is_not_there_is_not_found(shared: Shared, sha: str) -> None:
    assert shared.client.get(f"{CODE}/{sha}").status_code in (404, 422)


def test_a_spec_names_code_that_is_there(client: TestClient) -> None:
    upload(client, GOOD)
    answer = client.post(JOBS, json={**OWN, "code": SHA})
    assert answer.status_code == 201
    assert (answer.json()["spec"]["code"], answer.json()["spec"]["task"]) == (SHA, OWN["task"])
    assert answer.json()["name"].startswith("Mine-")


@pytest.mark.parametrize("query", [{}, {"dry_run": "true"}])
def test_a_spec_that_names_unknown_code_is_refused_with_the_way_out(
    shared: Shared, query: dict[str, str]
) -> None:
    answer = shared.client.post(JOBS, json={**OWN, "code": "0" * 64}, params=query)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/code"
    assert (
        "upload it with POST /api/v1/code, or submit with --code DIRECTORY"
        in answer.json()["detail"]
    )


@refused_early
def test_a_script_needs_code(shared: Shared) -> None:
    answer = shared.client.post(
        JOBS, json={"task": {"name": "script", "options": {"file": "train.py"}}}
    )
    assert (answer.status_code, "task script needs code" in answer.json()["detail"]) == (422, True)


SCRIPTS = {"src/train.py": b"", "src/evaluate.py": b"", "notes.txt": b""}


def script(file: str, code: bytes) -> dict[str, Any]:
    task = {"name": "script", "options": {"file": file}}
    return {"task": task, "code": hashlib.sha256(code).hexdigest()}


@pytest.mark.parametrize(
    ("file", "files", "hint"),
    [
        ("train.py", SCRIPTS, "did you mean 'src/train.py'?"),
        ("src/evalute.py", SCRIPTS, "did you mean 'src/evaluate.py'?"),
        ("x.py", SCRIPTS, "it holds 'src/evaluate.py', 'src/train.py'"),
        ("x.py", {f"m{one}.py": b"" for one in range(5)}, "'m0.py', 'm1.py', 'm2.py' and 2 more"),
        ("x.py", {"fast.abi3.so": b""}, "it holds no .py file"),
        ("evalute.py", SCRIPTS, "did you mean 'src/evaluate.py'?"),
        (
            "src/evalute.py",
            SCRIPTS | {f"{one}.py": b"" for one in range(100)},
            "did you mean 'src/evaluate.py'?",
        ),
        (
            "train.py",
            {f"{'a' * 90}/train.py": b""},
            f"did you mean '...{'a' * 68}/train.py'?",
        ),
    ],
)
@pytest.mark.parametrize("query", [{}, {"dry_run": "true"}])
def test_a_script_that_the_code_lacks_is_refused_with_similar_names(
    shared: Shared, file: str, files: dict[str, bytes], hint: str, query: dict[str, str]
) -> None:
    code = archive(*files.items())
    spec = script(file, code)
    upload(shared.client, code)
    answer = shared.client.post(JOBS, json=spec, params=query)
    (shared.home / "code" / f"{spec['code']}.zip").unlink()
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/task/options/file"
    assert f"there is no {file!r} in the uploaded code {spec['code']}" in answer.json()["detail"]
    assert hint in answer.json()["detail"]


@pytest.mark.parametrize("length", [6, 100])
def test_a_missing_script_is_compared_with_few_short_names(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    compared: list[str] = []
    set_name = SequenceMatcher.set_seq1

    def note_and_set(self: SequenceMatcher[str], name: str) -> None:
        compared.extend([name] if name else [])  # difflib itself begins with an empty one
        set_name(self, name)

    monkeypatch.setattr(SequenceMatcher, "set_seq1", note_and_set)
    code = archive(*((f"{one:0{length}}.py", b"") for one in range(9_999)), ("short.py", b""))
    upload(client, code)
    for file in ("shart.py", f"{'9' * 100}.py"):
        answer = client.post(JOBS, json=script(file, code), params={"dry_run": "true"})
        assert (answer.status_code, len(answer.json()["detail"]) < 600) == (422, True)
    assert 0 < len(compared) <= 20
    assert max(map(len, compared)) <= 40


def test_a_clone_with_a_script_that_the_code_lacks_is_refused(client: TestClient) -> None:
    code = archive(*SCRIPTS.items())
    upload(client, code)
    job_id = client.post(JOBS, json=script("src/train.py", code)).json()["id"]
    changes = {"spec": {"task": {"options": {"file": "train.py"}}}}
    answer = client.post(f"{JOBS}/{job_id}/clone", json=changes)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/spec/task/options/file"


@pytest.mark.parametrize(
    "name", ["mine", "mine:", ":Mine", "mine.:Mine", "mine:Mine.x", "mine/task:Mine", "m:M\n"]
)
@refused_early
def test_a_task_that_is_neither_ours_nor_a_class_is_refused(shared: Shared, name: str) -> None:
    answer = shared.client.post(JOBS, json={"task": {"name": name}})
    assert answer.status_code == 422
    assert "name a class of your own as module:Class" in answer.json()["detail"]


@pytest.mark.parametrize(
    "file", ["/etc/x.py", "../x.py", "a/../x.py", "a\\x.py", "x.sh", ".py/", ""]
)
@refused_early
def test_a_script_outside_of_the_code_is_refused(shared: Shared, file: str) -> None:
    spec = {"task": {"name": "script", "options": {"file": file}}, "code": "0" * 64}
    assert (
        "by its path inside the uploaded code"
        in shared.client.post(JOBS, json=spec).json()["detail"]
    )


def test_a_job_is_launched_with_a_copy_of_its_code_in_its_storage(
    client: TestClient, world: World
) -> None:
    upload(client, GOOD)
    job_id = client.post(JOBS, json={**OWN, "code": SHA}).json()["id"]
    world.train(job_id)
    copy = Path(world.settings.storage_of(job_id)) / "code.zip"
    assert copy.read_bytes() == GOOD
    assert world.runtime.jobs[job_id].launch.code == str(copy)


def test_a_job_without_code_is_launched_without(world: World) -> None:
    job_id = world.submit()
    world.train(job_id)
    assert world.runtime.jobs[job_id].launch.code is None


def test_job_continues_after_its_upload_was_removed(client: TestClient, world: World) -> None:
    upload(client, GOOD)
    job_id = client.post(JOBS, json={**OWN, "code": SHA}).json()["id"]
    world.train(job_id)
    (world.settings.home / "code" / f"{SHA}.zip").unlink()
    world.runtime.lose(job_id)
    world.turn_until(
        lambda: job_id in world.runtime.jobs and world.runtime.jobs[job_id].attempt == 2
    )
    assert Path(world.runtime.jobs[job_id].launch.code or "").read_bytes() == GOOD


def test_a_job_whose_code_is_gone_before_its_first_start_fails_and_says_so(
    client: TestClient, world: World
) -> None:
    upload(client, GOOD)
    job_id = client.post(JOBS, json={**OWN, "code": SHA}).json()["id"]
    (world.settings.home / "code" / f"{SHA}.zip").unlink()
    world.turn(2)
    job = world.job(job_id)
    assert (job.status, job.reason) == ("FAILED", "START_FAILED")
    assert f"there is no code {SHA}; upload it with POST" in job.message


def test_a_job_whose_storage_cannot_be_written_says_so_while_it_is_tried_again(
    client: TestClient, world: World
) -> None:
    upload(client, GOOD)
    (world.settings.home / "storage").write_text("a file where a folder is to be")
    job_id = client.post(JOBS, json={**OWN, "code": SHA}).json()["id"]
    world.turn(2)
    job = world.job(job_id)
    assert job.status == "STARTING"
    assert f"{world.settings.storage_of(job_id)} cannot be written (Not a directory)" in job.message
    (world.settings.home / "storage").unlink()
    world.train(job_id)


def test_a_job_without_code_whose_storage_cannot_be_made_says_so_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise OSError(28, "No space left on device")

    job_id = world.submit()
    with monkeypatch.context() as patch:
        patch.setattr(world.runtime, "start", refuse)
        world.turn(2)
    job = world.job(job_id)
    assert job.status == "STARTING"
    assert (
        f"{world.settings.storage_of(job_id)} cannot be written (No space left on device)"
        in job.message
    )
    world.train(job_id)


def deny(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, suffix: str) -> None:
    """Refuse access to the files of that suffix: the tests may run as root, who may do anything."""
    allowed = getattr(where, name)

    def denied(path: Path, *more: Any, **named: Any) -> Any:
        if Path(path).suffix == suffix:
            raise PermissionError(13, "Permission denied", str(path))
        return allowed(path, *more, **named)

    monkeypatch.setattr(where, name, denied)


def test_an_upload_the_scheduler_may_not_read_is_not_reported_as_a_storage_fault(
    client: TestClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(client, GOOD)
    job_id = client.post(JOBS, json={**OWN, "code": SHA}).json()["id"]
    with monkeypatch.context() as patch:
        deny(patch, Path, "open", ".zip")
        deny(patch, shutil, "copyfile", ".zip")
        world.turn(2)
    job = world.job(job_id)
    assert job.status == "STARTING"
    assert (
        f"{SHA}.zip cannot be used by this process (Permission denied); run api and scheduler as"
        in job.message
    )
    world.train(job_id)


@pytest.mark.parametrize("ask", ["upload", "look", "submit"])
def test_code_of_another_user_is_answered_with_the_path_and_the_way_out(
    client: TestClient, world: World, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    upload(client, GOOD)
    for suffix in (".zip", ".part"):
        deny(monkeypatch, os, "utime", suffix)
    asks = {
        "upload": lambda: upload(client, GOOD),
        "look": lambda: client.get(f"{CODE}/{SHA}"),
        "submit": lambda: client.post(JOBS, json={**OWN, "code": SHA}),
    }
    answer = asks[ask]()
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert (
        f"run api and scheduler as the user who owns {world.settings.code}"
        in answer.json()["detail"]
    )


def test_an_upload_that_breaks_off_leaves_nothing(world: World) -> None:
    store = CodeStore(world.settings.code, world.clock)
    with suppress(ConnectionError), store.draft(10_000) as draft:
        draft.write(GOOD[:20])
        assert len(kept(world.settings.home)) == 1
        raise ConnectionError
    assert kept(world.settings.home) == []
