"""`data` of a spec: names, paths and URLs."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from accordion_workers.records.contract import JobSpec
from accordion_workers.spec.data import MAX_LOCATIONS, name_variable


def spec_of(data: Any) -> JobSpec:
    return JobSpec.model_validate({"task": {"name": "synthetic"}, "data": data})


@pytest.mark.parametrize(
    "location",
    ["/mnt/imagenet", "s3://bucket/imagenet-small", "s3://bucket/a.tar", "file:///mnt/shared/text"],
)
def test_paths_and_urls_of_storages_are_taken(location: str) -> None:
    assert spec_of({"train": location}).data == {"train": location}


@pytest.mark.parametrize(
    ("location", "sentence"),
    [
        (
            "imagenet",
            "is neither an absolute path on the workers, such as /mnt/imagenet, nor a URL",
        ),
        ("~/imagenet", "is neither an absolute path"),
        ("", "is neither an absolute path"),
        ("/", "is the root of the file system"),
        ("memory://x", "location memory:// is seen by one process only"),
        ("https://host/file", "location has the protocol 'https', which is not that of a storage"),
        ("ftp://ada:secret@host/path", "carries a password"),
        ("s3://", "names no place"),
        (7, "valid string"),
    ],
)
def test_another_location_is_refused_with_the_way_out(location: Any, sentence: str) -> None:
    with pytest.raises(ValidationError) as caught:
        spec_of({"train": location})
    assert sentence in str(caught.value)
    assert "secret" not in caught.value.errors()[0]["msg"]


@pytest.mark.parametrize("name", ["Train", "1st", "a-b", "a_", "", "a" * 33, "ä"])
def test_a_name_that_is_no_variable_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="data"):
        spec_of({name: "/mnt/data"})


def test_too_many_locations_are_refused() -> None:
    many = {f"part{number}": "/mnt/data" for number in range(MAX_LOCATIONS + 1)}
    with pytest.raises(ValidationError, match=f"at most {MAX_LOCATIONS} are fetched"):
        spec_of(many)


def test_the_variable_of_a_name_cannot_be_set_in_env() -> None:
    assert name_variable("train") == "ACCORDION_DATA_TRAIN"
    with pytest.raises(ValidationError, match="ACCORDION_DATA_TRAIN has the prefix"):
        JobSpec.model_validate(
            {"task": {"name": "synthetic"}, "env": {"ACCORDION_DATA_TRAIN": "/mnt"}}
        )
