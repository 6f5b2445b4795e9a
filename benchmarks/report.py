"""Results as a page of tables to read, and as JSON to keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

import orjson

from benchmarks.results import Figure, Rate, Results, RoundTrips


def to_text(results: Results) -> str:
    return "\n".join(_lines(results))


def to_json(results: Results) -> bytes:
    document = asdict(results) | {"missed": results.missed}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def beside_to_text(pairs: Sequence[tuple[Rate, Rate]]) -> Iterator[str]:
    """Microseconds of CPU of each request there and here, and how much more or less that is."""
    rows = [
        [here.label, f"{there.service_cpu_us:.0f}", f"{here.service_cpu_us:.0f}", f"{change:+.1%}"]
        for there, here in pairs
        for change in [here.service_cpu_us / there.service_cpu_us - 1]
    ]
    yield from table(("request", "CPU us there", "here", "change"), rows)


def _lines(results: Results) -> Iterator[str]:
    yield from (f"{name + ':':<10}{value}" for name, value in results.setting.items())
    if results.round_trips:
        yield "\nRedis round trips of a call"
        yield from table(("call", "trips", "goal", "", "commands"), map(_trips_row, results.round_trips))
    if results.rates:
        yield "\nUnder load ('req/s/core' is the inverse of the service's CPU time: what a core does alone)"
        yield from table(_RATE_HEAD, map(_rate_row, results.rates))
    if results.figures:
        yield "\nParts"
        yield from table(("what", "value", "unit", "at most", ""), map(_figure_row, results.figures))
    yield ""
    yield f"Goals missed: {', '.join(results.missed)}" if results.missed else "Every goal is met."


def _trips_row(row: RoundTrips) -> list[str]:
    goal = "" if row.goal is None else str(row.goal)
    return [row.call, str(row.measured), goal, _verdict(row.goal, row.met), ", ".join(row.commands)]


_RATE_HEAD = (
    "scene",
    "request",
    "tasks",
    "req/s",
    "req/s/core",
    "p50 ms",
    "p99 ms",
    "CPU us/req",
    "Redis us/req",
    "RSS MB",
    "service CPU",
    "client CPU",
    "loops",
    "budget",
    "",
)


def _rate_row(row: Rate) -> list[str]:
    return [
        row.scene,
        row.scenario,
        str(row.tasks),
        f"{row.per_second:,.0f}",
        f"{row.per_core:,.0f}",
        f"{row.p50_ms:.1f}",
        f"{row.p99_ms:.1f}",
        f"{row.service_cpu_us:.0f}",
        f"{row.redis_cpu_us:.0f}",
        f"{row.rss_mb:.0f}",
        f"{row.service_share:.0%}",
        f"{row.client_share:.0%}",
        f"{row.loops:.1f}",
        "" if row.budget is None else f"{row.budget:.1f}",
        _verdict(row.budget, row.met),
    ]


def _figure_row(row: Figure) -> list[str]:
    limit = "" if row.at_most is None else f"{row.at_most:g}"
    return [row.name, f"{row.value:.2f}", row.unit, limit, _verdict(row.at_most, row.met)]


def _verdict(goal: float | None, met: bool) -> str:
    return "" if goal is None else "met" if met else "MISSED"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The first and the last column to the left, numbers between them to the right."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    text_columns = {
        0,
        *(c for c, name in enumerate(head) if name in ("", "commands", "unit", "request", "what", "then")),
    }
    for line in lines:
        cells = [
            cell.ljust(width) if column in text_columns else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  " + "  ".join(cells).rstrip()
