"""The manifests of deploy/k8s: against the schemas of Kubernetes, the settings of the service, and
the files of deploy/ that say the same.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import kubernetes_validate
import pytest
import yaml

from accordion_service.settings.settings import Settings
from tests.conftest import free_port
from tests.programs import run_program
from tests.unit.deploy.manifests import K8S, ROOT, kustomize, render_overlay

MANIFESTS = sorted(
    path
    for path in K8S.rglob("*.yaml")
    if path.name != "kustomization.yaml" and not {"gpu", "chart"} & set(path.parts)
)
VERSION = "1.33"
OTHERS = {"RayCluster", "ServiceMonitor", "PodMonitor", "PrometheusRule"}
"""Kinds that operators add."""


def objects(*paths: Path) -> Iterator[dict[str, Any]]:
    for path in paths or MANIFESTS:
        yield from yaml.safe_load_all(path.read_text())


def pods(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The templates of pods in an object."""
    spec = found.get("spec", {})
    if found["kind"] == "RayCluster":
        yield from (one["template"] for one in (spec["headGroupSpec"], *spec["workerGroupSpecs"]))
    elif "template" in spec:
        yield spec["template"]


ALL_PODS = [(found["metadata"]["name"], pod) for found in objects() for pod in pods(found)]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_manifests_follow_the_schemas_of_kubernetes(path: Path) -> None:
    checked = [found for found in objects(path) if found["kind"] not in OTHERS]
    templates = [{"template": pod} for found in objects(path) for pod in pods(found)]
    checked += [{"apiVersion": "v1", "kind": "PodTemplate", **one} for one in templates]
    for found in checked:
        kubernetes_validate.validate(found, VERSION, strict=True)
    assert checked or {found["kind"] for found in objects(path)} <= OTHERS


def test_a_key_that_kubernetes_does_not_know_is_found() -> None:
    found = next(objects(K8S / "base/api.yaml"))
    found["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="livenesProbe"):
        kubernetes_validate.validate(found, VERSION, strict=True)


@pytest.mark.parametrize(("name", "pod"), ALL_PODS)
def test_pods_give_up_what_they_do_not_need(name: str, pod: dict[str, Any]) -> None:
    spec = pod["spec"]
    context = spec["securityContext"]
    assert (context["runAsNonRoot"], context["runAsUser"] > 0) == (True, True)
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    # KubeRay gives the head an account of its own, for its autoscaler.
    assert name == "accordion" or spec["automountServiceAccountToken"] is False
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"requests", "limits"} <= container["resources"].keys()
        assert {"livenessProbe", "startupProbe"} & container.keys()
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        claimed = {"data"} if name == "postgres" else set()
        assert mounted == {volume["name"] for volume in spec["volumes"]} | claimed


def test_settings_are_those_of_the_service() -> None:
    known = {f"ACCORDION_{name.upper()}" for name in Settings.model_fields}
    text = "".join(path.read_text() for path in [*MANIFESTS, *K8S.rglob("kustomization.yaml")])
    used = set(re.findall(r"ACCORDION_[A-Z_]+", text))
    assert len(used) > 8
    assert used - known == set()


def test_ports_probes_and_selectors_name_what_the_pods_have() -> None:
    labels = [pod["metadata"]["labels"].items() for _, pod in ALL_PODS]
    ports = {
        port["name"]: port["containerPort"]
        for _, pod in ALL_PODS
        for container in pod["spec"]["containers"]
        for port in container.get("ports", [])
    }
    assert ports["http"] == 8080
    for found in objects():
        spec = found.get("spec", {})
        selector = spec.get("selector") or spec.get("podSelector") or {}
        selector = selector.get("matchLabels", selector)
        if found["kind"] not in OTHERS and selector:
            assert any(selector.items() <= one for one in labels), found["metadata"]["name"]
        for port in spec.get("ports", []) if found["kind"] == "Service" else []:
            assert port["targetPort"] in ports


def test_secrets_are_those_that_the_script_makes() -> None:
    made = run_program([K8S / "make_secrets.sh"]).stdout
    values = dict(line.split("=", 1) for line in made.splitlines())
    assert values["postgres-password"] in values["database-url"]
    assert all(len(value) >= 32 for value in values.values())
    assert len(set(values.values())) == len(values)
    text = "".join(path.read_text() for path in MANIFESTS)
    used = set(re.findall(r"name: accordion, key: ([a-z_-]+)", text))
    used |= set(re.findall(r"\{key: ([a-z-]+), path:", text))
    assert used - values.keys() == set()
    assert values.keys() - used == set()
    own = "postgresql+psycopg://me@db/accordion"
    assert f"database-url={own}\n" in run_program([K8S / "make_secrets.sh", own]).stdout


