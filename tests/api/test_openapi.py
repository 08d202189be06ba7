"""The schema of the REST API: its routes and names, and a description for every field."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from accordion.base.options import options_schema
from accordion.compressors import COMPRESSORS
from accordion.policies import POLICIES
from accordion_service.api.app import create_app
from accordion_service.schemas.overrides import OverrideRequest
from accordion_service.settings.settings import load_settings
from accordion_workers.records.contract import JobSpec
from accordion_workers.tasks import SCRIPT, SCRIPT_ROW, TASKS
from tests.programs import run_program

NAMES = Path(__file__).with_name("rest_names.txt")
"""Names that programs of users rely on: one line for each route, with its parameters, and for each
model, with its fields.
"""


@pytest.fixture(scope="session")
def schema(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The schema, which is made without a query of a database."""
    app = create_app(load_settings(home=tmp_path_factory.mktemp("home"), no_auth=True))
    app.state.accordion.database.close()
    return app.openapi()


def undescribed(name: str, part: Mapping[str, Any]) -> Iterator[str]:
    """Fields of a model that have no description."""
    for field, value in part.get("properties", {}).items():
        if not value.get("description"):
            yield f"{name}.{field}"


def parameters(schema: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            for parameter in operation.get("parameters", ()):
                yield f"{method} {path} {parameter['name']}", parameter


def list_names(schema: Mapping[str, Any]) -> Iterator[str]:
    for path, operations in sorted(schema["paths"].items()):
        for method, operation in sorted(operations.items()):
            found = (parameter["name"] for parameter in operation.get("parameters", ()))
            yield " ".join([method.upper(), path, *sorted(found)])
    for name, part in sorted(schema["components"]["schemas"].items()):
        yield " ".join([name, *sorted(part.get("properties", part.get("enum", ())))])


def test_no_name_changes_without_notice(schema: dict[str, Any]) -> None:
    assert list(list_names(schema)) == NAMES.read_text().splitlines()


def test_every_field_of_every_public_model_has_a_description(schema: dict[str, Any]) -> None:
    models = schema["components"]["schemas"]
    assert {"JobView", "OverrideRequest", "EventView", "Problem", "ClusterView"} <= models.keys()
    assert [field for name, part in models.items() for field in undescribed(name, part)] == []


def test_a_field_without_description_is_found() -> None:
    part = {"properties": {"size": {"type": "integer"}, "age": {"description": "Seconds."}}}
    assert list(undescribed("Model", part)) == ["Model.size"]


def list_mappings(part: Any) -> Iterator[dict[str, Any]]:
    """Schemas that limit the names in a mapping."""
    if isinstance(part, dict):
        if "propertyNames" in part or "patternProperties" in part:
            yield part
        part = list(part.values())
    for one in part if isinstance(part, list) else ():
        yield from list_mappings(one)


def test_names_outside_the_pattern_of_a_mapping_do_not_match_the_schema(
    schema: dict[str, Any],
) -> None:
    found = list(list_mappings(schema["components"]["schemas"]))
    assert len(found) > 5
    assert [one for one in found if "patternProperties" in one] == []
    spec = schema["components"]["schemas"]["JobSpec-Input"]["properties"]
    limits = {name: spec[name]["maxProperties"] for name in ("labels", "data", "env")}
    assert limits == {"labels": 32, "data": 16, "env": 64}
    names = {"labels": "a b", "data": "Train", "env": "A-B"}
    for field, name in names.items():
        assert not re.search(spec[field]["propertyNames"]["pattern"], name)


def test_every_model_and_parameter_has_a_description(schema: dict[str, Any]) -> None:
    models = schema["components"]["schemas"]
    bare = [name for name, part in models.items() if not part.get("description")]
    bare += [name for name, parameter in parameters(schema) if not parameter.get("description")]
    assert bare == []


def test_every_option_of_a_task_method_or_policy_has_a_description() -> None:
    rows = {**TASKS, SCRIPT: SCRIPT_ROW, **COMPRESSORS, **POLICIES}
    schemas = {name: options_schema(row.options) for name, row in rows.items()}
    assert [field for name, part in schemas.items() for field in undescribed(name, part)] == []


def test_a_wrong_model_stops_the_start_of_the_api(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from accordion_service.schemas.jobs import Answer;"
        " from accordion_service.api.app import create_app;"
        " from accordion_service.settings.settings import load_settings;"
        " Broken = type('Broken', (Answer,), {'__annotations__': {'size': 'Unknown'}});"
        f" create_app(load_settings(home=Path({str(tmp_path)!r}), no_auth=True))"
    )
    done = run_program([sys.executable, "-c", program])
    assert done.returncode == 1
    assert "name 'Unknown' is not defined" in done.stderr


@pytest.mark.parametrize("model", [JobSpec, OverrideRequest])
def test_examples_of_a_request_are_valid(model: Any) -> None:
    examples = model.model_json_schema()["examples"]
    assert len(examples) > 1
    for example in examples:
        model.model_validate(example)
