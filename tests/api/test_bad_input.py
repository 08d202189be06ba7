"""Wrong input gets one sentence with the value, the limit and the way out; nothing is
half-written.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from accordion_service.schemas.batches import JobsChange
from accordion_service.schemas.jobs import JobChange, ResizeRequest
from accordion_service.schemas.overrides import OverrideRequest
from accordion_service.schemas.quotas import QuotaRequest
from tests.api.conftest import refused_early
from tests.api.world import DIGITS, World

JOBS = "/api/v1/jobs"
WRONG_SPECS = [
    ({"task": {"name": "digit-mlp"}}, "/task", "known are digits-mlp"),
    (
        {**DIGITS, "compression": {"method": "zip"}},
        "/compression",
        "unknown compression method 'zip'; known are none",
    ),
    (
        {**DIGITS, "compression": {"low": {"rnak": 4}}},
        "/compression",
        "has no option 'rnak'; known are factors, rank",
    ),
    ({**DIGITS, "compression": {"low": {"rank": 0}}}, "/compression", "at least 1"),
    (
        {**DIGITS, "policy": {"name": "fixed", "options": {"level": "middle"}}},
        "",
        "'middle'; known are low, high",
    ),
    ({**DIGITS, "max_restarts": 2}, "/max_restarts", "did you mean 'max_failures'?"),
    ({**DIGITS, "wokers": {"max": 2}}, "/wokers", "unknown key 'wokers'; did you mean 'workers'?"),
    (
        {**DIGITS, "checkpoint": {"frequency": 2}},
        "/checkpoint/frequency",
        "unknown key 'frequency'; allowed keys: 'every_epochs', ",
    ),
    (
        {**DIGITS, "limits": 600},
        "/limits",
        "is 600, but must be a mapping with keys such as 'training_seconds', ",
    ),
    (
        {**DIGITS, "batch": "large"},
        "/batch",
        "is 'large', but must be a mapping with keys such as 'low', 'high'",
    ),
    (
        {**DIGITS, "workers": {"min": 3, "max": 2}},
        "/workers",
        "min is 3, above workers.max 2; lower min or raise max",
    ),
    (
        {**DIGITS, "training": {"epochs": 0}},
        "/training/epochs",
        "0 is rejected: input should be greater than or equal to 1",
    ),
    (
        {**DIGITS, "policy": {"name": "cost_aware", "saving": 0.1}},
        "/policy/saving",
        "unknown key 'saving'; did you mean 'policy.options.saving'?",
    ),
    ({**DIGITS, "env": {"1A": "x"}}, "/env/1A", "'1A' is not the name of a variable; use letters"),
    (
        {**DIGITS, "loggers": "x"},
        "/loggers",
        "'x' is not a list; give a list of loggers, such as [{kind: tensorboard}]",
    ),
    (
        {**DIGITS, "loggers": ["x"]},
        "/loggers/0",
        "is 'x', but must be a mapping with keys such as 'kind', 'tracking_uri', ",
    ),
    (
        {**DIGITS, "pip": "einops"},
        "/pip",
        "'einops' is not a list; give a list of requirements, such as [einops==0.8.1]",
    ),
    (
        {**DIGITS, "training": {"lr_decay": {"at": 5}}},
        "/training/lr_decay/at",
        "5 is not a list; give a list of epochs, such as [30, 60]",
    ),
    (
        {**DIGITS, "data": {"Train": "/data"}},
        "/data/Train",
        "'Train' is not the name of data; use lower-case letters, digits and _, start with a letter"
        " and end with a letter or digit",
    ),
    (
        {**DIGITS, "workers": {"resources": {"a b": 1}}},
        "/workers/resources/a b",
        "'a b' is not the name of a resource; use letters, digits and ._:-, and start with a letter"
        " or _",
    ),
    (
        {**DIGITS, "workers": {"node_labels": {"a b": "x"}}},
        "/workers/node_labels/a b",
        "'a b' is not the name of a node label, such as ray.io/accelerator-type;",
    ),
    (
        {**DIGITS, "workers": {"node_labels": {"a": "in(spot,)"}}},
        "/workers/node_labels/a",
        "'in(spot,)' is not the value of a node label; give a value such as H100, \"in(H100,A100)\""
        ' for one of several, or "!H100" or "!in(H100,A100)" for none of them; each has up to 63',
    ),
    (
        {**DIGITS, "loggers": [{"kind": "wandb", "project": "a b", "mode": "offline"}]},
        "/loggers/0/project",
        "'a b' is not a name in Weights & Biases; use letters, digits and ._-",
    ),
    (
        {**DIGITS, "loggers": [{"kind": "mlflow", "tracking_uri": "ftp://x"}]},
        "/loggers/0/tracking_uri",
        "'ftp://x' is not a URL that starts with http:// or https://",
    ),
    (
        {**DIGITS, "labels": {"n": 5}},
        "/labels/n",
        '5 is not text; put it in quotes: "5"',
    ),
    (
        {**DIGITS, "labels": {"good": True}},
        "/labels/good",
        'true is not text; put it in quotes: "true"',
    ),
    (
        {**DIGITS, "code": "latest"},
        "/code",
        "'latest' is not the SHA-256 of uploaded code, which has 64 digits and letters a to f;",
    ),
    ({}, "/task", "is missing and has no default"),
    ([], "", "[] is rejected"),
]
WRONG_OVERRIDES = [
    ({"level": "middle"}, "/level", "unknown level 'middle'; known are low (0), high (1)"),
    ({"level": 2}, "/level", "unknown level 2; known are low (0), high (1)"),
    ({"level": {"rank": 0}}, "/level", "at least 1"),
    ({"level": {"method": "zip"}}, "/level", "unknown compression method 'zip'"),
    (
        {"level": "low", "layers": ["fc1*", "conv*"]},
        "/layers/1",
        "no layer matches 'conv*'; layers are fc1.weight",
    ),
    ({"level": "low", "until": 1}, "/until", "would begin in epoch"),
    ({"level": "low", "apply_at": 9, "until": 9}, "/until", "give at least 10"),
    ({"level": "low", "apply_at": 30}, "/apply_at", "the job's last epoch is 29"),
    ({"level": "low", "until": 31}, "/until", "the job has 30 epochs; give at most 30"),
    (
        {"level": "low", "apply_at": "tomorrow"},
        "/apply_at",
        "apply_at is 'tomorrow'; give next_step, next_epoch or an epoch from 0 to 100000",
    ),
    ({"level": "low", "from": 3}, "/from", "unknown key"),
    ({"level": "low", "target": "moon"}, "/target", "'moon' is rejected"),
    (
        {"level": "low", "target": "batch"},
        "/target",
        "this job has no batch levels, so its batch stays as it is",
    ),
    (
        {"level": "low", "target": "local_steps"},
        "/target",
        "this job has no local_steps, so its workers exchange in every step; set local_steps in",
    ),
]
WRONG_BATCHES = [
    (
        {"level": "middle"},
        "/level",
        "known are low (64 samples), high (512), or a number of samples",
    ),
    ({"level": {"rank": 1}}, "/level", "'rank': 1"),
    (
        {"level": 16},
        "/level",
        "level is 16 samples; the batch needs at least 17, so that every worker",
    ),
    ({"level": 0}, "/level", "or a number of samples from 17 on"),
    (
        {"level": "low", "layers": ["fc1*"]},
        "/layers",
        "applies to the whole model; leave out the layers",
    ),
]


def problem_of(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["status"] == status
    assert body["request_id"] == answer.headers["x-request-id"]
    assert "Traceback" not in answer.text
    pointers = [item["pointer"] for item in body["errors"]]
    assert not [pointer for pointer in pointers if "0x" in pointer or "[" in pointer]
    return body


@pytest.mark.parametrize(("spec", "pointer", "sentence"), WRONG_SPECS)
def test_a_wrong_spec_is_refused_at_the_wrong_value(
    client: TestClient, spec: Any, pointer: str, sentence: str
) -> None:
    body = problem_of(client.post(JOBS, json=spec), 422)
    assert pointer in [item["pointer"] for item in body["errors"]]
    assert sentence in body["detail"]
    assert client.get(JOBS).json()["items"] == []


@pytest.mark.parametrize(("wish", "pointer", "sentence"), WRONG_OVERRIDES)
def test_a_wrong_override_is_refused_at_the_wrong_value(
    client: TestClient, world: World, *, wish: Any, pointer: str, sentence: str
) -> None:
    job_id = world.submit(training={"epochs": 30})
    world.turn_until(lambda: len(world.epochs(job_id)) == 2)
    body = problem_of(client.post(f"{JOBS}/{job_id}/overrides", json=wish), 422)
    assert any(item["pointer"].startswith(pointer) for item in body["errors"])
    assert sentence in body["detail"]
    assert world.overrides.list_all(job_id) == []


def test_an_override_of_a_job_without_compression_is_refused_once_it_changes_nothing(
    client: TestClient, world: World
) -> None:
    overrides = f"{JOBS}/{world.submit(compression={'method': 'none'})}/overrides"
    body = problem_of(client.post(overrides, json={"level": "high"}), 422)
    assert body["errors"][0]["pointer"] == "/level"
    assert "level is 'high', which changes nothing" in body["detail"]
    assert client.post(overrides, json={"level": {"method": "powersgd"}}).status_code == 202
    assert client.post(overrides, json={"level": "high"}).status_code == 202


@pytest.mark.parametrize(("wish", "pointer", "sentence"), WRONG_BATCHES)
def test_a_wrong_override_of_the_batch_is_refused_at_the_wrong_value(
    client: TestClient, world: World, *, wish: Any, pointer: str, sentence: str
) -> None:
    job_id = world.submit(training={"epochs": 30}, batch={"high": 512})
    body = problem_of(
        client.post(f"{JOBS}/{job_id}/overrides", json={"target": "batch", **wish}), 422
    )
    assert [item["pointer"] for item in body["errors"]] == [pointer]
    assert sentence in body["detail"]
    assert world.overrides.list_all(job_id) == []


def test_a_body_that_is_no_json_is_refused(client: TestClient) -> None:
    answer = client.post(JOBS, content='{"task": ', headers={"Content-Type": "application/json"})
    body = problem_of(answer, 400)
    assert body["code"] == "invalid_json"
    assert body["detail"].startswith("the body is not valid JSON: ")


def test_a_number_that_json_does_not_know_is_refused(client: TestClient) -> None:
    text = '{"task": {"name": "digits-mlp"}, "training": {"optimizer": {"lr": NaN}}}'
    answer = client.post(JOBS, content=text, headers={"Content-Type": "application/json"})
    assert problem_of(answer, 422)["errors"][0]["pointer"] == "/training/optimizer/lr"


def test_a_body_without_its_type_is_refused(client: TestClient) -> None:
    body = problem_of(client.post(JOBS, content="{}"), 415)
    assert body["detail"] == "Content-Type is missing; send the body as application/json"


def test_a_body_that_is_too_large_is_refused(client: TestClient, world: World) -> None:
    body = problem_of(client.post(JOBS, content="x" * (world.settings.max_body_bytes + 1)), 413)
    assert str(world.settings.max_body_bytes) in body["detail"]


def test_a_body_that_grows_too_large_on_the_way_is_refused(client: TestClient) -> None:
    chunks = (b"x" * 65536 for _ in range(32))
    problem_of(client.post(JOBS, content=chunks, headers={"Content-Type": "application/json"}), 413)


@pytest.mark.parametrize(
    "part", ["", "/epochs", "/schedule", "/overrides", "/events", "/logs", "/attempts"]
)
def test_a_job_that_does_not_exist_is_not_found(client: TestClient, part: str) -> None:
    body = problem_of(client.get(f"{JOBS}/0{part}"), 404)
    assert (
        body["detail"]
        == "there is no job with the ID 0; 'accordion list' (GET /api/v1/jobs) lists all"
    )


def test_an_address_that_does_not_exist_is_not_found(client: TestClient) -> None:
    assert (
        problem_of(client.get("/api/v1/job"), 404)["detail"]
        == "there is no route /api/v1/job; /docs lists all routes"
    )


def test_a_method_that_is_not_taken_says_which_are(client: TestClient) -> None:
    answer = client.delete(JOBS)
    assert problem_of(answer, 405)["detail"] == f"{JOBS} does not allow DELETE; it allows GET, POST"
    assert answer.headers["allow"] == "GET, POST"


@pytest.mark.parametrize("path", [JOBS, "/api/v1/tasks", "/api/v1/queue", "/livez", "/metrics"])
@refused_early
def test_an_unknown_query_parameter_is_refused(client: TestClient, path: str) -> None:
    body = problem_of(client.get(path, params={"statsu": "QUEUED"}), 422)
    assert body["errors"][0]["pointer"] == "query/statsu"


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 0},
        {"limit": 201},
        {"cursor": "???"},
        {"cursor": "bmFu"},
        {"label": "team"},
        {"status": "DONE"},
    ],
)
@refused_early
def test_a_wrong_query_is_refused(client: TestClient, query: dict[str, Any]) -> None:
    problem_of(client.get(JOBS, params=query), 422)


def test_an_ended_job_can_neither_be_cancelled_nor_overridden(
    client: TestClient, world: World
) -> None:
    job_id = world.submit()
    world.finish(job_id)
    assert "SUCCEEDED" in problem_of(client.post(f"{JOBS}/{job_id}/cancel"), 409)["detail"]
    problem_of(client.post(f"{JOBS}/{job_id}/overrides", json={"level": "low"}), 409)


def test_a_crash_of_ours_shows_no_traceback(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accordion_service.store.reads.queue.QueueReads.waiting", lambda _: 1 / 0)
    body = problem_of(client.get("/api/v1/queue"), 500)
    assert "ZeroDivisionError" not in body["detail"]
    assert body["request_id"] in body["detail"]


@pytest.mark.parametrize(
    "query", ["label=%00:b", "label=a:%1b", "name=%00", "cursor=MSAA", "cursor=bmFuIHg="]
)
@refused_early
def test_control_characters_in_a_query_are_refused(client: TestClient, query: str) -> None:
    problem_of(client.get(f"{JOBS}?{query}"), 422)


@pytest.mark.parametrize("key", ['a"', "a'b", "$", "a.b", "a\\", "a]"])
def test_any_printable_label_can_be_asked_for(client: TestClient, world: World, key: str) -> None:
    world.submit()
    assert client.get(JOBS, params={"label": f"{key}:b"}).status_code == 200


@pytest.mark.parametrize(
    ("wish", "pointer"),
    [
        ({"reason": "\0"}, "/reason"),
        ({"reason": "\x1b[2J"}, "/reason"),
        ({"layers": ["fc\0*"]}, "/layers/0"),
        ({"apply_at": True}, "/apply_at"),
        ({"apply_at": "0"}, "/apply_at"),
        ({"until": "3"}, "/until"),
        ({"until": True}, "/until"),
        ({"level": True}, "/level"),
        ({"level": 1.5}, "/level"),
    ],
)
def test_an_override_takes_nothing_for_something_else(
    client: TestClient, world: World, wish: dict[str, Any], pointer: str
) -> None:
    answer = client.post(f"{JOBS}/{world.submit()}/overrides", json={"level": "low", **wish})
    assert all(item["pointer"].startswith(pointer) for item in problem_of(answer, 422)["errors"])


@pytest.mark.parametrize(
    ("wish", "pointers"),
    [
        ({"level": 1.5}, {"/level"}),
        ({"level": {"rank": [1]}}, {"/level"}),
        ({"level": {"bool": None}}, {"/level"}),
        ({"level": "low", "apply_at": -1}, {"/apply_at"}),
        ({"level": "low", "layers": ["fc*", 5]}, {"/layers/1"}),
        ({"level": "low", "a\0b": {"c": "\0"}}, {"/a\ufffdb", "/a\ufffdb/c"}),
        ({}, {"/level"}),
    ],
)
def test_the_pointers_of_a_wrong_override_lead_to_values_of_the_body(
    client: TestClient, world: World, wish: dict[str, Any], pointers: set[str]
) -> None:
    body = problem_of(client.post(f"{JOBS}/{world.submit()}/overrides", json=wish), 422)
    assert {item["pointer"] for item in body["errors"]} == pointers


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"loggers": [{"kind": "wandb", "project": "a b"}]}, "/loggers/0/project"),
        ({"loggers": [{"kind": "wandb"}]}, "/loggers/0/project"),
        ({"labels": {"a b": "c"}}, "/labels/a b"),
        ({"compression": {"low": {"rank": [1]}}}, "/compression/low/rank"),
        ({"training": {"epochs": 0}}, "/training/epochs"),
    ],
)
def test_the_pointers_of_a_wrong_spec_and_of_a_wrong_clone_are_equal(
    client: TestClient, world: World, changes: dict[str, Any], pointer: str
) -> None:
    clone = f"{JOBS}/{world.submit()}/clone"
    answers = [
        client.post(JOBS, json={**DIGITS, **changes}),
        client.post(clone, json={"spec": changes}),
    ]
    for answer, place in zip(answers, ["", "/spec"], strict=True):
        found = {item["pointer"] for item in problem_of(answer, 422)["errors"]}
        assert found == {place + pointer}


WHOLE = [
    (ResizeRequest, {"min": 1, "max": 2}),
    (JobChange, {"priority": 3}),
    (JobsChange, {"priority": 3}),
    (QuotaRequest, {"user": "ada", "jobs": 0, "workers": 7}),
    (OverrideRequest, {"level": "low", "apply_at": 2, "until": 3}),
]


@pytest.mark.parametrize(("model", "values"), WHOLE, ids=lambda one: getattr(one, "__name__", ""))
def test_a_float_without_a_fraction_is_a_whole_number(model: Any, values: dict[str, Any]) -> None:
    for name in [name for name, one in values.items() if isinstance(one, int)]:
        taken = getattr(model.model_validate({**values, name: float(values[name])}), name)
        assert (taken, type(taken)) == (values[name], int)
        for other in (values[name] + 0.5, True, float("inf")):
            with pytest.raises(ValidationError, match=name):
                model.model_validate({**values, name: other})


def test_a_level_without_a_fraction_is_a_whole_number_and_others_stay_as_they_are() -> None:
    read = [OverrideRequest.model_validate({"level": level}).level for level in (1.0, 0.5, 2)]
    assert (read, [type(level) for level in read]) == ([1, 0.5, 2], [int, float, int])


def test_an_override_from_the_next_epoch_is_refused_in_the_last_one(
    client: TestClient, world: World
) -> None:
    job_id = world.submit(training={"epochs": 1})
    world.train(job_id)
    answer = client.post(
        f"{JOBS}/{job_id}/overrides", json={"level": "low", "apply_at": "next_epoch"}
    )
    detail = problem_of(answer, 422)["detail"]
    assert detail == "apply_at is next_epoch, which is epoch 1; the job's last epoch is 0"


@pytest.mark.parametrize("job_id", ["%00", "a%00b", "%EF%BF%BF", "no-such-job"])
def test_the_page_of_a_job_that_cannot_exist_is_refused(client: TestClient, job_id: str) -> None:
    assert client.get(f"/jobs/{job_id}").status_code in {404, 422}


def test_a_body_that_breaks_off_is_no_request(client: TestClient, world: World) -> None:
    messages = iter(
        [{"type": "http.request", "body": json.dumps(DIGITS).encode(), "more_body": True}]
    )
    sent: list[Any] = []

    async def receive() -> Any:
        return next(messages, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": JOBS,
        "raw_path": JOBS.encode(),
        "scheme": "http",
    }
    asyncio.run(client.app({**scope, "query_string": b"", "headers": headers}, receive, send))
    assert (sent, world.jobs.unfinished()) == ([], [])