def test_versions_are_those_of_compose_and_of_the_constraints() -> None:
    [cluster] = [found for found in objects() if found["kind"] == "RayCluster"]
    assert f"ray=={cluster['spec']['rayVersion']}\n" in (ROOT / "constraints.txt").read_text()
    compose = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
    ours = {compose[name]["image"] for name in ("api", "scheduler")}
    used = {one["image"] for _, pod in ALL_PODS for one in pod["spec"]["containers"]}
    assert {image for image in used if image.startswith("accordion")} == ours
    head = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["env"]
    theirs = compose["ray-head"]["environment"]
    checks = {one["name"]: one["value"] for one in head if "health_check" in one["name"]}
    assert checks == {name: value for name, value in theirs.items() if "health_check" in name}


def test_alert_rules_are_those_of_prometheus() -> None:
    built = runpy.run_path(str(K8S / "generate_rules.py"))["build_rules"]()
    assert (K8S / "monitoring/rules.yaml").read_text() == built
    rules = yaml.safe_load((ROOT / "deploy/prometheus/rules/accordion.yml").read_text())
    assert yaml.safe_load(built)["spec"] == rules


def test_an_overlay_without_its_secrets_is_refused(tmp_path: Path, kubectl: Path) -> None:
    shutil.copytree(K8S, tmp_path / "k8s", ignore=shutil.ignore_patterns("secrets.env"))
    with pytest.raises(AssertionError, match="env source files"):
        kustomize(kubectl, tmp_path / "k8s/overlays/kind")


@pytest.mark.parametrize("overlay", ["kind", "cluster"])
def test_overlays_are_rendered(tmp_path: Path, overlay: str, kubectl: Path) -> None:
    found = render_overlay(kubectl, overlay, folder=tmp_path)
    kinds = [one["kind"] for one in found]
    assert {"Deployment", "RayCluster", "NetworkPolicy", "PersistentVolumeClaim"} <= set(kinds)
    assert ("Ingress" in kinds, "Secret" in kinds) == (overlay == "cluster", overlay == "kind")
    for one in found:
        if one["kind"] not in OTHERS:
            kubernetes_validate.validate(one, VERSION, strict=True)
        if one["kind"] != "Namespace":
            assert one["metadata"]["namespace"] == "accordion"
    maps = {one["metadata"]["name"]: one["data"] for one in found if one["kind"] == "ConfigMap"}
    [settings] = [data for name, data in maps.items() if name.startswith("accordion-settings")]
    assert {"ACCORDION_URL", "ACCORDION_STORAGE"} <= settings.keys()
    if overlay == "cluster":
        assert {"ServiceMonitor", "PrometheusRule", "Namespace"} <= set(kinds)
        [cluster] = [one for one in found if one["kind"] == "RayCluster"]
        [worker] = cluster["spec"]["workerGroupSpecs"]
        [container] = worker["template"]["spec"]["containers"]
        assert container["image"] == "REGISTRY/accordion-ray:0.1.0"
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_the_api_starts_and_ends_as_its_pod_says(tmp_path: Path) -> None:
    found = objects(K8S / "base/api.yaml")
    [deployment] = [one for one in found if one["kind"] == "Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    tokens = {"admin-token": "a" * 32, "metrics-token": "m" * 32}
    for name, value in tokens.items():
        (tmp_path / name).write_text(value)
    set_here = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    mounted = {
        name: value.replace("/run/secrets/accordion", str(tmp_path))
        for name, value in set_here.items()
    }
    port = free_port()
    own = {"ACCORDION_PORT": str(port), "ACCORDION_HOME": str(tmp_path / "home")}
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **mounted, **own}
    command = [str(Path(sys.executable).with_name("accordion")), *container["args"]]
    with subprocess.Popen(command, env=environment) as process:
        try:
            probe = container["livenessProbe"]["httpGet"]
            [host] = [one["value"] for one in probe["httpHeaders"]]
            wait_until_alive(process, port, path=probe["path"], host=host)
            bearer = {"Authorization": f"Bearer {tokens['metrics-token']}"}
            [name] = set_here["ACCORDION_ALLOWED_HOSTS"].split(",")
            assert ask(port, "/metrics", Host=name, **bearer) == 200
            assert ask(port, "/metrics", Host="elsewhere.example", **bearer) == 403
            process.terminate()
            grace = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
            assert process.wait(timeout=grace) in (0, -signal.SIGTERM)  # uvicorn sends it on
        finally:
            process.kill()


def ask(port: int, path: str, **headers: str) -> int:
    return httpx2.get(f"http://127.0.0.1:{port}{path}", headers=headers).status_code


def wait_until_alive(process: subprocess.Popen[bytes], port: int, *, path: str, host: str) -> None:
    while process.poll() is None:
        try:
            if ask(port, path, Host=host) == 200:
                return
        except httpx2.TransportError:
            time.sleep(0.05)
    pytest.fail(f"the api ended with {process.returncode}")
