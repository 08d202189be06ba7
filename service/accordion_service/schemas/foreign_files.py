"""Recognizes files of other tools that were given as a job file, and translates their keys once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SCRIPT = "task: {name: script, options: {file: train.py, args: --data cifar}}"
_GPUS = "workers: {gpus: 1}"
_WORKERS = "workers: {min: 1, max: 4}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ForeignFile:
    name: str
    marks: frozenset[str]
    """Keys of which all are in such a file, and none in a job file."""
    kind: str = ""
    """Value of its key `kind`; empty without one."""
    ours: Mapping[str, str]
    """What a job file says instead, by the path of the other tool's key."""


_KUBERNETES = frozenset({"apiVersion", "kind", "spec"})
_FILES = (
    _ForeignFile(
        name="a SkyPilot task",
        marks=frozenset({"run", "resources"}),
        ours={
            "run": _SCRIPT,
            "workdir": "code: ./FOLDER",
            "setup": "pip: [einops==0.8.1]",
            "envs": "env: {NAME: value}",
            "secrets": "env: {NAME: {secret: NAME}}",
            "num_nodes": _WORKERS,
            "resources.accelerators": _GPUS,
            "resources.cpus": "workers: {cpus: 4}",
            "resources.use_spot": "nothing, since every job survives the loss of its nodes",
            "file_mounts": "data: {cifar: s3://BUCKET/cifar.zip}",
        },
    ),
    _ForeignFile(
        name="a PyTorchJob",
        marks=_KUBERNETES,
        kind="PyTorchJob",
        ours={
            "metadata.name": "name: NAME",
            "spec.pytorchReplicaSpecs": f"{_SCRIPT}, {_WORKERS}",
            "spec.elasticPolicy": _WORKERS,
            "spec.runPolicy.backoffLimit": "max_failures: 3",
            "spec.nprocPerNode": _GPUS,
        },
    ),
    _ForeignFile(
        name="a RayJob",
        marks=_KUBERNETES,
        kind="RayJob",
        ours={
            "metadata.name": "name: NAME",
            "spec.entrypoint": _SCRIPT,
            "spec.runtimeEnvYAML": "pip: [einops==0.8.1], env: {NAME: value}, code: ./FOLDER",
            "spec.rayClusterSpec": f"{_WORKERS}; the service has a cluster already",
            "spec.backoffLimit": "max_failures: 3",
        },
    ),
    _ForeignFile(
        name="a configuration of Accelerate",
        marks=frozenset({"distributed_type", "num_processes"}),
        ours={
            "num_processes": _WORKERS,
            "num_machines": _WORKERS,
            "mixed_precision": "training: {precision: bf16}",
            "distributed_type": f"{_SCRIPT}, whose workers train data-parallel",
        },
    ),
)


def translate_foreign(body: Any) -> list[tuple[str, str]]:
    """Return the place of each key of another tool that a job file says otherwise, as a JSON
    pointer, with a sentence; empty for a file of no known tool.

    Args:
        body: the refused job file.
    """
    if not isinstance(body, Mapping):
        return []
    for known in _FILES:
        if known.marks <= body.keys() and (not known.kind or body["kind"] == known.kind):
            found = [(path, ours) for path, ours in known.ours.items() if _has(body, path)]
            found = found or [("kind", _SCRIPT)]
            return [
                (f"/{path.replace('.', '/')}", f"is of {known.name}; in a job file: {ours}")
                for path, ours in found
            ]
    return []


def _has(body: Mapping[str, Any], path: str) -> bool:
    place: Any = body
    for key in path.split("."):
        if not isinstance(place, Mapping) or key not in place:
            return False
        place = place[key]
    return True
