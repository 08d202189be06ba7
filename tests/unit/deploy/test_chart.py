"""Helm's chart of deploy/k8s: the same objects as Kustomize's overlay, and what it refuses."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from accordion_service.settings.setting_list import list_settings
from accordion_service.settings.settings import Settings, load_settings
from tests.programs import run_program
from tests.unit.deploy.manifests import CHART, ROOT, render_overlay

VERSION = "1.33"
OTHERS = {"RayCluster", "ServiceMonitor", "PodMonitor", "PrometheusRule"}
"""Kinds that operators add."""
URL = "https://accordion.example.com"

Object = dict[str, Any]
Render = Callable[..., list[Object]]


@pytest.fixture
def render(helm: Path, tmp_path: Path) -> Render:
    """Objects of the chart with these values, as of a release `accordion`."""

    def rendered(values: dict[str, Any] | None = None, *, release: str = "accordion") -> Any:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump({"url": URL, **(values or {})}))
        said = run_program([helm, "template", release, CHART, "--values", file])
        if said.returncode:
            pytest.fail(said.stderr)
        return [found for found in yaml.safe_load_all(said.stdout) if found]

    return rendered


def same_facts(found: Object) -> Object:
    """An object without what only the chart, or only Kustomize, says."""
    text = yaml.safe_dump(found)
    text = re.sub(r"accordion-settings-\w{10}\b", "accordion-settings", text)
    text = re.sub(r" *imagePullPolicy: IfNotPresent\n", "", text)
    same: Object = yaml.safe_load(text)
    meta = same["metadata"]
    meta.pop("namespace", None)
    labels = meta["labels"]
    for name in ("managed-by", "instance", "version"):
        labels.pop(f"app.kubernetes.io/{name}", None)
    labels.pop("helm.sh/chart", None)
    if same["kind"] == "PersistentVolumeClaim":
        meta.pop("annotations", None)
    if same["kind"] == "Deployment":
        same["spec"]["template"]["metadata"].pop("annotations", None)
    return same


def by_name(objects: list[Object]) -> dict[tuple[str, str], Object]:
    return {
        (found["kind"], same["metadata"]["name"]): same
        for found in objects
        for same in [same_facts(found)]
    }


def test_the_chart_makes_the_objects_of_the_overlay(
    render: Render, kubectl: Path, tmp_path: Path
) -> None:
    overlay = by_name(render_overlay(kubectl, "cluster", folder=tmp_path))
    del overlay["Namespace", "accordion"]
    chart = by_name(
        render(
            {
                "url": "https://accordion.EXAMPLE.COM",
                "image": {"registry": "REGISTRY", "pullSecrets": [{"name": "registry"}]},
                "ray": {"workers": {"gpus": 1, "nodeSelector": {"POOL": "WORKERS"}}},
                "storage": {"className": "CLASS-THAT-SEVERAL-NODES-WRITE"},
                "ingress": {"enabled": True, "className": "CLASS"},
                "monitoring": {"enabled": True, "labels": {"release": "PROMETHEUS"}},
            }
        )
    )
    del chart["Pod", "accordion-ready"]
    assert chart.keys() == overlay.keys()
    assert len(chart) > 12
    for name, found in chart.items():
        assert found == overlay[name], name


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"api": {"replicas": 1}, "image": {"pullSecrets": [{"name": "registry"}]}},
        {"ray": {"workers": {"nodeSelector": {"pool": "spot"}, "gpus": 2, "cpus": 8}}},
        {"ingress": {"enabled": True}, "monitoring": {"enabled": True, "labels": {"team": "ml"}}},
        {"secret": "123", "ingress": {"enabled": True, "className": "0x1f", "tlsSecret": ""}},
    ],
    ids=lambda values: "+".join(values) or "defaults",
)
@pytest.mark.parametrize("release", ["other", "true"])  # `true` is no text in YAML
def test_what_it_makes_follows_the_schemas_of_kubernetes(
    render: Render, values: dict[str, Any], release: str
) -> None:
    found = render(values, release=release)
    for one in found:
        assert one["metadata"]["name"].startswith(release)
        if one["kind"] not in OTHERS:
            kubernetes_validate.validate(one, VERSION, strict=True)
        elif one["kind"] == "RayCluster":
            groups = (one["spec"]["headGroupSpec"], *one["spec"]["workerGroupSpecs"])
            for group in groups:
                pod = {"apiVersion": "v1", "kind": "PodTemplate", "template": group["template"]}
                kubernetes_validate.validate(pod, VERSION, strict=True)
    assert len(found) >= 10


def test_values_reach_the_objects(render: Render) -> None:
    workers = {"min": 1, "max": 3, "cpus": 16, "gpus": 4, "nodeSelector": {"pool": "spot"}}
    workers["sharedMemory"] = "8Gi"
    own = {
        "settings": {"ACCORDION_MAX_ENDED_JOBS": 2_000_000, "ACCORDION_OIDC_ISSUER": "https://id"},
        "image": {"tag": "0.2.0", "pullSecrets": [{"name": "registry"}]},
        "api": {"replicas": 1},
        "ray": {"workers": workers},
    }
    found = render(own, release="ml")
    objects = {(one["kind"], one["metadata"]["name"]): one for one in found}
    assert ("PodDisruptionBudget", "ml-api") not in objects
    settings = objects["ConfigMap", "ml-settings"]["data"]
    assert settings["ACCORDION_MAX_ENDED_JOBS"] == "2000000"
    assert settings["ACCORDION_URL"] == URL
    [group] = objects["RayCluster", "ml"]["spec"]["workerGroupSpecs"]
    assert (group["minReplicas"], group["maxReplicas"]) == (1, 3)
    pod = group["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "spot"}
    assert {"medium": "Memory", "sizeLimit": "8Gi"} in [
        one.get("emptyDir") for one in pod["volumes"]
    ]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    limits = pod["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "16", "memory": "4Gi", "nvidia.com/gpu": 4}
    assert pod["containers"][0]["image"] == "accordion-ray:0.2.0"
    scheduler = objects["Deployment", "ml-scheduler"]["spec"]["template"]
    assert scheduler["metadata"]["labels"]["accordion/ray"] == "ml"
    assert {"name": "RAY_ADDRESS", "value": "ml-head-svc:6379"} in scheduler["spec"]["containers"][
        0
    ]["env"]


def test_other_settings_replace_the_pods(render: Render) -> None:
    def checksum(values: dict[str, Any]) -> str:
        [api] = [
            one
            for one in render(values)
            if (one["kind"], one["metadata"]["name"]) == ("Deployment", "accordion-api")
        ]
        value: str = api["spec"]["template"]["metadata"]["annotations"]["checksum/settings"]
        return value

    assert checksum({}) == checksum({"api": {"replicas": 3}})
    assert checksum({}) != checksum({"settings": {"ACCORDION_MAX_ENDED_JOBS": "7"}})


def variables_of(objects: list[Object]) -> dict[str, Any]:
    """Variables that the pods of Deployments set themselves, and their values."""
    return {
        one["name"]: one.get("value")
        for found in objects
        if found["kind"] == "Deployment"
        for container in found["spec"]["template"]["spec"]["containers"]
        for one in container["env"]
    }


def test_a_setting_that_a_pod_would_replace_is_refused_or_joined(render: Render) -> None:
    hosts = "ACCORDION_ALLOWED_HOSTS"
    names = {name for name in variables_of(render()) if name.startswith("ACCORDION_")} - {hosts}
    assert names
    for name in names:
        with pytest.raises(pytest.fail.Exception, match=f"settings.{name} is set by the chart"):
            render({"settings": {name: "x"}})
    assert variables_of(render({"settings": {hosts: "b,c"}}))[hosts] == "accordion-api,b,c"


def test_secret_settings_are_read_from_a_secret(render: Render) -> None:
    pods = [one for one in render({"settingsSecret": "more"}) if one["kind"] == "Deployment"]
    assert len(pods) == 2
    for pod in pods:
        [container] = pod["spec"]["template"]["spec"]["containers"]
        assert container["envFrom"] == [
            {"configMapRef": {"name": "accordion-settings"}},
            {"secretRef": {"name": "more"}},
        ]


def test_settings_are_those_of_the_service_and_secret_ones_are_refused(render: Render) -> None:
    fields = Settings.model_fields.values()
    variables = {
        line.name: "SecretStr" in str(field.annotation)
        for line, field in zip(list_settings(load_settings()), fields, strict=True)
    }
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["properties"]["settings"]["propertyNames"]["enum"] == sorted(variables)
    for name in [name for name, is_secret in variables.items() if is_secret]:
        with pytest.raises(pytest.fail.Exception, match=f"settings.{name} is a secret; put it"):
            render({"settings": {name: "x"}})


def test_without_a_secret_of_its_own_the_controller_has_the_certificate(render: Render) -> None:
    own = {"url": "https://h:8443", "ingress": {"enabled": True, "tlsSecret": ""}}
    [ingress] = [one for one in render(own) if one["kind"] == "Ingress"]
    assert ingress["spec"]["tls"] == [{"hosts": ["h"]}]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"url": ""}, "url is missing: give the address under which people reach the service"),
        ({"url": "accordion.example.com"}, "'/url'.*does not match pattern"),
        ({"url": "https://me:password@h"}, "'/url'.*does not match pattern"),
        ({"url": "https://*.example.com"}, "'/url'.*does not match pattern"),
        ({"secret": None}, "at '': missing property 'secret'"),
        ({"storage": {"home": None}}, "at '/storage': missing property 'home'"),
        ({"api": {"replicas": 0}}, "'/api/replicas': minimum: got 0, want 1"),
        ({"api": {"replica": 3}}, "'/api': additional properties 'replica' not allowed"),
        ({"settings": {"ACCORDION_MAX_JOB": "3"}}, "invalid propertyName 'ACCORDION_MAX_JOB'"),
        ({"image": {"registry": "https://registry/ml"}}, "'/image/registry'.* not match pattern"),
        ({"storage": {"jobs": "100"}}, "'/storage/jobs': '100' does not match pattern"),
        (
            {"settings": {"ACCORDION_DATABASE_URL": "sqlite://"}},
            "settings.ACCORDION_DATABASE_URL is set by the chart; see url, secret and storage",
        ),
        ({"ray": {"workers": {"min": 9}}}, "ray.workers.min is 9 and above ray.workers.max"),
        ({"ray": {"workers": {"memory": "lots"}}}, "'/ray/workers/memory': 'lots' does not match"),
    ],
)
def test_wrong_values_are_named(render: Render, values: dict[str, Any], message: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=message):
        render(values)


@pytest.mark.parametrize(
    ("release", "message"),
    [
        ("a" * 41, r"has a name of 41 characters; .* at most 40"),
        ("123", "has the name 123; Services need one that begins with a letter and has no dots"),
        ("ml.team", "has the name ml.team; Services need one"),
    ],
)
def test_a_release_whose_objects_would_be_refused_is_refused(
    render: Render, release: str, message: str
) -> None:
    with pytest.raises(pytest.fail.Exception, match=message):
        render(release=release)


def test_helm_finds_nothing_to_complain_about(helm: Path) -> None:
    said = run_program([helm, "lint", "--strict", CHART, "--set", f"url={URL}"])
    assert said.returncode == 0, said.stdout


def test_what_to_do_next_names_the_release(helm: Path) -> None:
    said = run_program(
        [helm, "install", "ml", CHART, "--dry-run=client", "--set", f"url={URL}"], check=True
    )
    notes = said.stdout.partition("NOTES:")[2]
    assert "port-forward service/ml-api 8080:80" in notes
    assert """go-template='{{index .data "admin-token" | base64decode}}'""" in notes


def test_the_command_of_the_guide_makes_what_it_says(helm: Path) -> None:
    text = (ROOT / "docs/guides/kubernetes.md").read_text().replace("\\\n", " ")
    [command] = re.findall(r"(?m)^helm install (.+)$", text)
    said = run_program([helm, "template", *shlex.split(command)], cwd=ROOT, check=True)
    objects = [one for one in yaml.safe_load_all(said.stdout) if one]
    [ingress] = [one for one in objects if one["kind"] == "Ingress"]
    assert ingress["spec"]["rules"][0]["host"] == "accordion.example.com"
    [cluster] = [one for one in objects if one["kind"] == "RayCluster"]
    [group] = cluster["spec"]["workerGroupSpecs"]
    [worker] = group["template"]["spec"]["containers"]
    assert worker["resources"]["limits"] == {"cpu": "8", "memory": "32Gi"}
    assert worker["image"].startswith("registry.example.com/ml/accordion-ray:")


def test_its_version_is_that_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (chart["version"], chart["appVersion"]) == (project["version"], project["version"])
