"""Tests use what a module shows: a private name of the product changes without notice."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.architecture.source import ROOT, module_name, parse

FOREIGN = {
    "_base_exc": "Ray's wrapper of an error",
    "_exit": "os, documented",
    "_get_default_group": "torch has no public name for it",
    "_load_model_state_pre_hook": "Accelerate's hooks cannot be removed otherwise",
    "_post_accumulate_grad_hooks": "torch has no public name for them",
    "_reset_state": "Accelerate has no public name for it",
    "_set_params_and_buffers_to_ignore_for_model": "DDP's documentation names it so",
    "_set_pg_timeout": "torch has no public name for it",
}
"""Private names of other libraries, each with its reason."""
PRIVATE_LEFT = {
    "tests.api.test_health": {"_all"},
    "tests.distributed.test_collectives": {
        "_engine",
        "_exchange",
        "_exchange_network",
        "_gather_rows",
        "_reduce_in_place",
    },
    "tests.distributed.test_overlap": {"_engine"},
    "tests.distributed.test_s3_storage": {"_filesystem", "_root"},
    "tests.distributed.test_state": {"_engine"},
    "tests.gpu.test_one_card": {"_executor"},
    "tests.unit.accordion.test_compressors": {"_buffers", "_piggybacked_means"},
    "tests.unit.service.test_store": {"_replayed"},
    "tests.unit.workers.test_process_damage": {"_destroyed_at"},
    "tests.unit.workers.test_ray_train_pool": {"_control"},
}
"""Private names of the product that tests still use. The list only shrinks: a row whose name is no
longer used fails.
"""


def find_private_names(tree: ast.Module) -> set[str]:
    """Private attributes of objects whose class or module is not this one."""
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    own = {node.attr for node in attributes if ast.unparse(node.value) in ("self", "cls")}
    own |= {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    used = {node.attr for node in attributes if ast.unparse(node.value) != "super()"}
    return {name for name in used - own if name.startswith("_") and not name.startswith("__")}


def test_tests_use_no_private_name_of_the_product() -> None:
    found = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if names := find_private_names(parse(path)) - FOREIGN.keys():
            found[module_name(path)] = names
    assert dict(found) == PRIVATE_LEFT


def test_a_planted_private_name_is_found() -> None:
    planted = "class A:\n  def _own(self): self._mine = 1\nx._theirs\na._own()\nb._mine\n"
    assert find_private_names(ast.parse(planted)) == {"_theirs"}
