"""The report of a job: what it shows, and what it never contains."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import pytest

from accordion_service.api.dashboard.assets import STATIC
from accordion_service.api.dashboard.report_content import MAX_ROWS, list_figures, list_tables
from accordion_service.api.dashboard.report_page import build_report, choose_limits
from accordion_service.api.dashboard.script_bundle import bundle_modules
from accordion_service.domain.jobs.shareable_spec import TextMask, hide_secrets
from accordion_workers.spec.public_records import Bytes
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
    assert "best of the epochs shown (largest)" in page.text
    assert "200 of 10000 are shown" in page.text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"events_removed": 1}, "No longer kept: 1 older event. ACCORDION_MAX_EVENTS"),
        ({"log_bytes_removed": 2_040_000}, "No longer kept: 2.04 MB of older output. ACCORDION_"),
        (
            {"events_removed": 2, "log_bytes_removed": 300_000},
            "No longer kept: 2 older events and 300 kB of older output. ACCORDION_",
        ),
    ],
)
def test_a_report_says_which_part_of_the_history_was_removed(
    changes: dict[str, int], said: str
) -> None:
    assert said in render(make_source(**changes)).text


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


def test_every_table_says_how_much_is_left_out() -> None:
    events = [make_event("status", status="RUNNING", message="", attempt=1)]
    whole = {"epochs": 9, "decisions": 9, "overrides": 9, "attempts": 9, "events": 9}
    counts = {f"num_{name}": count for name, count in whole.items()}
    source = make_source(2, overrides=[make_override(1)], events=events, **counts)
    notes = {table.id: table.note for table in list_tables(source)}
    for table in ("overrides", "changes", "attempts"):
        assert notes[table].endswith("1 of 9 are shown")
    for table in ("epochs", "decisions", "seconds"):
        assert notes[table].endswith("2 of 9 are shown")


@pytest.mark.parametrize(
    ("layers", "epochs", "decisions"),
    [(0, 200, 300), (3, 200, 300), (600, 100, 150), (3000, 20, 30), (100_000, 20, 30)],
)
def test_a_model_of_many_layers_has_fewer_epochs_and_decisions_in_its_report(
    layers: int, epochs: int, decisions: int
) -> None:
    limits = choose_limits(layers)
    assert (limits.history.epochs, limits.history.decisions) == (epochs, decisions)


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("db_password", 123456789), ("api-key", "s3cret"), ("access_key", "s3cret")),
        *(("pwd", "s3cret"), ("auth_tokens", ["s3cret"]), ("apiKey", "s3cret")),
        *(("args", "--lr 0.1 --api-key s3cret"), ("credentials", {"user": {"x": "s3cret"}})),
    ],
)
def test_values_under_secret_names_are_left_out(name: str, value: Any) -> None:
    task = {"name": "mine", "options": {name: value, "max_tokens": 512, "use_token": True}}
    hidden = hide_secrets({"task": task})
    assert not re.search("s3cret|123456789", json.dumps(hidden))
    kept = {"max_tokens": 512, "use_token": True}
    assert {key: hidden["task"]["options"][key] for key in kept} == kept


def test_a_secret_is_told_from_the_reference_to_one() -> None:
    spec = {
        "env": {"A": {"secret": "hf"}, "B": {"x": "s3cret"}, "secret": "s3cret"},
        "task": {"options": {"secret": "s3cret"}},
    }
    assert hide_secrets(spec)["env"]["A"] == {"secret": "hf"}
    assert "s3cret" not in json.dumps(hide_secrets(spec))


def test_secrets_are_left_out_of_messages_and_output() -> None:
    said = "KeyError: 's3cret-value' at https://me:s3cret@host/a?sig=s3cret, key 987654321"
    spec = SPEC | {
        "env": {"TOKEN": "s3cret-value", "SHORT": "error"},
        "task": {"name": "mine", "options": {"api_key": 987654321}},
    }
    source = make_source(
        1,
        job=make_job(1, spec=spec, status="FAILED", message=said, labels={"pwd": "s3cret"}),
        why=make_source(1).why.model_copy(update={"sentence": said}),
        overrides=[make_override(1, reason=said, message=said)],
        attempts=[make_attempt(message=said)],
        events=[make_event("status", status="FAILED", message=said, attempt=1)],
        log_lines=[said, f"{'x' * 1995}s3cret-value"],
    )
    html = b"".join(build_report(source).pieces).decode()
    assert not re.search("s3cret|987654321", html)
    assert html.count("https://***@host/a?***") >= 6
    assert html.count("KeyError") >= 6


@pytest.mark.parametrize(("num_values", "length"), [(300, 9), (4, 30_000)])
def test_output_beside_very_many_or_large_secrets_is_left_out(num_values: int, length: int) -> None:
    keys = "\n".join(f"key-{n:05}".ljust(length, "x") for n in range(num_values))
    assert TextMask({"env": {"KEYS": keys}}).apply("key-00001 of 300") == "***"


@pytest.mark.parametrize("begin", range(1985, 2010, 3))
def test_a_text_is_cut_without_leaving_a_part_of_a_secret_at_its_end(begin: int) -> None:
    mask = TextMask({"env": {"KEY": "s3cret-value"}})
    texts = {"lines": ["x" * begin + "s3cret-value" + "x" * 9000], "short": "s3cret-value!"}
    masked = mask.apply_to_texts(texts)
    assert masked["short"] == "***!"
    assert re.fullmatch("[x*]+", masked["lines"][0])
    assert len(masked["lines"][0]) <= 2000


@pytest.mark.parametrize("secret", ["s3cret" * 200, "s3cret-value"])
@pytest.mark.parametrize("between", ["", " "])
def test_a_secret_at_which_a_long_text_is_cut_stays_hidden(secret: str, between: str) -> None:
    masked = TextMask({"env": {"KEY": secret}}).apply(between.join([secret] * 1000))
    assert not set("s3") & set(masked)


def test_a_login_at_which_a_long_text_is_cut_stays_hidden() -> None:
    token = "s3cret" * 200
    line = f"{token} {token} {token} at https://me:{'word' * 1000}@host/"
    assert TextMask({"env": {"KEY": token}}).apply(line) == "*** *** *** at https://***"


def test_numbers_that_are_not_finite_do_not_break_the_charts() -> None:
    decision = make_decision(0, change_by_layer={"fc1": float("inf"), "fc2": float("nan")})
    [drawn] = data_of(render(make_source(1, decisions=[decision])))["decisions"]
    assert drawn["decision"]["change_by_layer"] == {"fc1": None, "fc2": None}


def test_the_chart_of_the_rate_has_the_local_steps() -> None:
    epochs = [make_epoch(0, local_steps=4), make_epoch(1, local_steps=16)]
    drawn = data_of(render(make_source(2, epochs=epochs)))["epochs"]
    assert [(row["lr"], row["local_steps"]) for row in drawn] == [(0.1, 4), (0.1, 16)]


def test_the_bytes_of_each_method_are_shown_largest_first() -> None:
    sent = {"payload": 60, "wire": 100, "payload_by_method": {"none": 20, "qsgd": 40}}
    sent["wire_by_method"] = {"none": 25, "qsgd": 75}
    job = make_job(2)
    progress = job.progress.model_copy(update={"bytes": Bytes(**sent)})
    source = make_source(2, job=job.model_copy(update={"progress": progress}))
    rows = [("qsgd", "40 B", "75 B", "75 %"), ("none", "20 B", "25 B", "25 %")]
    assert cells_of(source, "methods") == rows
    assert cells_of(make_source(2), "methods") == []


def test_overrides_and_decisions_have_who_and_why() -> None:
    override = make_override(1)
    held = dict.fromkeys(LAYERS, override.id)
    decision = make_decision(1, reason="override 1 holds", override_by_layer=held)
    source = make_source(2, overrides=[override], decisions=[make_decision(0), decision])
    [row] = cells_of(source, "overrides")
    assert {"bob", "the loss jumped", "1 to end", "APPLIED"} <= set(row)
    first, second = cells_of(source, "decisions")
    assert (first[-1], second[-1]) == ("policy", "policy, override #1 by bob")
    assert any("override #1" in cell and "holds" in cell for cell in second)


def test_overrides_of_the_whole_model_have_what_they_set() -> None:
    overrides = [
        make_override(1, target="batch", level=512),
        make_override(2, target="local_steps", level=8),
        make_override(3, target="lr", level={"factor": 0.5}),
    ]
    held = {"lr": overrides[2].id}
    decision = make_decision(1, local_steps_override=overrides[1].id, optimizer_overrides=held)
    source = make_source(2, overrides=overrides, decisions=[decision])
    names = ["batch 512", "local steps 8", "learning rate factor=0.5"]
    assert [row[1] for row in cells_of(source, "overrides")] == names
    assert cells_of(source, "decisions")[0][-1] == "policy, override #2 by bob, override #3 by bob"
    [drawn] = data_of(render(source))["decisions"]
    assert drawn["decision"]["local_steps_override"] == overrides[1].id
    assert drawn["decision"]["optimizer_overrides"] == held


def test_an_attempt_begins_when_its_workers_are_allocated_as_elsewhere() -> None:
    attempt = make_attempt(started_at=BEGIN + timedelta(minutes=5))
    [row] = cells_of(make_source(attempts=[attempt]), "attempts")
    assert row[2] == "2026-11-25 12:00:00 UTC"


def test_the_time_of_a_job_with_several_attempts_says_that_pauses_count() -> None:
    figures = list_figures(make_source(2, job=make_job(2, attempt=2)))
    [note] = [figure.note for figure in figures if figure.label == "Time"]
    assert note.endswith(", with the time between its attempts")


def test_faults_are_shown_with_their_cause() -> None:
    lost = make_event(
        "workers", what="failed", cause="infrastructure", rank=1, step=9, message="rank 1 died"
    )
    older = make_event("workers", what="started")
    sizes = {"previous_world_size": 1, "world_size": 2, "why": "x", "steps_rolled_back": 0}
    odd = make_event("workers", what="started", cause="resize", seconds_lost="3", **sizes)
    rows = cells_of(make_source(1, events=[lost, older, odd]), "changes")
    unreadable = "an event that this version cannot read"
    assert [row[2] for row in rows] == ["workers ended: rank 1 died", unreadable, unreadable]


def test_the_result_has_metric_time_and_bytes() -> None:
    shown = {figure.label: (figure.value, figure.note) for figure in list_figures(make_source(4))}
    assert shown["Final accuracy"] == ("87.5 %", "best (largest): 87.5 % in epoch 3")
    assert shown["Bytes sent"] == ("8 kB", "by each worker; 32 kB uncompressed")
    assert shown["Compression"][0] == "4.0x"
    assert shown["Time"][0] == "90 s"
    assert shown["Workers"] == ("2", "1 to 2 allowed")


def test_the_result_is_the_newest_evaluation_though_later_epochs_have_none() -> None:
    epochs = [make_epoch(n, metrics={"accuracy": 0.1 * n} if n == 5 else {}) for n in range(9)]
    figure = list_figures(make_source(9, epochs=epochs))[0]
    assert (figure.label, figure.value) == ("Final accuracy", "50.0 %")
    assert figure.note == "in epoch 5; best (largest): 50.0 % in epoch 5"
    thinned = make_source(
        2,
        job=make_job(2, metrics={"accuracy": 0.75}),
        epochs=[make_epoch(n, metrics={}) for n in (0, 99)],
        num_epochs=100,
    )
    assert list_figures(thinned)[0].value == "75.0 %"


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
