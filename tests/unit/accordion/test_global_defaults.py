"""A default dtype or device set globally by a script does not change the library's tensors."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import accordion
from accordion.compressors import COMPRESSORS
from accordion.config import Config, DetectorConfig, Window
from accordion.session.session import attach
from tests.unit.accordion.alone import Shapes

FACTORIES = {
    "arange",
    "empty",
    "eye",
    "full",
    "linspace",
    "ones",
    "rand",
    "randint",
    "randn",
    "randperm",
    "tensor",
    "zeros",
}
SHAPES = {"small": (40, 30), "large": (300, 450), "vector": (7,)}
"""A layer of every kind: in a stack, in the bucket's own memory, and dense."""


@contextmanager
def defaults(dtype: torch.dtype, device: str) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


def _trained(
    method: str, dtype: torch.dtype, device: str
) -> tuple[list[torch.Tensor], dict[str, float]]:
    """Return parameters and statistic after three steps and the end of an epoch with these
    defaults.
    """
    found = {}
    model = Shapes(SHAPES)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    config = Config(method=method, detector=DetectorConfig(window=Window(epochs=1)))
    with defaults(dtype, device):
        session = attach(
            ddp,
            config,
            optimizer=optimizer,
            overlap=False,
            decider=lambda r, p: found.update(r=r) or p,
        )
        for _ in range(3):
            ddp().backward()
            session.step()
            optimizer.zero_grad()
        session.load_state_dict(session.gather_state_dict())
        session.end_epoch(lr=0.1, next_lr=0.1)
    return [parameter.detach() for parameter in model.parameters()], found["r"].statistic_by_layer


@pytest.mark.parametrize(
    ("dtype", "device"), [(torch.bfloat16, "cpu"), (torch.float64, "cpu"), (torch.float32, "meta")]
)
def test_a_global_default_dtype_or_device_changes_no_number(dtype, device):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for method in COMPRESSORS:
            expected, statistic = _trained(method, torch.float32, "cpu")
            found, other = _trained(method, dtype, device)
            assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True)), method
            assert other == statistic, method
    finally:
        dist.destroy_process_group()


def _is_factory(node: ast.AST) -> bool:
    function = getattr(node, "func", None)
    return isinstance(function, ast.Attribute) and ast.unparse(function) in {
        f"torch.{name}" for name in FACTORIES
    }


def test_every_tensor_that_is_made_names_its_dtype_and_device():
    silent = [
        f"{path.name}:{node.lineno}"
        for path in Path(accordion.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if _is_factory(node)
        and not {"dtype", "device"} <= {keyword.arg for keyword in node.keywords}
    ]
    assert silent == []
