"""Sphinx directives whose content comes from the tables of the code, so that it cannot be old."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from docutils import nodes
from pydantic import BaseModel
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinxcontrib.autodoc_pydantic.inspection import FieldInspector

from accordion.base.options import Option
from accordion.compressors import COMPRESSORS
from accordion.policies import POLICIES
from accordion_service.api.app import create_app
from accordion_service.api.process_metrics import PROCESS_FAMILIES
from accordion_service.schemas.queries import AuditQuery, JobQuery
from accordion_service.settings.setting_list import list_settings
from accordion_service.settings.settings import Settings, load_settings
from accordion_service.views.metrics import FAMILIES
from accordion_workers.common.described_models import read_docstrings
from accordion_workers.spec.job import JobSpec

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "accordion",
    "workers/accordion_workers",
    "workers/accordion_ray",
    "service/accordion_service",
    "service/accordion_client",
)
SOURCE = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
"""A paper, which becomes a link."""


def write_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    lines = [list(head), *(list(row) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(map(_escape, line))} |" for line in lines)


def _escape(cell: str) -> str:
    return SOURCE.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", " ".join(cell.split())).replace(
        "|", "\\|"
    )


def write_methods() -> str:
    """Return the methods of compression, with the options of each."""
    head = ("method", "what it does", "light (`low`)", "strong (`high`)", "residual")
    rows = (
        (f"`{name}`", one.summary, _values(one.low), _values(one.high), _yes(one.feedback))
        for name, one in COMPRESSORS.items()
    )
    return f"{write_table(head, rows)}\n\n{_write_options(COMPRESSORS)}"


def write_policies() -> str:
    """Return the policies, with the options of each."""
    rows = ((f"`{name}`", one.summary) for name, one in POLICIES.items())
    return f"{write_table(('policy', 'what it does'), rows)}\n\n{_write_options(POLICIES)}"


def _write_options(table: Mapping[str, Any]) -> str:
    rows = (
        (f"`{name}`", f"`{option}`", _default(one), _range(one), one.help)
        for name, row in table.items()
        for option, one in row.options.items()
    )
    return write_table(("of", "option", "default", "values", "what it is"), rows)


def _default(option: Option) -> str:
    return "required" if option.required else f"`{option.default}`"


def _range(option: Option) -> str:
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    bounds = ((">=", option.minimum), ("<=", option.maximum))
    return " and ".join(f"{sign} {bound}" for sign, bound in bounds if bound is not None)


def _values(options: Mapping[str, object]) -> str:
    return ", ".join(f"`{name}: {value}`" for name, value in options.items())


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _yes(condition: bool) -> str:
    return "yes" if condition else "no"


def write_settings() -> str:
    """Return all settings, with their defaults."""
    defaults = Settings.model_construct()  # not those of this machine's environment
    descriptions = dict(read_docstrings(Settings))
    rows = (
        (f"`{line.name}`", _code(line.value.replace(str(Path.home()), "~")), descriptions[field])
        for field, line in zip(Settings.model_fields, list_settings(defaults), strict=True)
    )
    return write_table(("variable", "default", "what it does"), rows)


def write_metrics() -> str:
    """Return what `/metrics` exports."""
    families = {**FAMILIES, **PROCESS_FAMILIES}
    rows = ((f"`{name}`", one.kind, one.help) for name, one in families.items())
    return write_table(("metric", "kind", "what it is"), rows)


def write_routes() -> str:
    """Return the routes of the REST API by tag, from its schema."""
    by_tag: dict[str, list[tuple[str, str, str]]] = {}
    for path, methods in _read_schema()["paths"].items():
        for method, route in methods.items():
            tag = next(iter(route.get("tags", ())), "other")
            by_tag.setdefault(tag, []).append(
                (method.upper(), path.removeprefix("/api/v1"), _first(route))
            )
    return "\n\n".join(
        f"## {tag.capitalize()}\n\n{_write_routes_of(rows)}" for tag, rows in by_tag.items()
    )


def _read_schema() -> dict[str, Any]:
    with TemporaryDirectory() as home:
        app = create_app(load_settings(home=Path(home), no_auth=True))
        app.state.accordion.database.close()
        return app.openapi()


def _write_routes_of(rows: Iterable[tuple[str, str, str]]) -> str:
    cells = ((method, f"`{path}`", text) for method, path, text in rows)
    return write_table(("method", "path", "what it does"), cells)


def _first(route: Mapping[str, Any]) -> str:
    """Return the first paragraph of a route's description."""
    return (route.get("description") or route.get("summary", "")).split("\n\n")[0]


