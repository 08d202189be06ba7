"""The report of a job: one HTML page that needs no server, with the charts of the job's page.

A browser runs only the scripts whose digests the page's own content security policy names, and
loads nothing: texts of users can neither run nor send anything, also if the page is opened from a
disk or a mail.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml
from markupsafe import Markup
from pydantic_core import to_json

from accordion_service.api.dashboard.assets import STATIC, list_assets
from accordion_service.api.dashboard.pages import OVERRIDE_STATES, STATUSES, load_templates
from accordion_service.api.dashboard.report_content import (
    MAX_ROWS,
    ReportSource,
    list_figures,
    list_levels,
    list_tables,
)
from accordion_service.api.dashboard.report_masking import mask_source
from accordion_service.api.dashboard.router import CHARTS, Chart
from accordion_service.api.dashboard.script_bundle import bundle_modules
from accordion_service.domain.jobs.removed_output import describe_removed_history
from accordion_service.domain.jobs.status_table import STATUS_TABLE
from accordion_service.domain.jobs.statuses import Kind
from accordion_service.store.reads.report import ReportLimits
from accordion_service.store.reads.thinned_history import HistoryShare

REPORT_CHARTS = (
    *CHARTS,
    Chart(id="workers", title="Workers", note="at the end of the epoch"),
)
_MAX_EPOCHS = 200
"""Most epochs in the charts and tables, as many as the job's page loads at once."""
_MIN_EPOCHS = 20
_MAX_CELLS = 60_000
"""Most pairs of epoch and layer, as long as `_MIN_EPOCHS` epochs fit: of a model with very many
layers, fewer epochs and decisions are shown.
"""
_EPOCH_FIELDS = {
    "epoch",
    "step",
    "loss",
    "metrics",
    "lr",
    "local_steps",
    "agreement",
    "world_size",
    "bytes",
    "seconds_by_phase",
    "regime_by_layer",
    "level_by_layer",
}
"""Fields of an epoch that the charts draw."""
_DECISION_FIELDS = {
    "epoch",
    "step",
    "change_by_layer",
    "override_by_layer",
    "batch_override",
    "local_steps_override",
}
"""Fields of a decision that the charts draw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPage:
    """A report in UTF-8, in pieces, so that all reports share the large one in memory."""

    pieces: tuple[bytes, ...]
    policy: str
    """Content security policy of the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scripts:
    """Scripts of every report."""

    html: bytes
    """Elements with the scripts, and the end of the page."""
    sources: str
    """Sources of scripts in the content security policy."""


_NO_SCRIPTS = _Scripts(html=b"</body>\n</html>\n", sources="'none'")


def choose_limits(num_layers: int) -> ReportLimits:
    """Return how much of a history is read for a report of a job with so many layers."""
    fitting = max(_MIN_EPOCHS, _MAX_CELLS // max(1, num_layers))
    return ReportLimits(
        history=HistoryShare(
            epochs=min(_MAX_EPOCHS, fitting),
            # Half as many again, for those after the last epoch.
            decisions=min(MAX_ROWS, fitting * 3 // 2),
        ),
        items=MAX_ROWS,
    )


def build_report(source: ReportSource) -> ReportPage:
    """Build the report of a job.

    Raises:
        SettingsError: plotly, which contains the chart code, is not installed.
    """
    source = mask_source(source)
    job, charts = source.job, REPORT_CHARTS if source.epochs else ()
    scripts = _load_scripts() if charts else _NO_SCRIPTS
    policy = (
        f"default-src 'none'; script-src {scripts.sources}; style-src 'unsafe-inline';"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    html = (
        load_templates()
        .get_template("report.html")
        .render(
            job=job,
            is_guest=job.kind is Kind.GUEST,
            tone=STATUS_TABLE[job.status].tone,
            policy=policy,
            style=Markup(_read_style()),  # noqa: S704 - a file of ours
            statuses=STATUSES,
            override_states=OVERRIDE_STATES,
            figures=list_figures(source),
            why=source.why,
            charts=charts,
            levels=list_levels(job.spec),
            tables=list_tables(source),
            log_lines=source.log_lines,
            spec=yaml.safe_dump(job.spec, sort_keys=False, allow_unicode=True),
            num_shown=len(source.epochs),
            num_epochs=source.num_epochs,
            removed=describe_removed_history(source.events_removed, source.log_bytes_removed),
            written_at=source.written_at,
            data=Markup(_dump_for_script(_collect_chart_data(source))),  # noqa: S704 - escaped
        )
    )
    return ReportPage(pieces=(html.encode(errors="replace"), scripts.html), policy=policy)


def _collect_chart_data(source: ReportSource) -> dict[str, Any]:
    """Return what `report.js` draws."""
    policy = source.job.spec.get("policy")
    layers = [row.layer for row in source.schedule.layers]
    return {
        "epochs": [row.model_dump(include=_EPOCH_FIELDS) for row in source.epochs],
        "decisions": [
            {"decision": {name: getattr(view.decision, name) for name in _DECISION_FIELDS}}
            for view in source.decisions
        ],
        "layers": layers or list(source.epochs[-1].level_by_layer if source.epochs else ()),
        "threshold": policy.get("threshold") if isinstance(policy, dict) else None,
        "overrides": [row.model_dump(exclude={"ack_list"}) for row in source.overrides],
        "events": list(source.events),
    }


def _dump_for_script(data: Any) -> str:
    """Return JSON that cannot end the element around it; numbers that are not finite are null."""
    text = to_json(data, inf_nan_mode="null").decode()
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@cache
def _read_style() -> str:
    return list_assets()["style.css"].path.read_text()


@cache
def _load_scripts() -> _Scripts:
    plotly = list_assets()["plotly.min.js"].path.read_text()
    charts = bundle_modules("report", lambda name: (STATIC / "js" / f"{name}.js").read_text())
    scripts = [_prepare_inline(plotly), _prepare_inline(charts)]
    elements = "\n".join(f"<script>{script}</script>" for script in scripts)
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    return _Scripts(
        html=f"{elements}\n</body>\n</html>\n".encode(),
        sources=" ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests),
    )


def _prepare_inline(script: str) -> str:
    """Return a script that cannot end its element; browsers compute digests with these line ends.

    In scripts of ours and of plotly, these texts stand only in strings, where the backslash means
    nothing.
    """
    plain = script.replace("\r\n", "\n").replace("\r", "\n")
    return plain.replace("</script", "<\\/script").replace("<!--", "<\\!--")
