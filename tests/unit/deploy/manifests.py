"""Kustomize's overlays and Helm's chart of deploy/k8s, rendered as for a cluster."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import yaml

from tests.programs import run_program

ROOT = Path(__file__).parents[3]
K8S = ROOT / "deploy/k8s"
CHART = K8S / "chart"


def render_overlay(kubectl: Path, overlay: str, *, folder: Path) -> list[dict[str, Any]]:
    """Objects of an overlay with its secrets, and with all that the one to copy has in comments."""
    deploy = folder / "deploy"
    for name in ("k8s", "grafana"):
        shutil.copytree(ROOT / "deploy" / name, deploy / name)
    secrets = run_program([K8S / "make_secrets.sh"]).stdout
    (deploy / "k8s/overlays/kind/secrets.env").write_text(secrets)
    own = deploy / "k8s/overlays/cluster/kustomization.yaml"
    parts = own.read_text()
    for line in ("components:", "  - ../../monitoring", "  - ../../gpu"):
        assert parts.count(f"\n# {line}") == 1
        parts = parts.replace(f"\n# {line}", f"\n{line}")
    own.write_text(re.sub(r"^  # (- target|  )", r"  \1", parts, flags=re.MULTILINE))
    return kustomize(kubectl, deploy / "k8s/overlays" / overlay)


def kustomize(kubectl: Path, folder: Path) -> list[dict[str, Any]]:
    """Objects that Kustomize makes of a folder."""
    said = run_program([kubectl, "kustomize", folder])
    assert said.returncode == 0, said.stderr
    return list(yaml.safe_load_all(said.stdout))
