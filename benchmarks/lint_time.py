"""How long the linter takes: `python -m benchmarks.lint_time`. Ends with 1 when the goal is missed.

CPU time, the least of several rounds, so that other load on the machine hardly counts; parsing the document
is not part of it. Compiled templates are cached by their source, for the linter as for conversations. The
goal is for a version that was never seen, whose every template is compiled; a check after an edit compiles
one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial

from benchmarks import documents
from benchmarks.processes import least_s
from benchmarks.results import Figure
from flow_engine.documents import FlowVersion, ReviewEnvironment, parse_version
from flow_engine.linting import lint

ROUNDS = 7
GOAL_MS = 250.0
ENVIRONMENT = ReviewEnvironment(frozenset({"v1"}), frozenset({"default"}), frozenset({"en-US"}))


def measure_lint(*, rounds: int = ROUNDS) -> tuple[Figure, ...]:
    return (
        Figure("lint 12 tasks, every template new", _least_ms(_new_each_time(12, rounds)), "ms"),
        Figure("lint 100 tasks, every template new", _least_ms(_new_each_time(100, rounds)), "ms"),
        Figure("lint 300 tasks, every template new", _least_ms(_new_each_time(300, rounds)), "ms", GOAL_MS),
        Figure("lint 300 tasks, one template new", _least_ms(_edited(300, rounds)), "ms"),
        Figure("lint 300 tasks, each connected to all", _least_ms([_dense(300)] * rounds), "ms"),
    )


def _new_each_time(tasks: int, rounds: int) -> Iterator[FlowVersion]:
    for number in range(rounds):
        yield _parsed(documents.build_version(tasks, salt=f" Lint {tasks}.{number}."))


def _edited(tasks: int, rounds: int) -> Iterator[FlowVersion]:
    for number in range(rounds):
        raw = documents.build_version(tasks)
        lint(_parsed(raw), ENVIRONMENT)
        raw["tasks"][0]["prompt"] += f" Edited {number}."
        yield _parsed(raw)


def _dense(tasks: int) -> FlowVersion:
    """As many connections as there can be. Short ids keep the document within its limit."""
    raw = documents.build_version(tasks)
    ids = [str(number) for number in range(tasks)]
    for task_id, task in zip(ids, raw["tasks"], strict=True):
        task |= {"_id": task_id, "prompt": "Settle it.", "connectedTasks": ids}
    return _parsed({**raw, "firstTask": ids[0]})


def _parsed(raw: documents.JsonObject) -> FlowVersion:
    return parse_version(documents.complete(raw))


def _least_ms(versions: Iterable[FlowVersion]) -> float:
    return least_s(partial(lint, version, ENVIRONMENT) for version in versions) * 1e3


def main() -> int:
    figures = measure_lint()
    for figure in figures:
        goal = "" if figure.at_most is None else f"  (at most {figure.at_most:g})"
        print(f"{figure.name:<42} {figure.value:8.1f} {figure.unit}{goal}")
    return 0 if all(figure.met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
