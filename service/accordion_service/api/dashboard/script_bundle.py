"""Joins modules of the pages into one classic script, which a page without a server can contain."""

from __future__ import annotations

import re
from collections.abc import Callable

_IMPORT = re.compile(r'^import \{([\w\s,]*)\} from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:const|function) (\w+))", re.MULTILINE)
_UNKNOWN = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def bundle_modules(entry: str, read: Callable[[str], str]) -> str:
    """Return one script that does what a module and its imports do. Each module becomes a function
    that is called once, after those of the modules that it imports.

    Args:
        entry: name of the module, without `.js`.
        read: returns the source of a module by its name.

    Raises:
        ValueError: modules import each other, or one has an import or export of another form than
            `import { a, b } from "./name.js";`, `export const` and `export function`.
    """
    wrapped: dict[str, str] = {}
    _add_module(entry, read, wrapped, importers=())
    return '"use strict";\n' + "\n".join(wrapped.values())


def _add_module(
    name: str, read: Callable[[str], str], wrapped: dict[str, str], *, importers: tuple[str, ...]
) -> None:
    if name in importers:
        raise ValueError(f"modules import each other: {' -> '.join((*importers, name))}")
    if name in wrapped:
        return
    source = read(name)
    for imported in _IMPORT.findall(source):
        _add_module(imported[1], read, wrapped, importers=(*importers, name))
    exports = ", ".join(found[1] for found in _EXPORT.findall(source))
    body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const {\1} = module_\2;", source))
    if left := _UNKNOWN.search(body):
        raise ValueError(f"{name}.js has a line that cannot be bundled: {left[0]}")
    wrapped[name] = f"const module_{name} = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();"
