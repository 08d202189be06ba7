"""Laws of the selectors of nodes: which labels meet them, and how they are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from accordion_workers.common.node_selectors import (
    exclude_values,
    format_selector,
    node_matches,
    read_condition,
    read_selector,
)
from accordion_workers.spec.workers import WorkersSpec

VALUES = ["a", "b", "in", "a.b"]
NODES = st.dictionaries(st.sampled_from(["zone", "disk"]), st.sampled_from([*VALUES, ""]))


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, set[str], bool]:
    """A condition as users write it, its values, and whether it excludes them."""
    values, excludes = draw(st.lists(st.sampled_from(VALUES), min_size=1)), draw(st.booleans())
    comma = draw(st.sampled_from([",", ", "]))
    is_value = len(values) == 1 and draw(st.booleans())
    text = values[0] if is_value else f"in({comma.join(values)})"
    return f"{'!' if excludes else ''}{text}", set(values), excludes


@given(st.dictionaries(st.sampled_from(["zone", "disk"]), texts()), NODES)
def test_a_node_matches_if_its_labels_have_one_of_the_values_or_no_excluded_one(
    conditions: dict[str, tuple[str, set[str], bool]], node: dict[str, str]
) -> None:
    selector = read_selector({name: text for name, (text, _, _) in conditions.items()})
    assert node_matches(selector, node.items()) == all(
        (node.get(name) in values) != excludes for name, (_, values, excludes) in conditions.items()
    )


@given(texts())
def test_a_condition_that_is_written_and_read_again_is_the_same(
    condition: tuple[str, set[str], bool],
) -> None:
    selector = read_selector({"zone": condition[0]})
    assert read_selector(format_selector(selector)) == selector


@given(texts())
def test_a_spec_takes_every_condition_and_gives_ray_one_with_the_same_meaning(
    condition: tuple[str, set[str], bool],
) -> None:
    spec = WorkersSpec(node_labels={"zone": condition[0]})
    given_to_ray = spec.ray_options()["label_selector"]
    assert read_selector(given_to_ray) == read_selector(spec.node_labels)
    assert " " not in given_to_ray["zone"]


@given(texts(), st.sets(st.sampled_from(VALUES), min_size=1), NODES)
def test_excluded_values_are_those_of_the_condition_and_the_new_ones(
    condition: tuple[str, set[str], bool], values: set[str], node: dict[str, str]
) -> None:
    own = {"zone": condition[0]}
    new = read_selector(exclude_values(own, "zone", values))
    kept = read_selector(own)
    is_possible = condition[2] or condition[1] - values
    also = node.get("zone") not in values if is_possible else True
    assert node_matches(new, node.items()) == (node_matches(kept, node.items()) and also)


def test_values_of_a_label_without_a_condition_are_excluded() -> None:
    both = {"disk": "ssd", "zone": "!in(a,b)"}
    assert exclude_values({"disk": "ssd"}, "zone", {"b", "a"}) == both


@pytest.mark.parametrize("same", [("a", "in(a)"), ("!a", "!in(a,a)"), ("in(b, a)", "in(a,b)")])
def test_conditions_with_the_same_meaning_are_equal(same: tuple[str, str]) -> None:
    assert read_condition("zone", same[0]) == read_condition("zone", same[1])


@pytest.mark.parametrize(
    "text",
    [
        *["", "!", "!!a", "in()", "in(a", "in(a,)", "in(a,,b)", "in(a,  b)", "in (a)", "(a)"],
        *["!in(-b)", "a,b", "in(!a)", "not in(a)", "in(a)b", "a b", "a\n", "in(in(a))"],
        f"in({'a,' * 500}a)",
    ],
)
def test_a_spec_refuses_a_text_in_none_of_the_four_forms(text: str) -> None:
    with pytest.raises(ValidationError):
        WorkersSpec(node_labels={"zone": text})