def write_filters() -> str:
    """Return the filters of the lists of `Client.jobs` and `Client.audit`."""
    queries: Mapping[str, type[BaseModel]] = {"jobs": JobQuery, "audit": AuditQuery}
    return "\n\n".join(
        f"## Filters of `{name}`\n\n{write_table(('filter', 'what it finds'), _describe(query))}"
        for name, query in queries.items()
    )


def _describe(query: type[BaseModel]) -> Iterator[tuple[str, str]]:
    for name, field in query.model_fields.items():
        yield f"`{name}`", field.description or ""


def write_commands() -> str:
    """Return every command of `accordion` with its arguments and options."""
    from accordion_client.commands.cli_app import app

    return "\n\n".join(_write_command(*found) for found in _walk(app, "accordion"))


def _walk(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name in sorted(group.commands):
        command = group.commands[name]
        path = f"{prefix} {name}"
        if hasattr(command, "commands"):
            yield from _walk(command, path)
        else:
            yield path, command


def _write_command(path: str, command: Any) -> str:
    context = command.make_context(path, [], resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    records = [param.get_help_record(context) for param in command.get_params(context)]
    rows = [(f"`{name}`", text) for name, text in filter(None, records) if "--help" not in name]
    table = write_table(("", "what it is"), rows) if rows else ""
    return f"## {path}\n\n{command.help or ''}\n\n```text\n{path} {usage}\n```\n\n{table}"


def write_parts() -> str:
    """Return the models inside a job file, each once, as autodoc-pydantic documents it."""
    blocks = (
        f"```{{eval-rst}}\n.. autopydantic_model:: {part.__module__}.{part.__qualname__}\n```"
        for part in _find_parts(JobSpec, {})
    )
    return "\n\n".join(blocks)


def _find_parts(model: type[BaseModel], found: dict[type[BaseModel], None]) -> Iterable[Any]:
    for field in model.model_fields.values():
        for part in _models_in(field.annotation):
            if part not in found:
                found[part] = None
                _find_parts(part, found)
    return found


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def write_file_map() -> str:
    """Return every file of the packages with what its docstring says first, by folder."""
    return "\n\n".join(
        f"## {folder.relative_to(ROOT)}\n\n{write_table(('file', 'contents'), rows)}"
        for package in PACKAGES
        for folder in sorted({file.parent for file in (ROOT / package).rglob("*.py")})
        if (
            rows := [(f"`{file.name}`", _first_words(file)) for file in sorted(folder.glob("*.py"))]
        )
    )


def _first_words(file: Path) -> str:
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    return docstring.split("\n\n")[0].rstrip(":.")


def build_directive(write: Callable[[], str]) -> type[SphinxDirective]:
    """Return a directive that is replaced by the Markdown which `write` returns."""

    class Written(SphinxDirective):
        def run(self) -> list[nodes.Node]:
            return self.parse_text_to_nodes(write(), allow_section_headings=True)

    return Written


SINGLE_BACKTICKS = re.compile(r"(?<![`:\w])`([^`]+)`(?![`_])")


def write_literals(*given: Any) -> None:
    """Turn Markdown's `code` in the lines of a docstring into reStructuredText, in place."""
    lines = given[-1]
    lines[:] = SINGLE_BACKTICKS.sub(r"``\1``", "\n".join(lines)).split("\n")


DIRECTIVES: Mapping[str, Callable[[], str]] = {
    "command-line": write_commands,
    "file-map": write_file_map,
    "job-file-parts": write_parts,
    "list-filters": write_filters,
    "methods-table": write_methods,
    "metrics-table": write_metrics,
    "policies-table": write_policies,
    "rest-routes": write_routes,
    "settings-table": write_settings,
}


def _escape_constraints() -> None:
    """Show constraints of fields as code: a pattern may look like a link of reStructuredText."""
    find = FieldInspector.get_constraints

    def escaped(self: FieldInspector, field_name: str) -> dict[str, Any]:
        found = find(self, field_name).items()
        return {key: f"``{value}``" for key, value in found if not callable(value)}

    FieldInspector.get_constraints = escaped  # type: ignore[method-assign]


def _list_filled_pages(_app: Sphinx, env: Any, *_: object) -> list[str]:
    """Return the pages that are filled from the code, which changes when they do not."""
    return [page for page in env.found_docs if page.startswith("reference/")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    for name, write in DIRECTIVES.items():
        app.add_directive(name, build_directive(write))
    app.connect("autodoc-process-docstring", write_literals)
    app.connect("env-get-outdated", _list_filled_pages)
    _escape_constraints()
    return {"parallel_read_safe": True, "parallel_write_safe": True}
