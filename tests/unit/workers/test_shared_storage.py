"""Whether a worker's node sees the directory of its job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from accordion_workers.checkpoint.shared_storage import check_token, sees_token, write_token
from accordion_workers.common.errors import StorageError


def test_a_node_that_sees_the_jobs_directory_may_take_part(tmp_path: Path) -> None:
    check_token(tmp_path, 1, token=write_token(tmp_path, 1), host="10.0.0.3")


@pytest.mark.parametrize("has_such_a_directory", [True, False])
def test_a_node_with_a_directory_of_that_name_to_itself_is_refused(
    tmp_path: Path, has_such_a_directory: bool
) -> None:
    token = write_token(tmp_path / "shared", 1)
    own = tmp_path / "own"
    if has_such_a_directory:
        write_token(own, 1)
    with pytest.raises(
        StorageError,
        match=r"node 10\.0\.0\.3 does not see the storage of this job, .*own: .* mount",
    ):
        check_token(own, 1, token=token, host="10.0.0.3", pause=lambda _: None)


def test_a_token_that_is_seen_a_moment_later_counts(tmp_path: Path) -> None:
    answers: Iterator[bytes] = iter([b"", b"", b"token"])
    assert sees_token(lambda: next(answers), token="token", pause=lambda _: None)
