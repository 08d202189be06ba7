"""Examples in the READMEs are accepted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from service.schemas.specs import PlanRequest
from workers.records.contract import JobSpec

ROOT = Path(__file__).parents[3]


def blocks(package: str, language: str, word: str) -> list[str]:
    text = (ROOT / package / "README.md").read_text()
    return [block for block in re.findall(rf"```{language}\n(.*?)```", text, re.S) if word in block]


def test_the_body_of_a_plan_is_accepted() -> None:
    [body] = blocks("service", "json", "mbit_per_s")
    assert PlanRequest.model_validate(json.loads(body)).spec.workers.max == 4


def test_a_job_file_is_accepted() -> None:
    [text] = blocks("workers", "yaml", "cost_aware")
    assert JobSpec.model_validate(yaml.safe_load(text)).policy.options == {"saving": 0.1}
