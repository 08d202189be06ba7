"""The frame of every report: one HTML page that needs no server, with charts and tables.

A browser runs only the scripts whose digests the page's own content security policy names, and
loads nothing: texts of users can neither run nor send anything, also if the page is opened from a
disk or a mail.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Literal

import yaml
from markupsafe import Markup
from pydantic_core import to_json

from accordion_service.api.dashboard.assets import STATIC, list_assets
from accordion_service.api.dashboard.pages import OVERRIDE_STATES, STATUSES, load_templates
from accordion_service.api.dashboard.report_content import Figure, ReportTable
from accordion_service.api.dashboard.router import Chart
from accordion_service.api.dashboard.script_bundle import bundle_modules

BYTES_SENTENCE = (
    "bytes are those of each worker on the wire; uncompressed are those of gradients in fp32."
)
"""What every report says of its bytes, as the end of a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPage:
    """A report in UTF-8, in pieces, so that all reports share the large one in memory."""

    pieces: tuple[bytes, ...]
    policy: str
    """Content security policy of the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pill:
    """A word beside the title."""

    text: str
    tone: str = ""
    """Name of its color."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageParts:
    """What a report shows: texts, which are no markup and hold no secrets, and the data of its
    charts.
    """

    title: str
    pills: Sequence[Pill] = ()
    kind: str
    """What is reported, such as `Job`."""
    id: str = ""
    about: str = ""
    """Continues the sentence that `kind` and `id` begin."""
    message: str = ""
    is_failed: bool = False
    """Whether the message says why it failed."""
    figures: Sequence[Figure] = ()
    cause_title: str = ""
    cause: str = ""
    """What holds a job up; empty if it is unknown."""
    notes: Sequence[str] = ()
    charts: Sequence[Chart]
    missing_charts: str = ""
    """Sentence in place of charts."""
    levels: Sequence[tuple[str, str]] = ()
    """Legend of the maps of levels by layer; without one, there are no maps."""
    tables: Sequence[ReportTable]
    log_lines: Sequence[str] = ()
    specs: Mapping[str, Any]
    """Specs by their titles."""
    measured: str
    """How the numbers were measured."""
    script: Literal["report", "comparison"]
    """Module that draws the charts."""
    data: Any
    """What it draws."""
    written_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scripts:
    """Scripts of a report."""

    html: bytes
    """Elements with the scripts, and the end of the page."""
    sources: str
    """Sources of scripts in the content security policy."""


_NO_SCRIPTS = _Scripts(html=b"</body>\n</html>\n", sources="'none'")


def build_page(parts: PageParts) -> ReportPage:
    """Build a report of its parts.

    Raises:
        SettingsError: plotly, which contains the chart code, is not installed.
    """
    scripts = _load_scripts(parts.script) if parts.charts else _NO_SCRIPTS
    policy = (
        f"default-src 'none'; script-src {scripts.sources}; style-src 'unsafe-inline';"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    html = (
        load_templates()
        .get_template("report.html")
        .render(
            parts=parts,
            policy=policy,
            style=Markup(_read_style()),  # noqa: S704 - a file of ours
            statuses=STATUSES,
            override_states=OVERRIDE_STATES,
            specs={
                title: yaml.safe_dump(spec, sort_keys=False, allow_unicode=True)
                for title, spec in parts.specs.items()
            },
            data=Markup(_dump_for_script(parts.data)),  # noqa: S704 - escaped
        )
    )
    return ReportPage(pieces=(html.encode(errors="replace"), scripts.html), policy=policy)


def _dump_for_script(data: Any) -> str:
    """Return JSON that cannot end the element around it; numbers that are not finite are null."""
    text = to_json(data, inf_nan_mode="null").decode()
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@cache
def _read_style() -> str:
    return list_assets()["style.css"].path.read_text()


@cache
def _load_scripts(entry: str) -> _Scripts:
    plotly = list_assets()["plotly.min.js"].path.read_text()
    charts = bundle_modules(entry, lambda name: (STATIC / "js" / f"{name}.js").read_text())
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
