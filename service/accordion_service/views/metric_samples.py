"""Types and samples of metrics, as the collectors of `/metrics` build them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from prometheus_client.core import Metric


@dataclass(frozen=True, slots=True)
class Family:
    """Type and help text of one metric."""

    kind: Literal["gauge", "counter", "histogram"]
    help: str


class Sample(NamedTuple):
    """One value of one metric."""

    name: str
    """Name of the metric's family."""
    value: float
    labels: Mapping[str, str]
    suffix: str = ""
    """What follows the name in a histogram."""


def build_metrics(families: Mapping[str, Family], samples: Iterable[Sample]) -> Iterator[Metric]:
    """Yield each family that has samples, in the order of the table."""
    by_name = defaultdict(list)
    for sample in samples:
        by_name[sample.name].append(sample)
    for name, family in families.items():
        if name in by_name:
            yield build_metric(name, family, by_name[name])


def build_metric(name: str, family: Family, samples: Sequence[Sample] = ()) -> Metric:
    """Build the metric of one family."""
    # prometheus_client appends `_total` to the name of a counter.
    metric = Metric(name.removesuffix("_total"), family.help, family.kind)
    for sample in samples:
        metric.add_sample(f"{name}{sample.suffix}", dict(sample.labels), sample.value)
    return metric
