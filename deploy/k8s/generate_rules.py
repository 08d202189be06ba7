"""Writes `monitoring/rules.yaml`, the alert rules of Prometheus as an object of its operator."""

from pathlib import Path

HERE = Path(__file__).parent
RULES = HERE.parent / "prometheus/rules/accordion.yml"
HEAD = """# Written by deploy/k8s/generate_rules.py from deploy/prometheus/rules/accordion.yml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: accordion
spec:
"""


def build_rules() -> str:
    """Return the object."""
    lines = RULES.read_text().splitlines()
    return HEAD + "".join(f"  {line}\n" if line else "\n" for line in lines)


if __name__ == "__main__":
    (HERE / "monitoring/rules.yaml").write_text(build_rules())
