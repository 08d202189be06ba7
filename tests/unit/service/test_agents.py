"""An agent over MCP: what it reads, what it may change, and what is handed back."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from accordion_client import NotFound, Unreachable, connect_async
from accordion_client.agents.agent_limits import LimitError, Limits, check_level
from accordion_client.agents.loss_guard import LossGuard
from accordion_service.errors import SettingsError
from tests.api.conftest import Live
from tests.unit.service.conftest import Accordion

mcp = pytest.importorskip("mcp")

from accordion_client.agents.agent_server import create_server  # noqa: E402

Call = Callable[..., Awaitable[Any]]
SPEC = {
    "task": {"name": "digits-mlp"},
    "training": {"global_batch": 64, "clip_norm": 1.0},
    "compression": {"method": "powersgd", "low": {"rank": 4}, "high": {"rank": 1}},
    "batch": {"high": 256},
}


def talk(url: str, limits: Limits, use: Callable[[Call], Awaitable[None]]) -> None:
    """Let an agent use the tools of a server."""

    async def run() -> None:
        async with mcp.Client(create_server(connect_async(url), limits)) as client:

            async def call(name: str, **arguments: Any) -> Any:
                answer = await client.call_tool(name, arguments)
                text = "".join(part.text for part in answer.content)
                return text if answer.is_error else json.loads(text)

            await use(call)

    anyio.run(run)


def test_an_agent_reads_jobs_epochs_and_logs(service: Live, running: str) -> None:
    async def use(call: Call) -> None:
        assert running in {job["id"] for job in (await call("list_jobs"))["jobs"]}
        shown = await call("show_job", job=running)
        assert {"job", "schedule", "overrides", "why"} == set(shown)
        epochs = (await call("list_epochs", job=running, limit=2))["epochs"]
        assert 1 <= len(epochs) <= 2
        assert "lines" in await call("read_log", job=running, lines=10**9)
        assert "there is no job 'nothing'" in await call("show_job", job="nothing")

    talk(service.url, Limits(), use)


def test_without_leave_a_person_gets_the_command(
    service: Live, running: str, accordion: Accordion
) -> None:
    proposed: dict[str, Any] = {}

    async def use(call: Call) -> None:
        half = {"target": "lr", "level": {"factor": 0.5}, "epochs": 9, "reason": "it's noisy"}
        proposed.update(await call("override", job=running, **half))

    talk(service.url, Limits(), use)
    assert proposed["applied"] is False
    assert json.loads(accordion("show", running, "--json").out)["overrides"] == []
    name, *words = shlex.split(proposed["command"])
    said = accordion(*words)
    assert (name, said.code, "factor=0.5 for the learning rate" in said.out) == (
        "accordion",
        0,
        True,
    )


def test_an_agent_overrides_within_the_limits_and_hands_back_its_own(
    service: Live, running: str, accordion: Accordion
) -> None:
    async def use(call: Call) -> None:
        low = {"job": running, "target": "compression", "level": "low", "reason": "try"}
        assert "epochs is 4; give 1 to 3" in await call("override", **low, epochs=4)
        made = await call("override", **low, epochs=3)
        assert (made["applied"], made["override"]["level"]) == (True, "low")
        assert "1 overrides were applied, which is the limit" in await call(
            "override", **low, epochs=1
        )
        number = made["override"]["number"]
        refused = await call("hand_back", job=running, number=number + 1)
        assert f"this server applied no override #{number + 1}" in refused
        ended = await call("hand_back", job=running, number=number, reason="no gain")
        assert ended["override"]["message"] == "cancelled by admin: no gain"

    talk(service.url, Limits(applies=True, most_epochs=3, most_overrides=1), use)


def test_an_agent_changes_nothing_that_a_person_holds_and_no_job_that_has_ended(
    service: Live, running: str, accordion: Accordion, spec: Path
) -> None:
    assert accordion("override", running, "--lr", "0.01", "--wait").code == 0
    ended = accordion("submit", spec, "--json").json()["id"]
    accordion("cancel", ended)
    accordion("watch", ended)

    async def use(call: Call) -> None:
        half = {"target": "lr", "level": {"factor": 0.5}, "epochs": 1, "reason": "try"}
        assert "override #1 of admin holds lr" in await call("override", job=running, **half)
        assert "has ended (CANCELLED)" in await call("override", job=ended, **half)

    talk(service.url, Limits(applies=True), use)


def ask_at_random(draw: random.Random) -> dict[str, Any]:
    """Return arguments of a hostile call."""
    number = draw.choice([0, -1, 1, 2, 7, 10**6, 10**400, 0.5, 1e-9, 1e300])
    levels = [number, "low", "high", "none", "", str(number), {"rank": number}, {"factor": number}]
    levels += [{"method": "none"}, {"rank": 1, "method": "topk"}, {}, {"density": number}]
    targets = ["compression", "batch", "local_steps", "lr", "weight_decay", "clip_norm", "epochs"]
    return {
        "target": draw.choice(targets),
        "level": draw.choice(levels),
        "epochs": draw.choice([1, 2, 3, 0, -1, 10**9]),
        "reason": draw.choice(["", "x", "\x1b[2J", "y" * 5000]),
    }


def test_hostile_calls_change_nothing_outside_the_limits(service: Live, running: str) -> None:
    draw = random.Random(0)
    limits = Limits(applies=True, most_overrides=5, most_epochs=3)

    async def use(call: Call) -> None:
        for _ in range(200):
            answer = await call("override", job=running, **ask_at_random(draw))
            assert "Traceback" not in str(answer)
        shown = await call("show_job", job=running)
        made = shown["overrides"]["items"]
        assert 0 < len(made) <= 5
        for one in made:
            check_level(one["target"], one["level"], spec=shown["job"]["spec"], limits=limits)
            assert one["until"] is not None

    talk(service.url, limits, use)


@pytest.mark.parametrize(
    ("target", "level"),
    [
        ("compression", "low"),
        ("compression", 1),
        ("compression", {"rank": 2}),
        ("batch", 128),
        ("batch", "high"),
        ("lr", {"factor": 2.0}),
        ("weight_decay", 0),
        ("clip_norm", 0.5),
    ],
)
def test_levels_between_those_of_the_job_are_allowed(target: str, level: Any) -> None:
    check_level(target, level, spec=SPEC, limits=Limits())


@pytest.mark.parametrize(
    ("target", "level", "sentence"),
    [
        ("compression", 7, "give low, high"),
        ("compression", "none", "give low, high"),
        ("compression", True, "give low, high"),
        ("compression", {"rank": 10**6}, "this job's levels allow rank from 1 to 4"),
        ("compression", {"method": "none"}, "this job's levels allow low or high"),
        ("batch", 257, "give a number from 64 to 256"),
        ("batch", True, "give a number from 64 to 256"),
        ("local_steps", 2, "the job file has no local_steps"),
        ("lr", 0.1, "an agent changes lr by"),
        ("lr", {"factor": 3}, "from 0.5 to 2"),
        ("lr", {"factor": float("nan")}, "from 0.5 to 2"),
        ("clip_norm", 3, "give a number from 0.5 to 2"),
        ("epochs", 3, "an agent overrides no 'epochs'"),
    ],
)
def test_levels_outside_are_refused_with_the_range(target: str, level: Any, sentence: str) -> None:
    with pytest.raises(LimitError, match=sentence):
        check_level(target, level, spec=SPEC, limits=Limits())


@pytest.mark.parametrize(
    "wrong", [{"most_overrides": -1}, {"most_epochs": 0}, {"most_factor": 1.0}, {"loss_factor": 0}]
)
def test_limits_that_are_none_are_refused(wrong: Mapping[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(SettingsError, match=f"{name} is {wrong[name]}; give"):
        Limits(**wrong)


class FakeClient:
    """A job whose epochs and override the test sets."""

    def __init__(self) -> None:
        self.losses: list[float | None] = [2.0]
        self.state = "APPLIED"
        self.cancelled: list[tuple[str, str]] = []
        self.reasons: list[str] = []
        self.errors: dict[str, Exception] = {}

    async def epochs(self, job_id: str, **_: Any) -> Any:
        newest = SimpleNamespace(epoch=len(self.losses) - 1, loss=self.losses[-1])
        return SimpleNamespace(items=[newest])

    async def overrides(self, job_id: str) -> Any:
        await anyio.sleep(0)
        if job_id in self.errors:
            raise self.errors[job_id]
        return SimpleNamespace(items=[SimpleNamespace(id="o", state=self.state)])

    async def cancel_override(self, job_id: str, override_id: str, *, reason: str) -> None:
        self.cancelled.append((job_id, override_id))
        self.reasons.append(reason)


@pytest.mark.parametrize(
    ("loss", "is_cancelled"), [(1.9, False), (2.9, False), (3.1, True), (None, True)]
)
def test_an_override_is_handed_back_once_the_loss_has_risen(
    loss: float | None, *, is_cancelled: bool
) -> None:
    client = FakeClient()
    guard = LossGuard(client, 1.5)  # type: ignore[arg-type]

    async def use() -> None:
        guard.watch("j", "o", number=3, before=await guard.find_newest("j"))
        await guard.check()
        assert client.cancelled == []
        client.losses.append(loss)
        await guard.check()
        await guard.check()

    anyio.run(use)
    assert client.cancelled == [("j", "o")] * is_cancelled
    reason = f"the loss of epoch 1 is {loss}, and it was 2.0 before"
    assert client.reasons == [reason] * is_cancelled
    assert guard.handed_back == [f"override #3 of job j: {reason}"] * is_cancelled


def test_an_override_that_has_ended_is_not_watched_any_more() -> None:
    client = FakeClient()
    guard = LossGuard(client, 1.5)  # type: ignore[arg-type]

    async def use() -> None:
        guard.watch("j", "o", number=3, before=await guard.find_newest("j"))
        client.state = "EXPIRED"
        client.losses.append(9.0)
        await guard.check()

    anyio.run(use)
    assert (client.cancelled, guard.watched) == ([], [])


def test_a_job_that_is_gone_or_silent_keeps_no_other_from_being_watched() -> None:
    client = FakeClient()
    client.errors = {"gone": NotFound("no job", 404), "silent": Unreachable("nobody there")}
    guard = LossGuard(client, 1.5)  # type: ignore[arg-type]

    async def use() -> None:
        before = await guard.find_newest("j")
        for job in ("gone", "silent", "j"):
            guard.watch(job, "o", number=3, before=before)
        client.losses.append(9.0)
        async with anyio.create_task_group() as group:  # the clock's check beside the agent's
            group.start_soon(guard.check)
            group.start_soon(guard.check)

    anyio.run(use)
    assert client.cancelled == [("j", "o")]
    assert [one.job_id for one in guard.watched] == ["silent"]
