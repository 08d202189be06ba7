"""Selectors of nodes by their labels, in the four forms of Ray; pure.

    a          the label has this value
    !a         it does not
    in(a,b)    it has one of these values
    !in(a,b)   it has none of them

A node without the label matches `!a` and `!in(a,b)`, as in Ray.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, order=True)
class LabelCondition:
    """What a label of a node must be. Conditions with the same meaning are equal if they come from
    `read_condition`.
    """

    name: str
    values: tuple[str, ...]
    """Sorted, and each only once."""
    excludes: bool = False
    """Whether the label must have none of the values; otherwise it must have one."""

    def format(self) -> str:
        """Return the condition on the value in Ray's syntax, such as `!in(a,b)`."""
        text = self.values[0] if len(self.values) == 1 else f"in({','.join(self.values)})"
        return f"!{text}" if self.excludes else text

    def describe(self) -> str:
        """Return the condition in words, such as `zone not in (a, b)`."""
        if len(self.values) == 1:
            return f"{self.name}{'!=' if self.excludes else '='}{self.values[0]}"
        return f"{self.name}{' not' if self.excludes else ''} in ({', '.join(self.values)})"

    def exclude(self, values: Iterable[str]) -> LabelCondition | None:
        """Return the condition that the label has none of these values either; None if no value
        is left.
        """
        if self.excludes:
            return replace(self, values=_sort_values((*self.values, *values)))
        left = _sort_values(set(self.values) - set(values))
        return replace(self, values=left) if left else None


Selector = frozenset[LabelCondition]
"""Conditions that a node must meet, each on a different label."""


def read_condition(name: str, text: str) -> LabelCondition:
    """Read a condition; a text in none of the four forms is taken for a value."""
    value = text.removeprefix("!")
    is_list = value.startswith("in(") and value.endswith(")")
    values = [one.strip() for one in value[3:-1].split(",")] if is_list else [value]
    return LabelCondition(name, _sort_values(values), excludes=text.startswith("!"))


def read_selector(texts: Mapping[str, str]) -> Selector:
    """Read the conditions on each label."""
    return frozenset(read_condition(name, text) for name, text in texts.items())


def format_selector(selector: Selector) -> dict[str, str]:
    """Return the conditions on each label in Ray's syntax."""
    return {one.name: one.format() for one in sorted(selector)}


def node_matches(selector: Selector, labels: Set[tuple[str, str]]) -> bool:
    """Return whether a node with these labels, as pairs of name and value, meets all conditions."""
    return all(
        labels.isdisjoint([(one.name, value) for value in one.values]) is one.excludes
        for one in selector
    )


def exclude_values(texts: Mapping[str, str], name: str, values: Collection[str]) -> dict[str, str]:
    """Return conditions in Ray's syntax with these values of a label excluded, too. If this leaves
    no value that the label could have, the conditions stay as they are.
    """
    own = texts.get(name)
    new = (
        LabelCondition(name, _sort_values(values), excludes=True)
        if own is None
        else read_condition(name, own).exclude(values)
    )
    return {**texts, name: new.format()} if new is not None else dict(texts)


def _sort_values(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(values)))
