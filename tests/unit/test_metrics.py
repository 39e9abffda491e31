"""What is counted, as Prometheus reads it."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from atoll.telemetry import counted
from atoll.telemetry.metrics import BUCKETS, Count, Gauge, Timing, rendered

LINE = re.compile(r'[a-z_]+(\{[a-z_]+="[^"\\\n]*"(,le="[^"]+")?\})? -?[0-9][0-9.e+-]*')


def test_what_is_not_known_beforehand_is_other_whatever_it_is() -> None:
    count = Count("things_total", "Things.", "kind", ("a",))
    for kind in ("a", "b", 'c"} 1\nfake 2', ""):
        count.add(kind)
    assert rendered([count]).splitlines() == [
        "# HELP things_total Things.",
        "# TYPE things_total counter",
        'things_total{kind="a"} 1',
        'things_total{kind="other"} 3',
    ]


@given(st.lists(st.floats(0, 1000)))
def test_a_histogram_adds_up(seconds: list[float]) -> None:
    timing = Timing("t_seconds", "T.", "kind", ("a",))
    for each in seconds:
        timing.note("a", each)
    lines = [line for line in timing.lines() if 'kind="a"' in line]
    totals = [int(line.rpartition(" ")[2]) for line in lines if "_bucket" in line]
    assert totals == [sum(each <= bound for each in seconds) for bound in (*BUCKETS, float("inf"))]
    assert totals == sorted(totals)
    assert lines[-1] == f't_seconds_count{{kind="a"}} {len(seconds)}'


def test_every_line_is_one_that_prometheus_reads() -> None:
    gauges = [
        Gauge(name="one", help="One.", values={"": 1.5}),
        Gauge(name="many", help="Many.", label="of", values={"b": 2, "a": 1e20}, is_total=True),
    ]
    for line in rendered((*gauges, *counted.ALL)).splitlines():
        assert line.startswith("# ") or LINE.fullmatch(line), line


def test_the_number_of_series_is_known_before_anything_happens() -> None:
    before = rendered(counted.ALL).count("\n")
    for metric in (counted.events, counted.calls, counted.errors, counted.requests):
        for number in range(100):
            metric.add(f"made-up-{number}")
    assert rendered(counted.ALL).count("\n") == before < 500
