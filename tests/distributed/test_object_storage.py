"""Checkpoints in object stores: servers that speak as theirs, and the clients that people use."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from accordion_workers.checkpoint.checkpoint_files import (
    Manifest,
    find_candidates,
    prune_checkpoints,
    read_part,
    write_manifest,
    write_part,
)
from accordion_workers.checkpoint.storage import Storage, open_storage
from accordion_workers.common.errors import CheckpointError
from accordion_workers.records.contract import DesiredState, JobSpec
from tests.distributed.loop_jobs import RecordingLink, Result, equal, run_job, synthetic
from tests.distributed.object_stores import BUCKET, gcs_server, s3_server

STOP_IN_EPOCH_1 = RecordingLink(
    orders=DesiredState(version=1, stop="cancel"), order_after=("epoch", 0)
)
NOWHERE = Path("/nowhere")


@pytest.fixture(scope="module")
def s3() -> Iterator[Mapping[str, str]]:
    with s3_server() as settings:
        yield settings


@pytest.fixture(scope="module")
def gcs() -> Iterator[Mapping[str, str]]:
    with gcs_server() as settings:
        yield settings


@pytest.fixture(params=["s3", "gs"])
def store(request, monkeypatch) -> str:
    """The URL of a bucket."""
    server = request.getfixturevalue({"s3": "s3", "gs": "gcs"}[request.param])
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    return f"{request.param}://{BUCKET}"


@pytest.fixture
def storage(store, request) -> Storage:
    url = f"{store}/{request.node.originalname}"
    return open_storage(url, job_id="job-1", directory=NOWHERE)


def write(storage: Storage, name: str, *, finished: bool = True) -> Manifest:
    part = write_part(storage, f"{name}/rank-0.pt", {"values": torch.arange(100)})
    manifest = Manifest(job_id="job-1", name=name, epoch=0, step=0, world_size=1, files=(part,))
    if finished:
        write_manifest(storage, manifest)
    return manifest


def found(storage: Storage) -> tuple[list[str], list[str]]:
    refused: list[str] = []
    return [
        manifest.name for manifest in find_candidates(storage, "job-1", refused.append)
    ], refused


def test_what_was_written_is_read_back(storage):
    manifest = write(storage, "g1")
    assert torch.equal(read_part(storage, manifest, "rank-0.pt")["values"], torch.arange(100))


def test_nothing_is_found_where_nothing_was_ever_saved(storage):
    assert found(storage) == ([], [])
    storage.prepare()
    assert found(storage) == ([], [])


def test_a_part_of_many_blocks_arrives_whole(storage):
    """Above five megabytes the client sends a file in parts."""
    values = torch.arange(2_000_000, dtype=torch.float64)
    part = write_part(storage, "g1/rank-0.pt", {"values": values})
    manifest = Manifest(job_id="job-1", name="g1", epoch=0, step=0, world_size=1, files=(part,))
    assert torch.equal(read_part(storage, manifest, "rank-0.pt")["values"], values)


def test_one_that_was_never_finished_is_refused_and_the_one_before_is_offered(storage):
    write(storage, "g1")
    write(storage, "g2", finished=False)
    names, (reason,) = found(storage)
    assert names == ["g1"]
    assert "g2 was never finished" in reason


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_pieces_of_killed_uploads_go_with_the_checkpoint_they_belong_to(storage, monkeypatch):
    monkeypatch.setattr("accordion_workers.checkpoint.storage.DEAD_UPLOAD_S", float("inf"))
    path, s3 = storage._root.partition("/")[2], storage._filesystem
    for key in (f"{path}/g1/rank-0.pt", f"{path}/g2/rank-0.pt", "another-job/g1/rank-0.pt"):
        s3.call_s3("create_multipart_upload", Bucket=BUCKET, Key=key)
    storage.remove("g1")
    left = [
        upload["Key"] for upload in s3.call_s3("list_multipart_uploads", Bucket=BUCKET)["Uploads"]
    ]
    assert [key.partition("/g")[2][:1] for key in left if key.startswith(path)] == ["2"]
    assert "another-job/g1/rank-0.pt" in left


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_pieces_of_uploads_that_nobody_finishes_go_after_a_while(storage):
    path, s3 = storage._root.partition("/")[2], storage._filesystem
    s3.call_s3("create_multipart_upload", Bucket=BUCKET, Key=f"{path}/g2/rank-0.pt")
    storage.remove("g1")  # the server of the tests says that all uploads began years ago
    uploads = s3.call_s3("list_multipart_uploads", Bucket=BUCKET).get("Uploads", [])
    assert not any(upload["Key"].startswith(path) for upload in uploads)


def test_a_damaged_part_and_a_missing_one_are_refused(storage):
    manifest = write(storage, "g1")
    storage.put("g1/rank-0.pt", b"torn")
    with pytest.raises(CheckpointError, match="does not match its checksum"):
        read_part(storage, manifest, "rank-0.pt")
    storage.remove("g1/rank-0.pt")
    with pytest.raises(CheckpointError, match=r"lacks rank-0\.pt"):
        read_part(storage, manifest, "rank-0.pt")


def test_only_the_newest_complete_ones_are_kept_and_nothing_newer_is_touched(storage):
    for name in ("g1", "g3", "g4", "g9"):
        write(storage, name)
    write(storage, "g2", finished=False)
    prune_checkpoints(storage, keep=2, newest_name="g4")
    assert sorted(storage.names()) == ["g3", "g4", "g9"]


def test_what_another_client_writes_is_seen_at_once(storage, store, request):
    assert storage.names() == []
    url = f"{store}/{request.node.originalname}"
    other = open_storage(url, job_id="job-1", directory=NOWHERE)
    write(other, "g1")
    assert storage.names() == ["g1"]


def test_a_bucket_that_is_not_there_is_told_before_the_first_step_and_not_made(store):
    slip = store.replace(BUCKET, "a-slip")
    elsewhere = open_storage(f"{slip}/path", job_id="job-1", directory=NOWHERE)
    with pytest.raises(OSError, match=r"bucket|a-slip"):
        elsewhere.prepare()


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_a_server_that_does_not_answer_is_not_taken_for_an_empty_storage(storage, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()
    try:
        with pytest.raises(OSError, match=r"127\.0\.0\.1:9"):
            open_storage(f"s3://{BUCKET}/x", job_id="job-1", directory=NOWHERE).names()
    finally:
        S3FileSystem.clear_instance_cache()


def run_with(rank: int, settings: Mapping[str, str], *arguments: Any) -> Result:
    os.environ.update(settings)
    return run_job(rank, *arguments)


def job_on(url: str) -> JobSpec:
    job = synthetic(3)
    checkpoint = job.checkpoint.model_validate({"storage": url})
    return job.model_copy(update={"checkpoint": checkpoint})


@pytest.mark.parametrize(("server", "protocol"), [("s3", "s3"), ("gcs", "gs")])
def test_a_stopped_job_goes_on_from_a_store_with_the_same_bits(
    request, run_group, tmp_path, server, protocol
):
    settings, job = request.getfixturevalue(server), job_on(f"{protocol}://{BUCKET}/jobs")
    undisturbed = run_group(2, run_job, tmp_path / "undisturbed", synthetic(3))[0]
    stopped = run_group(2, run_with, settings, tmp_path / "here", job, STOP_IN_EPOCH_1)[0]
    assert (stopped.outcome, stopped.link.of("checkpoint")[-1].step) == ("stopped", 5)
    resumed = run_group(2, run_with, settings, tmp_path / "here", job, None, 2)[0]
    assert resumed.link.of("started")[0].step == 5
    assert equal(resumed.parameters, undisturbed.parameters)
    assert not (tmp_path / "here" / "checkpoints").exists()


def test_another_number_of_workers_goes_on_from_s3(s3, run_group, tmp_path):
    job = job_on(f"s3://{BUCKET}/resized")
    run_group(2, run_with, s3, tmp_path, job, STOP_IN_EPOCH_1)
    resumed = run_group(1, run_with, s3, tmp_path, job, None, 2)[0]
    assert [record.samples for record in resumed.link.of("epoch")] == [256, 256]
