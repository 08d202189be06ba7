"""Where checkpoints lie: URLs that are refused before a job begins, and what each kind of storage
promises.
"""

from __future__ import annotations

import sys

import pytest
from pydantic import ValidationError

from accordion_workers.checkpoint.storage import LocalStorage, open_storage
from accordion_workers.common.storage_url import check_storage_url
from accordion_workers.spec.job import CheckpointSpec
from tests.programs import run_program


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("/mnt/shared", "is no URL; give one such as s3://"),
        ("s3:bucket", "is no URL"),
        ("simplecache::s3://bucket", "is no URL"),
        ("memory://x", "is seen by one process only"),
        ("s3://", "names no place"),
        ("file://mnt/shared", "give an absolute path"),
        ("file:///", "names no directory"),
        ("file:///mnt/set#1", "has a ? or #, at which the path of a URL ends; write %3F or %23"),
        ("file:///mnt/set?", "has a ? or #"),
        ("https://host/path", "is not that of a storage; known are"),
        ("s4://bucket", "has the protocol 's4', which is not that of a storage; known are abfs, "),
        ("ftp://people:secret@host/path", "carries a password"),
        (
            "oss://bucket/path",
            "needs the package ossfs, which is not installed; run pip install ossfs",
        ),
        (
            "sftp://host/path",
            "needs the package paramiko, which is not installed; run pip install paramiko",
        ),
    ],
)
def test_a_place_that_cannot_hold_checkpoints_is_refused_with_the_way_out(url, sentence):
    with pytest.raises(ValidationError) as caught:
        CheckpointSpec(storage=url)
    assert sentence in str(caught.value)
    assert "secret" not in str(caught.value.errors()[0]["msg"])


@pytest.mark.parametrize(
    "url", ["s3://bucket/path", "file:///mnt/shared", "ftp://people@host/path"]
)
def test_a_place_that_can_hold_checkpoints_is_taken(url):
    assert CheckpointSpec(storage=url).storage == url


def test_a_place_with_signs_that_a_url_encodes_is_the_directory_of_that_name(tmp_path):
    url = f"file://{tmp_path}/a%20set%231"
    storage = open_storage(CheckpointSpec(storage=url).storage, job_id="job-1", directory=tmp_path)
    storage.put("c/manifest.json", b"{}")
    assert (tmp_path / "a set#1" / "job-1" / "c" / "manifest.json").is_file()


@pytest.mark.parametrize("field", ["every_steps", "every_seconds"])
@pytest.mark.parametrize("value", [0, -1, True, "5"])
def test_distances_between_checkpoints_are_numbers_above_zero(field, value):
    with pytest.raises(ValidationError, match=field):
        CheckpointSpec.model_validate({field: value})


def test_a_url_is_checked_without_torch_ray_or_the_storages_own_library():
    code = (
        "import sys; from accordion_workers.common.storage_url import check_storage_url; check_storage_url('s3://b/p');"
        " print(*sys.modules)"
    )
    loaded = run_program([sys.executable, "-c", code], check=True).stdout.split()
    assert {"torch", "ray", "s3fs", "botocore", "numpy", "aiohttp"}.isdisjoint(loaded)


def test_jobs_that_share_a_url_do_not_share_a_directory(tmp_path):
    url = f"file://{tmp_path}"
    storages = [open_storage(url, job_id=job, directory=tmp_path / "own") for job in ("a", "b")]
    assert all(isinstance(storage, LocalStorage) for storage in storages)
    for storage in storages:
        storage.put("checkpoint/manifest.json", b"{}")
    assert [sorted(path.name for path in tmp_path.iterdir()), storages[0].names()] == [
        ["a", "b"],
        ["checkpoint"],
    ]


def test_without_a_url_checkpoints_lie_in_the_jobs_directory(tmp_path):
    open_storage(None, job_id="a", directory=tmp_path / "own").put("checkpoint/x", b"1")
    assert (tmp_path / "own" / "checkpoint" / "x").read_bytes() == b"1"


def test_a_manifest_is_moved_into_place_when_it_is_whole(tmp_path):
    """A small file that cannot be written leaves the one that was there as it is."""
    storage = LocalStorage(tmp_path)
    storage.put("c/manifest.json", b"before")
    (tmp_path / "c" / "manifest.json.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        storage.put("c/manifest.json", b"after")
    assert storage.read("c/manifest.json") == b"before"


def test_a_checked_url_is_returned_as_it_was():
    assert check_storage_url("s3://bucket/path/") == "s3://bucket/path/"
