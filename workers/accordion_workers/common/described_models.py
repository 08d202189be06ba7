"""Base of the records whose attribute docstrings become descriptions of their fields, for example
in the REST API.

They are read when a schema is made, which only the api does. `use_attribute_docstrings` of pydantic
reads them when a class is defined, and each command of the command line would wait for that.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema

_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


class DescribedModel(BaseModel):
    """A model whose attribute docstrings are the descriptions in its JSON schema, and those of the
    dataclasses inside of it.
    """

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Make the JSON schema, and add the descriptions."""
        schema = handler(core_schema)
        fields = handler.resolve_ref_schema(schema).get("properties", {})
        _require_patterns_of_names(fields)
        for field in fields.values():
            _name_bounds(field)
        for owner in cls.__mro__[: cls.__mro__.index(DescribedModel)]:
            _describe_fields(fields, owner)
        types = (field.annotation for field in cls.model_fields.values())
        found = {one.__name__: one for kind in types for one in _list_dataclasses(kind)}
        if found:
            _describe_dataclasses(fields, found, handler)
        return schema


def read_docstrings(owner: type) -> list[tuple[str, str]]:
    """Return name and docstring of each documented attribute of a module's top-level class."""
    return _read_module(owner.__module__).get(owner.__qualname__, [])


def build_models() -> None:
    """Build all imported models, so that a wrong one is found now and not in a request."""
    models: list[type[BaseModel]] = [DescribedModel]
    while models:
        model = models.pop()
        model.model_rebuild()
        models += model.__subclasses__()


def _require_patterns_of_names(fields: dict[str, Any]) -> None:
    """Say with `propertyNames` what the names in mappings match: pydantic writes
    `patternProperties`, which also allow all other names.
    """
    for field in fields.values():
        for pattern, values in field.pop("patternProperties", {}).items():
            field["additionalProperties"] = values
            field["propertyNames"] = {**field.get("propertyNames", {}), "pattern": pattern}


def _name_bounds(schema: dict[str, Any]) -> None:
    """Name bounds by the keywords of JSON schema: pydantic writes `ge` where a type has a validator
    of its own.
    """
    for name, keyword in _BOUNDS.items():
        if name in schema:
            schema[keyword] = schema.pop(name)
    for part in filter(None, [*schema.get("anyOf", ()), schema.get("items")]):
        _name_bounds(part)


def _describe_fields(fields: dict[str, Any], owner: type) -> None:
    for name, text in read_docstrings(owner):
        if name in fields:
            fields[name].setdefault("description", text)


def _describe_dataclasses(
    schema: Any, owners: dict[str, type], handler: GetJsonSchemaHandler
) -> None:
    """Describe the fields of the dataclasses that a schema refers to; each is taken from `owners`,
    which has them by name.
    """
    for reference in _list_references(schema):
        definition = handler.resolve_ref_schema(reference)
        owner = owners.pop(definition.get("title", ""), None)
        if owner is not None:
            _describe_fields(definition["properties"], owner)
            _describe_dataclasses(definition, owners, handler)


def _list_dataclasses(annotation: Any) -> Iterator[type]:
    """Yield the dataclasses in a type, and those in their fields."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        yield annotation
        for hint in get_type_hints(annotation).values():
            yield from _list_dataclasses(hint)
    for part in get_args(annotation):
        yield from _list_dataclasses(part)


def _list_references(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema
        schema = list(schema.values())
    for part in schema if isinstance(schema, list) else ():
        yield from _list_references(part)


@cache
def _read_module(module: str) -> dict[str, list[tuple[str, str]]]:
    """Return the attributes of each class at the top of a module, with their docstrings."""
    source = ast.parse(inspect.getsource(sys.modules[module]))
    return {
        node.name: list(_list_docstrings(node))
        for node in source.body
        if isinstance(node, ast.ClassDef)
    }


def _list_docstrings(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for statement, following in pairwise(node.body):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, inspect.cleandoc(text)
