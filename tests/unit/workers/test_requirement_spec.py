"""Packages that a job names in `pip`: which requirements are accepted."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from accordion_workers.common.secret_mask import SecretMask
from accordion_workers.records.contract import JobSpec, Launch, PipIndex

TASK = {"task": {"name": "digits-mlp"}}
LOGIN = "ada:s3cret-of-ada"


def parse(pip: Any) -> JobSpec:
    return JobSpec.model_validate({**TASK, "pip": pip})


def test_requirements_are_kept_in_their_normal_form() -> None:
    spec = parse(["einops == 0.8.0", "Foo.Bar[x]>=1,<2", "b; python_version < '3.12'"])
    assert spec.pip == ("einops==0.8.0", "Foo.Bar[x]<2,>=1", 'b; python_version < "3.12"')
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


def test_a_job_needs_no_packages() -> None:
    assert JobSpec.model_validate(TASK).pip == ()


@pytest.mark.parametrize(
    ("pip", "detail"),
    [
        (["-r requirements.txt"], "-r is an option of pip, and only names with versions"),
        ([" --index-url=https://a.example"], "--index-url is an option of pip"),
        (["-e ."], "-e is an option of pip"),
        (["./mine"], "'./mine' is not a requirement"),
        (["/wheels/a-1.0-py3-none-any.whl"], "paths and URLs are not accepted"),
        (["a-1.0-py3-none-any.whl"], "a-1.0-py3-none-any.whl is given as a URL or a file"),
        (["a.whl"], "a.whl is given as a URL or a file, or with ===; give a name"),
        (["a.tar.gz ; python_version > '3'"], "a.tar.gz is given as a URL or a file"),
        (["a===b.zip"], "a is given as a URL or a file, or with ==="),
        (["a===/../../srv/storage/JOB/evil"], "a is given as a URL or a file, or with ==="),
        (["a===/x/code.zip[x]"], "a is given as a URL or a file, or with ==="),
        (["a.zip[x]"], "a.zip is given as a URL or a file"),
        (["a==1+x.zip"], "a is given as a URL or a file"),
        (["einops; os_name ~= 'x'"], "the marker of einops; os_name ~="),
        (["a; 'x' in extras"], "the marker of a; "),
        (["a @ https://a.example/a-1.0.zip"], "a is given as a URL or a file"),
        (["git+https://a.example/a"], "is not a requirement"),
        (["a=1"], "'a=1' is not a requirement"),
        ([""], "at least 1 character"),
        (["a" * 501], "at most 500 characters"),
        ([f"a{number}" for number in range(65)], "at most 64 items"),
        ([3], "should be a valid string"),
        ("einops", "should be a valid tuple"),
        (["a\0"], "holds a NUL character"),
    ],
)
def test_anything_else_is_refused_with_a_way_out(pip: Any, detail: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse(pip)
    [error] = caught.value.errors()
    assert detail in error["msg"]
    assert error["loc"][0] == "pip"


@pytest.mark.parametrize(
    "text",
    [
        f"a @ https://{LOGIN}@a.example/a-1.0.zip",
        f"https://{LOGIN}@a.example/a-1.0.zip",
        f"--extra-index-url=https://{LOGIN}@a.example",
        f"--extra-index-url https://{LOGIN}@a.example",
    ],
)
def test_a_refusal_does_not_repeat_the_login_of_a_url(text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse([text])
    [error] = caught.value.errors()
    assert "s3cret" not in error["msg"]
    assert "ada" not in error["msg"]


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        (f"https://{LOGIN}@a.example/simple", f"https://{LOGIN}@a.example/simple/b/"),
        ("https://a.example/s3cret-of-ada/simple/", "https://a.example/s3cret-of-ada/simple/b/"),
        ("https://a.example/s3cret-of-ada/simple", "with url: /s3cret-of-ada/simple/b/"),
        ("https://a.example/simple?key=s3cret-of-ada", "/simple?key=s3cret-of-ada/b/"),
        ("https://a.example/x?key=s3cret-of-ada", "/x/b/?key=s3cret-of-ada"),
        (f"https://b.example https://{LOGIN}@a.example", "the password s3cret-of-ada is wrong"),
    ],
)
def test_a_supervisor_masks_what_may_be_secret_in_urls_of_indexes(url: str, printed: str) -> None:
    for index in (PipIndex(url=url.split()[-1]), PipIndex(extra_urls=url)):
        launch = Launch(
            job_id="a", attempt=1, workers=1, storage="", spec=parse(["b"]), pip_index=index
        )
        assert "s3cret" not in SecretMask(launch.list_secret_values()).apply(printed)


def test_an_ordinary_path_of_an_index_is_not_masked() -> None:
    assert not any(PipIndex(url="https://pypi.org/simple/").list_secret_values())


def test_a_launch_does_not_show_its_index() -> None:
    index = PipIndex(url=f"https://{LOGIN}@a.example/simple")
    launch = Launch(
        job_id="a", attempt=1, workers=1, storage="", spec=parse(["b"]), pip_index=index
    )
    assert "s3cret" not in repr(launch)
    assert Launch.model_validate_json(launch.model_dump_json()).pip_index == index
