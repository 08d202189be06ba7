"""Base of the records whose attribute docstrings become descriptions of their fields, in the REST API
for example.

They are read when a schema is made, which only the api does. `use_attribute_docstrings` of pydantic
reads them when a class is defined, and each command of the command line would wait for that.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema


class DescribedModel(BaseModel):
    """A model whose attribute docstrings are the descriptions in its JSON schema.

    Fields of a dataclass inside of it are described only with `use_attribute_docstrings`.
    """

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Make the JSON schema, and add the descriptions."""
        schema = handler(core_schema)
        fields = handler.resolve_ref_schema(schema).get("properties", {})
        for owner in cls.__mro__[: cls.__mro__.index(DescribedModel)]:
            for name, text in _read_docstrings(owner.__module__).get(owner.__qualname__, ()):
                if name in fields:
                    fields[name].setdefault("description", text)
        return schema


def build_models() -> None:
    """Build all imported models, so that a wrong one is found now and not in a request."""
    models: list[type[BaseModel]] = [DescribedModel]
    while models:
        model = models.pop()
        model.model_rebuild()
        models += model.__subclasses__()


@cache
def _read_docstrings(module: str) -> dict[str, list[tuple[str, str]]]:
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
