"""`accordion plan`: predictions before a job runs."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from accordion_client import Client
from accordion_client.commands.cli_app import INTERRUPTED
from accordion_client.commands.plans import describe_gain, parse_link
from accordion_service.domain.jobs.plans import PlanStatus
from accordion_service.errors import SettingsError
from accordion_workers.planning import planner_process
from accordion_workers.records.contract import PlanResult
from tests.api.conftest import Live
from tests.api.fake_plans import FOUND
from tests.unit.service.conftest import Accordion


@pytest.mark.parametrize(
    ("text", "latency_s", "bytes_per_s"),
    [
        ("100Mbit,8ms", 0.008, 12.5e6),
        ("100 Mbit/s, 8 ms", 0.008, 12.5e6),
        ("100Mbps", 0.0, 12.5e6),
        ("1Gbit", 0.0, 125e6),
        ("2.5 gbit, 50us", 50e-6, 312.5e6),
        ("64kbit,1.5s", 1.5, 8e3),
    ],
)
def test_a_link_is_a_bandwidth_and_a_latency(text, latency_s, bytes_per_s):
    assert parse_link(text) == pytest.approx((latency_s, bytes_per_s))


@pytest.mark.parametrize(
    "text", ["", "100", "0Mbit", "100MB", "100MBps", "8ms", "100Mbit,8", "1Gbit,8ms,9"]
)
def test_another_link_is_refused_with_the_units_and_an_example(text):
    with pytest.raises(SettingsError, match=r"kbit, Mbit or Gbit .* us, ms or s, such as 100Mbit"):
        parse_link(text)


def test_plan_lists_every_method_with_its_predicted_step(accordion: Accordion, spec: Path) -> None:
    arguments = ("plan", spec, "--workers", "2", "--link", "100Mbit,8ms", "--measure", "0")
    found = accordion(*arguments, "--json").json()
    methods = [row["method"] for row in found["predictions"]]
    assert {"none", "half", "powersgd", "topk"} <= set(methods)
    steps = [row["step_s"] for row in found["predictions"]]
    assert steps == sorted(steps)
    assert found["compute_s"] < steps[0]


def test_plan_tells_the_rounds_and_the_bytes_of_a_budget(accordion: Accordion, spec: Path) -> None:
    link = ("--workers", "2", "--link", "100Mbit", "--measure", "0")
    qsgd = ("--set", "compression={method: qsgd}", "--set", "policy.name=fixed")
    arguments = ("plan", spec, *link, *qsgd)
    found = accordion(*arguments, "--set", "local_steps={budget: 20}", "--json").json()
    (run,) = found["runs"]
    low = found["local_steps"]["low"]
    assert found["local_steps"] == {"low": low, "high": 8 * low}
    assert run["epochs"][0]["local_steps"] == [low]
    assert run["uncompressed_bytes"] >= 20 * run["sent_bytes"]
    # An epoch of 23 steps ends a round of 24.
    assert {low, min(8 * low, 23)} <= {row["local_steps"] for row in found["predictions"]}
    refused = accordion(*arguments, "--set", "local_steps={budget: 5000}")
    assert (refused.code, "or less, or fewer bits" in refused.err) == (2, True)


def test_workers_that_hold_the_model_together_are_planned_as_replicas(
    accordion: Accordion, spec: Path
) -> None:
    link = ("--link", "100Mbit", "--measure", "0", "--set", "task.options.hidden=33")
    sharded = ("plan", spec, *link, "--set", "parallelism.shard=2")
    found = accordion(*sharded, "--workers", "4", "--json").json()
    whole = accordion("plan", spec, *link, "--workers", "2", "--json").json()

    def sent(plan: dict[str, Any]) -> dict[tuple[str, str], int]:
        return {(row["method"], row["level"]): row["sent_bytes"] for row in plan["predictions"]}

    # A part's factors of PowerSGD are as long along one side as those of the whole.
    assert sent(found)["powersgd", "low"] > sent(whole)["powersgd", "low"]
    dense = sent(whole)["none", ""]
    assert sent(found)["none", ""] == dense
    # FSDP2 pads the smaller half of an odd number of rows.
    assert (dense // 2 < found["shard_bytes"] < 0.6 * dense, whole["shard_bytes"]) == (True, None)
    shown = accordion(*sharded, "--workers", "4")
    assert "each worker holds" in shown.out
    assert "sent: bytes of one replica on the wire" in shown.out
    alone = accordion(*sharded, "--workers", "2")
    assert (alone.code, "so 2 workers are one replica" in alone.err) == (2, True)
    odd = accordion(*sharded, "--workers", "3")
    assert (odd.code, "give a multiple of 2, such as 2 or 4" in odd.err) == (2, True)


def test_a_script_is_refused_as_one_whether_or_not_it_shards_its_model(
    accordion: Accordion,
) -> None:
    job = Path(__file__).parents[3] / "deploy/jobs/lm-fsdp2/job.yaml"
    link = ("--workers", "4", "--link", "100Mbit,8ms")
    for shard in ("parallelism={shard: 2}", "parallelism=null"):
        said = accordion("plan", job, *link, "--set", f"data.text={__file__}", "--set", shard)
        assert "the model of a script is not known before it runs" in said.err


def test_a_spec_that_cannot_be_planned_is_refused_in_one_sentence(
    accordion: Accordion, spec: Path
) -> None:
    link = ("--workers", "2", "--link", "100Mbit,8ms")
    said = accordion("plan", spec, "--workers", "9", *link[2:])
    assert said.code == 2
    assert "shares for --workers 9; lower micro_batch or --workers" in said.err
    assert "measuring" not in said.err
    gpus = accordion("plan", spec, *link, "--set", "workers.gpus=1")
    assert gpus.code == 2
    assert "set workers.gpus=0 to plan for CPUs" in gpus.err
    assert "measuring" not in gpus.err


@pytest.mark.parametrize("cluster", [(), ("--cluster",)])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("compresion.method=topk", "unknown key 'compresion'; did you mean 'compression'?"),
        ("policy.saving=0.1", "unknown key 'saving'; did you mean 'policy.options.saving'?"),
        ("training.micro_batch=-1", "-1 is rejected: input should be greater than or equal to 1"),
        ("training.micro_batch=1", None),
    ],
)
def test_a_wrong_value_is_refused_in_the_words_of_submit(
    accordion: Accordion,
    spec: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    cluster: tuple[str, ...],
    change: str,
    sentence: str | None,
) -> None:
    monkeypatch.setattr(planner_process, "run_planner", lambda *_, **__: dict(FOUND))
    said = accordion(
        "plan", spec, "--workers", "2", "--link", "1Gbit", "--set", change, *cluster, "--json"
    )
    assert said.code == (0 if sentence is None else 2)
    assert ("measuring a step" in said.err) == (sentence is None)
    assert sentence is None or sentence in said.err
    assert bool(said.out) == (sentence is None)


def test_nobody_measures_forever(accordion: Accordion, spec: Path) -> None:
    link = ("--workers", "2", "--link", "100Mbit")
    said = accordion("plan", spec, *link, "--measure", "inf")
    assert said.code == 2
    assert "--measure" in said.err
    assert "60" in said.err


@pytest.mark.parametrize("workers", ["-2", "0", "1", "1025", "two", "9" * 5000])
def test_another_number_of_workers_is_refused_with_the_limits(
    accordion: Accordion, spec: Path, workers: str
) -> None:
    said = accordion("plan", spec, "--workers", workers, "--link", "1Gbit")
    assert said.code == 2
    assert f"--workers is '{workers}'; give a whole number from 2 to 1024" in said.err


def test_missing_data_is_one_sentence_with_the_option(accordion: Accordion, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("task: {name: cifar-resnet18, options: {data: /nope}}\n")
    said = accordion("plan", file, "--workers", "2", "--link", "1Gbit")
    assert said.code == 2
    assert said.err.splitlines()[1:] == [
        "accordion: there is no data at '/nope' on this machine; put it there, or name another path"
        " in data (--set task.options.data=PATH)"
    ]
    assert said.out == ""


def test_code_that_raises_is_shown_with_its_traceback(accordion: Accordion, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Mine:\n    model = train_data = eval_data = loss = metrics = print\n"
        "    def __init__(self, options): raise KeyError('k')\n"
    )
    file = tmp_path / "job.yaml"
    file.write_text("task: {name: 'mine:Mine'}\ncode: .\n")
    said = accordion("plan", file, "--workers", "2", "--link", "1Gbit")
    assert said.code == 2
    assert "Traceback" in said.err
    assert "accordion: the task raised before training began: KeyError: 'k'" in said.err
    assert "job's log" not in said.err


def row(method: str, level: str, step_s: float, *, is_own_method: bool = False) -> dict[str, Any]:
    return {"method": method, "level": level, "step_s": step_s, "is_own_method": is_own_method}


def test_the_last_line_says_whether_compression_pays() -> None:
    rows = [
        row("powersgd", "low", 0.1, is_own_method=True),
        row("half", "", 0.2),
        row("none", "", 0.39),
        row("topk", "low", 0.4),
    ]
    assert describe_gain(rows, shortest_s=0.0) == (
        "steps per second, against none: powersgd low 3.9 times, half 1.9 times"
    )
    assert describe_gain(rows, shortest_s=0.1).endswith(
        "half 1.9 times; min_step_s makes all steps last at least 100 ms"
    )
    assert "at least 500 ms with any method" in describe_gain(rows, shortest_s=0.5)
    assert describe_gain(rows[:1], shortest_s=0.0) == ""


def test_the_last_line_names_the_fastest_method_beside_a_spec_without_compression() -> None:
    rows = [row("half", "", 0.2), row("none", "", 0.39, is_own_method=True)]
    faster = [row("topk", "high", 0.13), *rows]
    assert describe_gain(faster, shortest_s=0.0).endswith(": topk high 3 times, half 1.9 times")
    slow = [rows[1], row("half", "", 0.78)]
    assert describe_gain(slow, shortest_s=0.0).endswith(": half 0.5 times; none is the fastest")


def test_rounds_of_a_spec_without_compression_are_judged_against_every_step() -> None:
    rows = [
        {**row("none", "", 0.1, is_own_method=True), "local_steps": 4},
        row("half", "", 0.2),
        {**row("none", "", 0.4, is_own_method=True), "local_steps": 1},
    ]
    assert describe_gain(rows, shortest_s=0.0) == (
        "steps per second, against none: none every 4 steps 4 times, half 2 times"
    )


@pytest.mark.parametrize("step_s", [0.36, 0.4, 0.42])
def test_a_lead_that_the_predictions_cannot_resolve_is_none(step_s: float) -> None:
    rows = sorted(
        [row("half", "", 0.39), row("none", "", step_s, is_own_method=True)],
        key=lambda line: line["step_s"],
    )
    said = describe_gain(rows, shortest_s=0.0)
    assert "none is about as fast as the fastest" in said
    assert "none is the fastest" not in said


def test_plan_asks_the_cluster_of_the_service(
    accordion: Accordion, spec: Path, service: Live
) -> None:
    arguments = ("plan", spec, "--workers", "3", "--link", "100Mbit,8ms", "--cluster")
    said = accordion(*arguments)
    assert said.code == 0, said.err
    assert "a step of one worker without exchanges takes 200 ms" in said.out
    assert "powersgd*" in said.out
    assert "0 to 1  0.1   64     10     low 2            1, then 4    6          600 kB" in said.out
    assert (
        "1.2 MB in all, 5 times fewer than without compression in every step; 1 kB of it"
        in said.out
    )
    order = service.runtime.measured[-1]
    assert (order.spec.workers.max, order.bytes_per_s) == (3, 12.5e6)
    assert order.latency_s == pytest.approx(0.008)
    assert accordion(*arguments, "--json").json()["predictions"] == FOUND["predictions"]


def test_why_a_plan_failed_on_the_cluster_is_printed(
    accordion: Accordion, spec: Path, service: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.runtime, "plan_result", PlanResult(error="no data at /data"))
    said = accordion("plan", spec, "--workers", "2", "--link", "1Gbit", "--cluster")
    assert (said.code, said.out) == (1, "")
    assert said.err.endswith("accordion: no data at /data\n")
    document = accordion("plan", spec, "--workers", "2", "--link", "1Gbit", "--cluster", "--json")
    assert document.code == 1
    assert (document.json()["status"], document.json()["message"]) == ("FAILED", "no data at /data")


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
        ("{}", {"HF_TOKEN": "of the caller"}),
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
