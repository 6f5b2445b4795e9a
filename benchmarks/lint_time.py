"""How long the linter takes: `python -m benchmarks.lint_time`. Fails when a goal is missed.

CPU time, the least of several rounds, so that other load on the machine does not count. Parsing the
document is not part of it, compiling its templates, each seen for the first time, is.
"""

from __future__ import annotations

import gc
import sys
import time

from benchmarks import documents
from benchmarks.results import Figure
from flow_engine.documents import FlowVersion, ReviewEnvironment, parse_version
from flow_engine.linting import lint

ROUNDS = 7
GOAL_MS = 100.0
ENVIRONMENT = ReviewEnvironment(frozenset({"v1"}), frozenset({"default"}), frozenset({"en-US"}))


def measure(*, rounds: int = ROUNDS) -> tuple[Figure, ...]:
    return (
        Figure("lint a version of 12 tasks", _lint_ms(12, rounds), "ms"),
        Figure("lint a version of 100 tasks", _lint_ms(100, rounds), "ms"),
        Figure("lint a version of 300 tasks", _lint_ms(300, rounds), "ms", GOAL_MS),
        Figure("lint 300 tasks, each connected to all", _dense_ms(rounds), "ms"),
    )


def _lint_ms(tasks: int, rounds: int) -> float:
    return _least_ms(
        [
            parse_version(documents.complete(documents.build_version(tasks, salt=f" Lint {tasks}.{number}.")))
            for number in range(rounds)
        ]
    )


def _dense_ms(rounds: int) -> float:
    raw = documents.complete(documents.build_version(300))
    everywhere = [task["_id"] for task in raw["tasks"]]
    # Two bytes of separators and quotes each: shorter ids keep the document within its limit.
    short = {name: str(number) for number, name in enumerate(everywhere)}
    tasks = [
        {**task, "_id": short[task["_id"]], "prompt": "", "connectedTasks": list(short.values())}
        for task in raw["tasks"]
    ]
    version = parse_version({**raw, "tasks": tasks, "firstTask": "0"})
    return _least_ms([version] * rounds)


def _least_ms(versions: list[FlowVersion]) -> float:
    best = float("inf")
    for version in versions:
        gc.collect()
        started = time.process_time()
        lint(version, ENVIRONMENT)
        best = min(best, time.process_time() - started)
    return best * 1e3


def main() -> int:
    figures = measure()
    for figure in figures:
        goal = "" if figure.at_most is None else f"  (at most {figure.at_most:g})"
        print(f"{figure.name:<42} {figure.value:8.1f} {figure.unit}{goal}")
    return 0 if all(figure.met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
