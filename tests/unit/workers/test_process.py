"""What a worker process writes into the job's log when its loop ends with an error."""

from __future__ import annotations

import gc
import weakref

import pytest
from torch.distributed import DistBackendError

from accordion_workers.checkpoint.storage import LocalStorage
from accordion_workers.common.errors import TaskRaised
from accordion_workers.records.contract import JobSpec, Launch
from accordion_workers.training import loop, train_state
from accordion_workers.training.context import NoLink, WorkerContext
from accordion_workers.worker import process as worker


def run(error: Exception, monkeypatch: pytest.MonkeyPatch) -> BaseException:
    """Return what rank 1 of two raises if its training raises this."""

    def train_job(context: WorkerContext) -> str:
        raise error

    monkeypatch.setattr(loop, "train_job", train_job)
    spec = JobSpec.model_validate({"task": {"name": "digits-mlp"}})
    launch = Launch(job_id="a", attempt=1, workers=2, storage="", spec=spec)
    link = NoLink(print)
    context = WorkerContext(
        launch=launch, generation=1, rank=1, world_size=2, device="cpu", link=link
    )
    with pytest.raises((type(error), TaskRaised)) as caught:
        worker.run_training(context)
    return caught.value


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            RuntimeError("[gloo/transport] Connection reset by peer\nGood luck"),
            "[gloo/transport] Connection reset by peer",
        ),
        (DistBackendError(""), "no message"),
    ],
)
def test_a_worker_that_lost_its_peers_says_so_in_one_line(monkeypatch, caplog, error, said):
    run(error, monkeypatch)
    [line] = [record for record in caplog.records if record.levelname in {"WARNING", "ERROR"}]
    assert line.message == f"rank 1 lost its peers: {type(error).__name__}: {said}"
    assert line.exc_info is None


def test_a_worker_that_cannot_join_its_group_shows_where(caplog):
    with pytest.raises(PermissionError), worker.explain_no_group(1):
        raise PermissionError(1, "Operation not permitted")
    with pytest.raises(DistBackendError), worker.explain_no_group(1):
        raise DistBackendError("a peer is gone")
    [line] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert line.message == "rank 1 cannot join its group"
    assert line.exc_info is not None


def test_a_worker_that_failed_by_itself_shows_where(monkeypatch, caplog):
    run(KeyError("mine"), monkeypatch)
    [line] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert line.message == "rank 1 ends"
    assert line.exc_info is not None


def test_a_closed_descriptor_is_told_as_what_the_code_of_the_job_did(monkeypatch):
    raised = run(
        RuntimeError("[gloo/transport/tcp/pair.cc:534] writev: Bad file descriptor"), monkeypatch
    )
    assert isinstance(raised, TaskRaised)
    assert "a file descriptor that training uses was closed by code in this process" in str(raised)


def test_only_an_error_of_the_jobs_storage_stays_one_of_the_storage(monkeypatch, tmp_path):
    with pytest.raises(FileNotFoundError) as of_storage:
        LocalStorage(tmp_path).read("gone")
    with pytest.raises(FileNotFoundError) as of_user:
        (tmp_path / "gone").read_bytes()
    assert run(of_storage.value, monkeypatch) is of_storage.value
    assert isinstance(run(of_user.value, monkeypatch), TaskRaised)


@pytest.fixture
def prepare(process_of_a_worker, tmp_path):
    """Prepare a worker process, as if in this one."""
    spec = JobSpec.model_validate({"task": {"name": "digits-mlp"}})
    launch = Launch(job_id="a", attempt=1, workers=2, storage=str(tmp_path), spec=spec)
    return worker.Worker(launch.model_dump_json()).prepare


def test_what_a_process_has_loaded_is_no_garbage_to_look_through(prepare):
    before = gc.get_freeze_count()
    prepare()
    assert gc.get_freeze_count() > before


def test_garbage_that_loading_leaves_behind_is_freed(prepare, monkeypatch):
    garbage = []

    def load(_: JobSpec) -> None:
        class Cyclic:
            """Refers to itself, as all classes do."""

        garbage.append(weakref.ref(Cyclic))

    monkeypatch.setattr(train_state, "load_task_data", load)
    prepare()
    gc.collect()
    assert garbage[0]() is None
