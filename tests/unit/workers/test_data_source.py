"""Files of a location are listed completely, each with a version."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from accordion_workers.common.errors import DataFetchError
from accordion_workers.worker.data_source import Listing, Pace, list_files


@dataclass
class Bucket:
    """A filesystem that lists all files below a prefix at once."""

    sizes: dict[str, int]
    version: dict[str, str] = field(default_factory=lambda: {"ETag": "1"})
    bare: bool = False
    """Whether `find` describes nothing."""

    def invalidate_cache(self) -> None:
        pass

    def info(self, path: str) -> dict[str, Any]:
        return {"name": path, "size": self.sizes[path], "type": "file", **self.version}

    def find(self, path: str, *, detail: bool) -> dict[str, Any]:
        return {path: {} if self.bare else self.info(path) for path in self.sizes}


def list_from(bucket: Bucket) -> Listing:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fsspec.core.url_to_fs", lambda _: (bucket, "b/train"))
        return list_files("train", "s3://b/train", Pace())


def test_placeholders_of_folders_are_left_out() -> None:
    remote = Bucket({"b/train/": 0, "b/train/x": 8, "b/train/deep/": 0})
    names = [file.name for file in list_from(remote).files]
    assert names == ["x"]


def test_a_filesystem_may_find_a_file_without_describing_it() -> None:
    assert list_from(Bucket({"b/train": 8}, bare=True)).size_bytes == 8


def test_a_folder_that_cannot_be_read_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.local import LocalFileSystem

    (tmp_path / "deep").mkdir()
    (tmp_path / "a.txt").write_text("a")
    found = LocalFileSystem.ls

    def ls(self: Any, path: str, **options: Any) -> Any:
        if path.endswith("deep"):
            raise PermissionError(path)
        return found(self, path, **options)

    monkeypatch.setattr(LocalFileSystem, "ls", ls)
    with pytest.raises(DataFetchError, match=r"may not read .*deep"):
        list_files("train", f"file://{tmp_path}", Pace())


@pytest.mark.parametrize("field", ["blob_id", "xet_hash", "modificationTime", "modify", "ETag"])
def test_a_change_is_seen_whatever_the_filesystem_calls_it(field: str) -> None:
    keys = {list_from(Bucket({"b/train/x": 8}, version={field: value})).key for value in ("1", "2")}
    assert len(keys) == 2


def test_files_whose_change_would_go_unnoticed_are_refused() -> None:
    with pytest.raises(DataFetchError, match="neither a version nor a time of change for b/train"):
        list_from(Bucket({"b/train/x": 8}, version={}))


def test_a_file_url_names_the_directory_that_it_encodes(tmp_path: Path) -> None:
    folder = tmp_path / "a set#1"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    [file] = list_files("train", f"file://{tmp_path}/a%20set%231", Pace()).files
    assert file.name == "a.txt"
