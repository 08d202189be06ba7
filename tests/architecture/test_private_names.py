"""Tests use what a module shows: a private name of the product changes without notice."""

from __future__ import annotations

import ast

from tests.architecture.source import ROOT, module_name, parse

FOREIGN = {
    "_base_exc": "Ray's wrapper of an error",
    "_exit": "os, documented",
    "_get_default_group": "torch has no public name for it",
    "_hf_peft_config_loaded": "Transformers has no public name for it",
    "_load_model_state_pre_hook": "Accelerate's hooks cannot be removed otherwise",
    "_post_accumulate_grad_hooks": "torch has no public name for them",
    "_reset_state": "Accelerate has no public name for it",
    "_set_params_and_buffers_to_ignore_for_model": "DDP's documentation names it so",
    "_set_pg_timeout": "torch has no public name for it",
}
"""Private names of other libraries, each with its reason."""
PRIVATE_LEFT = {
    "tests.distributed.test_collectives": 3,
    "tests.distributed.test_overlap": 1,
    "tests.distributed.test_object_storage": 2,
    "tests.distributed.test_state": 1,
    "tests.gpu.test_one_card": 1,
    "tests.unit.accordion.test_allocations": 1,
    "tests.unit.accordion.test_compressors": 1,
    "tests.unit.accordion.test_host_waits": 1,
    "tests.unit.accordion_ray.test_train_context": 1,
    "tests.unit.workers.test_memory": 3,
    "tests.unit.workers.test_process_damage": 1,
    "tests.unit.workers.test_ray_train_pool": 1,
}
"""Number of private names of the product that tests still use, by module. It only shrinks: a row
that names more than there are fails.
"""


def find_private_names(tree: ast.Module) -> set[str]:
    """Private attributes that are used or patched, of objects whose class or module is not this
    one.
    """
    nodes = list(ast.walk(tree))
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    own = {node.attr for node in attributes if ast.unparse(node.value) in ("self", "cls")}
    own |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    used = {node.attr for node in attributes if ast.unparse(node.value) != "super()"}
    used |= {name for node in nodes if isinstance(node, ast.Call) for name in patched_names(node)}
    return {name for name in used - own if name.startswith("_") and not name.startswith("__")}


def patched_names(call: ast.Call) -> list[str]:
    """Names that a call of `setattr` patches."""
    is_patch = isinstance(call.func, ast.Attribute) and call.func.attr == "setattr"
    texts = [argument.value for argument in call.args[:2] if isinstance(argument, ast.Constant)]
    return [str(text).rpartition(".")[2] for text in texts] if is_patch else []


def test_tests_use_no_private_name_of_the_product() -> None:
    found = {
        module_name(path): find_private_names(parse(path)) - FOREIGN.keys()
        for path in sorted((ROOT / "tests").rglob("*.py"))
    }
    num_found = {module: len(names) for module, names in found.items() if names}
    assert num_found == PRIVATE_LEFT, found


def test_a_planted_private_name_is_found() -> None:
    planted = "class A:\n  def _own(self): self._mine = 1\nx._theirs\na._own()\nb._mine\n"
    patches = "patch.setattr(module, '_patched', 1)\npatch.setattr('module._dotted', 1)\n"
    found = find_private_names(ast.parse(planted + patches))
    assert found == {"_theirs", "_patched", "_dotted"}
