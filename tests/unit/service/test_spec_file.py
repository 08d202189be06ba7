"""Specs in YAML, read as people mean them."""

from __future__ import annotations

from typing import Any

import pytest

from accordion_client.commands.spec_file import parse_spec, set_value


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 0.001), ("1e3", 1000), ("4e9", 4_000_000_000), ("-2.5E+1", -25), (".5e0", 0.5)],
)
def test_a_number_with_an_exponent_is_a_number(text: str, value: float) -> None:
    spec: dict[str, Any] = {}
    set_value(spec, f"training.optimizer.lr={text}")
    read = parse_spec(f"lr: {text}", "job.yaml")["lr"]
    assert (read, type(read)) == (value, type(value))
    assert spec["training"]["optimizer"]["lr"] == value


def test_what_only_looks_like_a_number_stays_a_text() -> None:
    assert parse_spec("a: [1e, e3, 1e-, 12e3f, 1.2.3]", "job.yaml")["a"][0] == "1e"
    assert {type(one) for one in parse_spec("a: [1e, e3, 12e3f]", "job.yaml")["a"]} == {str}


@pytest.mark.parametrize("section", ["env", "labels"])
@pytest.mark.parametrize("text", ["yes", "off", "true", "1e-3", "1.0", "8080", "010"])
def test_values_of_env_and_labels_are_texts(section: str, text: str) -> None:
    spec: dict[str, Any] = {}
    set_value(spec, f"{section}.NAME={text}")
    assert (
        spec == parse_spec(f"{section}: {{NAME: {text}}}", "job.yaml") == {section: {"NAME": text}}
    )


def test_other_values_keep_their_type() -> None:
    text = "{a: yes, env: {A: null, B: {secret: x}}, task: {env: {A: true}}}"
    assert parse_spec(text, "job.yaml") == {
        "a": True,
        "env": {"A": None, "B": {"secret": "x"}},
        "task": {"env": {"A": True}},
    }


@pytest.mark.parametrize("section", ["env", "labels"])
def test_texts_of_a_section_are_texts_however_it_is_given(section: str) -> None:
    spec: dict[str, Any] = {}
    set_value(spec, f"{section}={{A: yes, B: 1e3}}")
    text = f"{section}: {{<<: {{A: yes}}, B: 1e3}}"
    assert spec == parse_spec(text, "job.yaml") == {section: {"A": "yes", "B": "1e3"}}


@pytest.mark.parametrize("name", ["OFF", "y", "No", "010", "1e3"])
def test_names_are_texts_as_they_are_written(name: str) -> None:
    spec = parse_spec(f"env: {{{name}: a}}\ntask: {{options: {{{name}: 1}}}}", "job.yaml")
    assert spec == {"env": {name: "a"}, "task": {"options": {name: 1}}}


def test_an_alias_of_a_text_is_a_number_elsewhere() -> None:
    text = "training: {seed: &seed 7}\nlabels: &all {seed: *seed}\ntask: {options: *all}"
    assert parse_spec(text, "job.yaml") == {
        "training": {"seed": 7},
        "labels": {"seed": "7"},
        "task": {"options": {"seed": 7}},
    }


@pytest.mark.parametrize("text", ["{A: {}}", "{A: []}", "{<<: {}}", "[]", "7"])
def test_what_is_no_text_is_left_for_the_service_to_refuse(text: str) -> None:
    assert parse_spec(f"env: {text}", "job.yaml").keys() == {"env"}
