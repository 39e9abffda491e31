"""Metrics: what a server counts and times, as Prometheus reads it.

Rules:
1. A label has values that are known beforehand: never an id, a name, a path, or anything else that a client or a
   sandbox could think of. What is not known is "other". So there are as many series however much happens.
2. To count is to add to a dictionary. It is done on the server's loop alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator

import msgspec

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHER = "other"
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Gauge(msgspec.Struct, frozen=True, kw_only=True):
    """A number of just now, or several by one label. `is_total` says that it only grows."""

    name: str
    help: str
    values: dict[str, float]  # by the label's value; one without a label has the value ""
    label: str = ""
    is_total: bool = False

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.help, "counter" if self.is_total else "gauge")
        for value, number in sorted(self.values.items()):
            yield f"{self.name}{_labels({self.label: value}) if self.label else ''} {number:.17g}"


class Count:
    """A number of what happened, by one label of which the values are `known`."""

    def __init__(self, name: str, help: str, label: str, known: Collection[str]) -> None:
        self._name, self._help, self._label = name, help, label
        self._values = dict.fromkeys((*known, OTHER), 0)

    def add(self, value: str) -> None:
        self._values[value if value in self._values else OTHER] += 1

    def __getitem__(self, value: str) -> int:
        return self._values[value]

    def lines(self) -> Iterator[str]:
        yield from _head(self._name, self._help, "counter")
        for value, number in self._values.items():
            yield f"{self._name}{_labels({self._label: value})} {number}"


class Timing:
    """A histogram of how long something took, in seconds, by one label of which the values are `known`."""

    def __init__(self, name: str, help: str, label: str, known: Collection[str]) -> None:
        self._name, self._help, self._label = name, help, label
        self._buckets = {value: [0] * (len(BUCKETS) + 1) for value in (*known, OTHER)}
        self._sums = dict.fromkeys(self._buckets, 0.0)

    def note(self, value: str, seconds: float) -> None:
        value = value if value in self._buckets else OTHER
        self._buckets[value][bisect_left(BUCKETS, seconds)] += 1
        self._sums[value] += seconds

    def count(self, value: str) -> int:
        return sum(self._buckets[value])

    def lines(self) -> Iterator[str]:
        yield from _head(self._name, self._help, "histogram")
        for value, counts in self._buckets.items():
            total = 0
            for bound, count in zip((*(f"{bound:g}" for bound in BUCKETS), "+Inf"), counts, strict=True):
                total += count
                yield f"{self._name}_bucket{_labels({self._label: value, 'le': bound})} {total}"
            yield f"{self._name}_sum{_labels({self._label: value})} {self._sums[value]:.17g}"
            yield f"{self._name}_count{_labels({self._label: value})} {total}"


def rendered(metrics: Iterable[Gauge | Count | Timing]) -> str:
    return "".join(f"{line}\n" for metric in metrics for line in metric.lines())


def _head(name: str, help: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} {kind}"


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
