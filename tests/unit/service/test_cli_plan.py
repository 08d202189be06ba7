"""`accordion plan`: predictions before a job runs."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest

from service.client import Client
from service.commands.cli_app import INTERRUPTED
from service.commands.plan import parse_link
from service.domain.plan_status import PlanStatus
from service.errors import SettingsError
from tests.api.conftest import Live
from tests.api.fake_plans import FOUND
from tests.unit.service.conftest import Accordion
from workers.contract import PlanResult
from workers.planning import planner_process


@pytest.mark.parametrize(
    ("text", "latency_s", "bytes_per_s"),
    [
        ("100Mbit,8ms", 0.008, 12.5e6),
        ("1Gbit", 0.0, 125e6),
        ("2.5 gbit, 50us", 50e-6, 312.5e6),
        ("64kbit,1.5s", 1.5, 8e3),
    ],
)
def test_a_link_is_a_bandwidth_and_a_latency(text, latency_s, bytes_per_s):
    assert parse_link(text) == pytest.approx((latency_s, bytes_per_s))


@pytest.mark.parametrize("text", ["", "100", "0Mbit", "100MB", "8ms", "100Mbit,8", "1Gbit,8ms,9"])
def test_another_link_is_refused_with_an_example(text):
    with pytest.raises(SettingsError, match="such as 100Mbit,8ms or 1Gbit"):
        parse_link(text)


def test_plan_lists_every_method_with_its_predicted_step(accordion: Accordion, spec: Path) -> None:
    arguments = ("plan", spec, "--workers", "2", "--link", "100Mbit,8ms", "--measure", "0")
    found = accordion(*arguments, "--json").json()
    methods = [row["method"] for row in found["predictions"]]
    assert {"none", "half", "powersgd", "topk"} <= set(methods)
    steps = [row["step_s"] for row in found["predictions"]]
    assert steps == sorted(steps)
    assert found["compute_s"] < steps[0]


def test_a_spec_that_cannot_be_planned_is_refused_in_one_sentence(
    accordion: Accordion, spec: Path
) -> None:
    link = ("--workers", "2", "--link", "100Mbit,8ms")
    said = accordion("plan", spec, "--workers", "9", *link[2:])
    assert said.code == 2
    assert "shares for workers.max 9; lower micro_batch or workers.max" in said.err
    gpus = accordion("plan", spec, *link, "--set", "workers.gpus=1")
    assert gpus.code == 2
    assert "set workers.gpus=0 to plan for CPUs" in gpus.err


def test_plan_asks_the_cluster_of_the_service(
    accordion: Accordion, spec: Path, service: Live
) -> None:
    arguments = ("plan", spec, "--workers", "3", "--link", "100Mbit,8ms", "--cluster")
    said = accordion(*arguments)
    assert said.code == 0, said.err
    assert "a step of one worker without exchanges takes 200 ms" in said.out
    assert "powersgd*" in said.out
    order = service.runtime.measured[-1]
    assert (order.spec.workers.max, order.bytes_per_s) == (3, 12.5e6)
    assert order.latency_s == pytest.approx(0.008)
    assert accordion(*arguments, "--json").json()["predictions"] == FOUND["predictions"]


def test_why_a_plan_failed_on_the_cluster_is_printed(
    accordion: Accordion, spec: Path, service: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.runtime, "plan_result", PlanResult(error="no data at /data"))
    said = accordion("plan", spec, "--workers", "2", "--link", "1Gbit", "--cluster")
    assert (said.code, said.out) == (2, "")
    assert "no data at /data" in said.err


def test_a_plan_on_this_machine_gets_the_variables_that_are_known_here(
    accordion: Accordion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: dict[str, str] = {}

    def run_planner(request: object, *, code: object, environment: dict[str, str]) -> object:
        del request, code
        got.update(environment)
        return {"error": "the test has ended"}

    monkeypatch.setattr(planner_process, "run_planner", run_planner)
    monkeypatch.setenv("HF_TOKEN", "of the caller")
    file = tmp_path / "job.yaml"
    for env, known in (
        ("{THREADS: 3, HF_TOKEN: {secret: t}}", {"THREADS": "3", "HF_TOKEN": "of the caller"}),
        ("null", {"HF_TOKEN": "of the caller"}),
    ):
        file.write_text(f"task: {{name: digits-mlp}}\nenv: {env}\n")
        said = accordion("plan", file, "--workers", "2", "--link", "1Gbit")
        assert (said.code, "the test has ended" in said.err) == (2, True)
        assert got.items() >= known.items()


def test_a_plan_on_this_machine_takes_data_from_paths_and_variables(
    accordion: Accordion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: dict[str, str] = {}

    def run_planner(request: object, *, code: object, environment: dict[str, str]) -> object:
        del request, code
        got.update(environment)
        return {"error": "the test has ended"}

    monkeypatch.setattr(planner_process, "run_planner", run_planner)
    monkeypatch.delenv("ACCORDION_DATA_TRAIN", raising=False)
    file = tmp_path / "job.yaml"
    file.write_text(
        "task: {name: digits-mlp}\ndata: {train: s3://bucket/train, words: /mnt/words}\n"
    )
    plan = ("plan", file, "--workers", "2", "--link", "1Gbit")
    refused = accordion(*plan)
    assert (refused.code, "set ACCORDION_DATA_TRAIN to a path" in refused.err, got) == (2, True, {})
    monkeypatch.setenv("ACCORDION_DATA_TRAIN", "/home/ada/train")
    assert "the test has ended" in accordion(*plan).err
    assert got["ACCORDION_DATA_TRAIN"] == "/home/ada/train"
    assert got["ACCORDION_DATA_WORDS"] == "/mnt/words"


def test_ctrl_c_cancels_the_plan(
    accordion: Accordion, spec: Path, service: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.runtime, "plan_result", None)
    before = len(service.runtime.measured)

    def interrupt_once_it_runs() -> None:
        while len(service.runtime.measured) == before:
            time.sleep(0.02)
        signal.pthread_kill(main, signal.SIGINT)

    main = threading.main_thread().ident
    assert main is not None
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)  # by a process of xdist
    threading.Thread(target=interrupt_once_it_runs, daemon=True).start()
    said = accordion("plan", spec, "--workers", "2", "--link", "1Gbit", "--cluster")
    signal.signal(signal.SIGINT, ignored)
    assert said.code == INTERRUPTED
    plan = service.runtime.measured[-1].id
    assert f"cancelling plan {plan}" in said.err
    with Client(service.url) as client:
        assert client.plan_result(plan).status == PlanStatus.CANCELLED


def test_a_script_is_refused_with_what_to_do_instead(accordion: Accordion, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("pass")
    file = tmp_path / "job.yaml"
    file.write_text("task: {name: script, options: {file: train.py}}\ncode: ./code\n")
    said = accordion("plan", file, "--workers", "2", "--link", "1Gbit")
    assert said.code == 2
    assert "the model of a script is not known before it runs" in said.err
    assert "ask 'accordion why'" in said.err
