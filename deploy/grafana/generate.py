"""Write the Grafana dashboards from `panels.py` and `service_panels.py`; the same input gives the
same bytes.

python deploy/grafana/generate.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from panels import ANNOTATIONS, ROWS, Panel, Query, Row
from service_panels import SERVICE_ANNOTATIONS, SERVICE_ROWS

COLUMNS = 24
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
FOLDER = Path(__file__).parent / "dashboards"
PanelBuilder = timeseries.Panel | stat.Panel | statetimeline.Panel


def main() -> None:
    """Write every dashboard to its file."""
    for name, text in build_dashboards().items():
        (FOLDER / f"{name}.json").write_text(text)


def build_dashboards() -> dict[str, str]:
    """Build the dashboards *Job* and *Service* as JSON, by name."""
    job = _board(
        "job", "One training job: learning, decisions of the controller, traffic and step time."
    ).with_variable(_job_variable())
    service = _board(
        "service",
        "The service itself: requests, scheduler, nodes, records, queue, database, streams and"
        " webhooks.",
    )
    return {
        "job": _encode(job, ROWS, ANNOTATIONS),
        "service": _encode(service, SERVICE_ROWS, SERVICE_ANNOTATIONS),
    }


def _board(name: str, description: str) -> dashboard.Dashboard:
    others = (
        dashboard.DashboardLink("Accordion")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags(["accordion"])
        .keep_time(True)
    )
    return (
        dashboard.Dashboard(f"Accordion: {name}")
        .uid(f"accordion-{name}")
        .description(description)
        .tags(["accordion"])
        .link(others)
        .time("now-15m", "now")
        .refresh("5s")
        .timezone("browser")
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
        )
    )


def _encode(
    board: dashboard.Dashboard, rows: tuple[Row, ...], annotations: Mapping[str, tuple[str, str]]
) -> str:
    for name, (colour, expr) in annotations.items():
        board.annotation(_annotation(name, colour, expr))
    for part in _placed(rows):
        if isinstance(part, dashboard.Row):
            board.with_row(part)
        else:
            board.with_panel(part)
    return str(JSONEncoder(sort_keys=True, indent=2).encode(board.build())) + "\n"


def _job_variable() -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable("job_id")
        .label("Job")
        .datasource(SOURCE)
        .query("label_values(accordion_job_info, job_id)")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_DESC)
    )


def _annotation(name: str, colour: str, expr: str) -> dashboard.AnnotationQuery:
    return (
        dashboard.AnnotationQuery()
        .name(name)
        .datasource(SOURCE)
        .enable(True)
        .icon_color(colour)
        .expr(expr)
    )


def _placed(rows: tuple[Row, ...]) -> Iterator[dashboard.Row | PanelBuilder]:
    """Yield rows and panels, placed from left to right and top to bottom."""
    y = 0
    ids = count(1)
    for row in rows:
        yield (
            dashboard.Row(row.title)
            .id(next(ids))
            .grid_pos(models.GridPos(h=1, w=COLUMNS, x=0, y=y))
        )
        y, x, height = y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                y, x, height = y + height, 0, 0
            yield _panel(panel, models.GridPos(h=panel.height, w=panel.width, x=x, y=y)).id(
                next(ids)
            )
            x, height = x + panel.width, max(height, panel.height)
        y += height


def _panel(panel: Panel, place: models.GridPos) -> PanelBuilder:
    builder = {"timeseries": _timeseries, "stat": _stat, "timeline": _timeline}[panel.kind](panel)
    builder.title(panel.title).description(panel.description).unit(panel.unit).datasource(
        SOURCE
    ).grid_pos(place)
    if panel.values:
        builder.mappings([_mapping(panel)])
    for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
        builder.with_target(_target(letter, query))
    return builder


def _timeseries(panel: Panel) -> timeseries.Panel:
    builder = (
        timeseries.Panel().line_width(2).fill_opacity(40 if panel.stacked else 0).span_nulls(False)
    )
    if panel.stacked:
        builder.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    return builder


def _stat(panel: Panel) -> stat.Panel:
    by_name = panel.unit == "string"
    mode = common_models.BigValueTextMode.NAME if by_name else common_models.BigValueTextMode.VALUE
    newest = common.ReduceDataOptions().calcs(["lastNotNull"])
    return (
        stat.Panel()
        .text_mode(mode)
        .graph_mode(common_models.BigValueGraphMode.NONE)
        .reduce_options(newest)
    )


def _timeline(_: Panel) -> statetimeline.Panel:
    return statetimeline.Panel().merge_values(True).show_value(common_models.VisibilityMode.AUTO)


def _mapping(panel: Panel) -> models.ValueMap:
    options = {
        str(value): models.ValueMappingResult(text=text, color=colour, index=value)
        for value, (text, colour) in panel.values.items()
    }
    return models.ValueMap(options=options)


def _target(letter: str, query: Query) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery()
        .ref_id(letter)
        .datasource(SOURCE)
        .expr(query.expr)
        .legend_format(query.legend)
        .range()
    )


if __name__ == "__main__":
    main()
