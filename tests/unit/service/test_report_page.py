"""The report of a job: what it shows, and what it never contains."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from service.dashboard.assets import STATIC
from service.dashboard.report_content import MAX_ROWS, list_figures, list_tables
from service.dashboard.report_page import build_report, choose_limits
from service.dashboard.script_bundle import bundle_modules
from tests.unit.service.report_samples import (
    BEGIN,
    LAYERS,
    SPEC,
    make_attempt,
    make_decision,
    make_epoch,
    make_event,
    make_job,
    make_override,
    make_schedule,
    make_source,
)

HOSTILE = """</script><script>alert(1)</script><img src=x onerror=alert(1)>'"&<!--"""
LOADING = ("src", "href", "srcset", "action", "formaction", "data", "poster", "background")


class Parsed(HTMLParser):
    """Elements, and texts by the kind of script around them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data
        elif self.cdata_elem is None:
            self.text += data


def render(source: Any) -> Parsed:
    return Parsed(b"".join(build_report(source).pieces).decode())


def data_of(page: Parsed) -> dict[str, Any]:
    return dict(json.loads(page.scripts[0]))


def cells_of(source: Any, table_id: str) -> list[tuple[str, ...]]:
    return [row for table in list_tables(source) if table.id == table_id for row in table.rows]


@pytest.fixture(scope="module")
def page() -> Parsed:
    return render(make_source())


def test_a_report_loads_nothing(page: Parsed) -> None:
    loaded = {
        value or ""
        for _, attributes in page.tags
        for name, value in attributes.items()
        if name in LOADING
    }
    assert all(value.startswith(("data:", "#")) for value in loaded)
    assert not [
        attributes
        for tag, attributes in page.tags
        if tag == "link" and "data:" not in str(attributes)
    ]


def test_the_policy_allows_the_scripts_of_the_report_and_no_others(page: Parsed) -> None:
    [policy] = [
        attributes["content"] or ""
        for tag, attributes in page.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    digests = [hashlib.sha256(script.encode()).digest() for script in page.scripts[1:]]
    sources = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    assert len(digests) == 2
    assert f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline';" in policy


def test_hostile_texts_are_shown_as_texts() -> None:
    job = make_job(
        2,
        name=HOSTILE,
        owner=HOSTILE,
        message=HOSTILE,
        labels={HOSTILE: HOSTILE},
        spec={HOSTILE: HOSTILE},
    )
    source = make_source(
        2,
        job=job,
        schedule=make_schedule([HOSTILE]),
        epochs=[
            make_epoch(n, metrics={HOSTILE: 1.0}, level_by_layer={HOSTILE: HOSTILE})
            for n in range(2)
        ],
        decisions=[make_decision(0, reason=HOSTILE, change_by_layer={HOSTILE: 0.1})],
        overrides=[make_override(1, reason=HOSTILE, requested_by=HOSTILE, layers=[HOSTILE])],
        attempts=[make_attempt(message=HOSTILE)],
        events=[make_event("status", status="FAILED", message=HOSTILE, attempt=1)],
        log_lines=[HOSTILE],
    )
    hostile, plain = (
        render(source),
        render(make_source(2, overrides=[make_override(1)], log_lines=["a"], events=source.events)),
    )
    assert len(hostile.scripts) == 3
    assert {tag for tag, _ in hostile.tags} == {tag for tag, _ in plain.tags}
    assert not [
        name for _, attributes in hostile.tags for name in attributes if name.startswith("on")
    ]
    assert hostile.text.count(HOSTILE) >= 10
    assert data_of(hostile)["layers"] == [HOSTILE]


def test_a_job_without_epochs_has_no_charts_and_no_scripts() -> None:
    page = render(make_source(0, job=make_job(0, status="FAILED", message="it raised")))
    assert page.scripts == []
    assert "No epoch was finished, so there are no charts." in page.text
    assert "it raised" in page.text
    policy = build_report(make_source(0)).policy
    assert "script-src 'none'" in policy


def test_one_epoch_is_a_report() -> None:
    page = render(make_source(1))
    assert [row["epoch"] for row in data_of(page)["epochs"]] == [0]
    assert "Final accuracy" in page.text


def test_a_long_history_says_how_much_of_it_is_shown() -> None:
    epochs = [make_epoch(number) for number in range(0, 10_000, 50)]
    page = render(make_source(200, epochs=epochs, num_epochs=10_000, num_decisions=10_000))
    assert "200 of 10000 epochs are shown, at equal distances" in page.text
    assert "best of the epochs shown" in page.text
    assert "200 of 10000 are shown" in page.text


def test_tables_are_bounded() -> None:
    events = [make_event("status", status="RUNNING", message="", attempt=1)] * 1000
    source = make_source(
        1,
        schedule=make_schedule([f"layer{n}" for n in range(1000)]),
        decisions=[make_decision(n) for n in range(1000)],
        overrides=[make_override(1)] * 1000,
        events=events,
    )
    assert {len(table.rows) for table in list_tables(source)} == {1, MAX_ROWS}


@pytest.mark.parametrize(("layers", "epochs"), [(0, 200), (3, 200), (600, 100), (100_000, 20)])
def test_a_model_of_many_layers_has_fewer_epochs_in_its_report(layers: int, epochs: int) -> None:
    assert choose_limits(layers).epochs == epochs


def test_a_guest_run_has_a_report() -> None:
    job = make_job(2, kind="guest", owner=None, spec={"training": {"epochs": 3}})
    page = render(make_source(2, job=job))
    assert "Registered settings" in page.text
    assert "started and stopped by its own script" in page.text
    assert data_of(page)["threshold"] is None


def test_secrets_are_left_out() -> None:
    spec = SPEC | {
        "env": {"TOKEN": "s3cret", "HF": {"secret": "hf-token"}},
        "loggers": [{"kind": "wandb", "api_key": {"secret": "wandb-key"}}],
        "task": {"name": "mine", "options": {"api_key": "s3cret", "num_tokens": 512}},
        "data": {"train": "s3://key:s3cret@bucket/a", "eval": "https://host/b?sig=s3cret"},
    }
    html = b"".join(build_report(make_source(1, job=make_job(1, spec=spec))).pieces).decode()
    assert "s3cret" not in html
    for kept in ("hf-token", "wandb-key", "num_tokens: 512", "s3://***@bucket/a", "host/b?***"):
        assert kept in html


def test_numbers_that_are_not_finite_do_not_break_the_charts() -> None:
    decision = make_decision(0, change_by_layer={"fc1": float("inf"), "fc2": float("nan")})
    [drawn] = data_of(render(make_source(1, decisions=[decision])))["decisions"]
    assert drawn["decision"]["change_by_layer"] == {"fc1": None, "fc2": None}


def test_overrides_and_decisions_have_who_and_why() -> None:
    override = make_override(1)
    held = dict.fromkeys(LAYERS, override.id)
    decision = make_decision(1, reason=f"override {override.id[:13]} holds", override_by_layer=held)
    source = make_source(2, overrides=[override], decisions=[make_decision(0), decision])
    [row] = cells_of(source, "overrides")
    assert {"bob", "the loss jumped", "1 to end", "APPLIED"} <= set(row)
    first, second = cells_of(source, "decisions")
    assert (first[-1], second[-1]) == ("policy", "policy, override #1")
    assert "override #1 holds" in second


def test_faults_are_shown_with_their_cause() -> None:
    lost = make_event(
        "workers", what="failed", cause="infrastructure", rank=1, step=9, message="rank 1 died"
    )
    older = make_event("workers", what="started")
    rows = cells_of(make_source(1, events=[lost, older]), "changes")
    assert [row[2] for row in rows] == [
        "workers ended: rank 1 died",
        "an event that this version cannot read",
    ]


def test_the_result_has_metric_time_and_bytes() -> None:
    shown = {figure.label: (figure.value, figure.note) for figure in list_figures(make_source(4))}
    assert shown["Final accuracy"] == ("87.5 %", "best: 87.5 % in epoch 3")
    assert shown["Bytes sent"] == ("4 kB", "by one worker; 32 kB without compression")
    assert shown["Compression"][0] == "8.0x"
    assert shown["Time"][0] == "90 s"
    assert shown["Workers"] == ("2", "1 to 2 allowed")


def test_a_job_that_has_not_started_has_a_report() -> None:
    job = make_job(0, status="QUEUED", started_at=None, ended_at=None)
    shown = {figure.label: figure.value for figure in list_figures(make_source(0, job=job))}
    assert shown["Time"] == "not started"
    assert BEGIN.strftime("%Y-%m-%d") in render(make_source(0, job=job)).text


def test_modules_are_bundled_after_those_that_they_import() -> None:
    sources = {
        "a": 'import { two } from "./b.js";\nexport const four = two + two;',
        "b": "export const two = 2;",
    }
    bundle = bundle_modules("a", sources.__getitem__)
    assert bundle.index("const module_b") < bundle.index("const { two } = module_b;")
    assert "return { four };" in bundle
    assert not re.search(r"^(import|export)\b", bundle, re.MULTILINE)


@pytest.mark.parametrize(
    ("sources", "why"),
    [
        ({"a": 'import { b } from "./a.js";'}, "modules import each other: a -> a"),
        ({"a": 'import b from "./b.js";'}, "a.js has a line that cannot be bundled: import b"),
        ({"a": "export default 1;"}, "a.js has a line that cannot be bundled: export default"),
        ({"a": "export let b = 1;"}, "a.js has a line that cannot be bundled: export let"),
    ],
)
def test_a_module_that_cannot_be_bundled_is_refused(sources: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        bundle_modules("a", sources.__getitem__)


def test_the_charts_of_the_page_are_those_of_the_report() -> None:
    bundle = bundle_modules("report", lambda name: (STATIC / "js" / f"{name}.js").read_text())
    charts = (STATIC / "js" / "charts.js").read_text()
    assert (
        charts[charts.index("function layout") : charts.index("export function drawLines")]
        in bundle
    )
