"""The files under deploy/: as far as they can be judged without a container engine and without
Grafana.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from accordion_service.api.process_metrics import PROCESS_FAMILIES
from accordion_service.views.service_metrics import SERVICE_FAMILIES
from tests.programs import run_program

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
PAGE = DEPLOY.parent / "docs" / "guides" / "grafana.md"
RULES = DEPLOY / "prometheus/rules/accordion.yml"
BIN = Path(sys.executable).parent


def run(*command: str | Path) -> None:
    said = run_program(command, cwd=ROOT)
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def test_the_compose_file_follows_the_specification():
    run(
        BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"
    )


def test_only_loopback_ports_are_published(compose):
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_every_service_is_checked_and_gives_up_its_privileges(compose):
    for name, service in compose["services"].items():
        assert "healthcheck" in service, name
        assert (service["cap_drop"], service["security_opt"]) == (
            ["ALL"],
            ["no-new-privileges:true"],
        ), name


def test_every_image_has_a_fixed_version(compose):
    images = [service["image"] for service in compose["services"].values()]
    assert [image for image in images if not re.search(r":v?\d+\.\d+\.\d+$", image)] == []


def test_tokens_come_from_files_only(compose):
    environments = [service.get("environment", {}) for service in compose["services"].values()]
    secret = {
        name: value
        for names in environments
        for name, value in names.items()
        if re.search("TOKEN|PASSWORD", name)
    }
    assert secret
    assert all(value.startswith("/run/secrets/") for value in secret.values())


def test_what_compose_mounts_exists(compose):
    mounts = [
        mount for service in compose["services"].values() for mount in service.get("volumes", [])
    ]
    sources = [DEPLOY / mount.split(":")[0] for mount in mounts if mount.startswith("./")]
    assert sources
    assert [path for path in sources if not path.exists()] == []


@pytest.mark.parametrize("name", ["service", "ray"])
def test_image_recipes_are_clean(name):
    run(BIN / "hadolint", DEPLOY / f"docker/{name}.Dockerfile")


@pytest.mark.parametrize("name", ["service", "ray"])
def test_images_install_pinned_versions_and_run_as_nobody_special(name):
    recipe = (DEPLOY / f"docker/{name}.Dockerfile").read_text()
    installs = re.findall(r"pip install(?!\s+--no-deps)[^\n]*(?:\\\n[^\n]*)*", recipe)
    assert installs
    assert all("--constraint constraints.txt" in install for install in installs)
    assert re.search(r"^USER 10001$", recipe, flags=re.MULTILINE)


def test_the_api_image_holds_neither_torch_nor_ray():
    recipe = (DEPLOY / "docker/service.Dockerfile").read_text()
    assert '".[api,postgresql]"' in recipe
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["api"]
    names = {re.split(r"[\[<>=!~]", line)[0] for line in [*project["dependencies"], *extra]}
    assert {"fastapi", "sqlalchemy", "prometheus-client"} <= names
    assert not names & {"accordion-train", "torch", "ray", "scikit-learn"}


def test_the_scheduler_script_is_clean():
    run(BIN / "shellcheck", DEPLOY / "docker/scheduler.sh")


def test_prometheus_takes_the_configuration_and_the_rules(require):
    run(
        require("promtool"),
        "check",
        "config",
        "--syntax-only",
        DEPLOY / "prometheus/prometheus.yml",
    )
    run(require("promtool"), "check", "rules", RULES)


def test_alerts_fire_when_they_should_and_not_before(require):
    run(require("promtool"), "test", "rules", DEPLOY / "prometheus/rules/accordion_test.yaml")


def test_every_alert_has_a_test():
    rules = [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]
    tests = yaml.safe_load((DEPLOY / "prometheus/rules/accordion_test.yaml").read_text())["tests"]
    fired = {
        case["alertname"]
        for test in tests
        for case in test.get("alert_rule_test", ())
        if case["exp_alerts"]
    }
    assert {rule["alert"] for rule in rules if "alert" in rule} == fired


def test_the_book_explains_every_alert_on_the_service():
    groups = yaml.safe_load(RULES.read_text())["groups"]
    [rules] = [group["rules"] for group in groups if group["name"] == "accordion-service"]
    explained = re.findall(r"^\| `(Accordion\w+)` \|", PAGE.read_text(), re.M)
    assert sorted(explained) == sorted(rule["alert"] for rule in rules)


def test_the_book_explains_every_metric_of_the_service():
    own = {*SERVICE_FAMILIES, *PROCESS_FAMILIES, "accordion_api_database_reachable"}
    explained = set(re.findall(r"`(accordion_[a-z_]+[a-z])`", PAGE.read_text()))
    assert explained == own | {"accordion_api_request_duration_seconds"}


def test_prometheus_scrapes_services_that_compose_starts(compose):
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    hosts = {
        target.split(":")[0]
        for scrape in config["scrape_configs"]
        for static in scrape["static_configs"]
        for target in static["targets"]
    }
    assert hosts <= set(compose["services"])
