"""Parts of the core on their own, by CPU time: the least of several rounds, so that other load on the
machine does not count."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial

import orjson

from benchmarks import documents
from benchmarks.processes import least_s
from benchmarks.results import Figure
from flow_engine.documents import DocumentLimits, FlowVersion, ReviewEnvironment, parse_version
from flow_engine.linting import lint
from flow_engine.runtime.compiled import CompiledFlow, compile_flow
from flow_engine.templates import TemplateScope, compile_template
from flow_engine.use_cases.submissions import Submissions
from system_prompts.loader import load_system_prompts

COMPILE_MS = 50.0
LINT_MS = 250.0
STEP_RATIO = 1.25  # about equal: what is left is the noise of two short measurements
STEP_RATIO_NAME = "step in 100 tasks / step in 12 tasks"
_NOW = datetime(2026, 1, 15, 9, tzinfo=UTC)
ENVIRONMENT = ReviewEnvironment(frozenset({"v1"}), frozenset({"default"}), frozenset({"en-US"}))


class _AlwaysOpen:
    def allows(self, task_id: str) -> bool:
        return True


def measure_parts(*, rounds: int) -> tuple[Figure, ...]:
    # First, while no version is in use that has the same chart.
    compiling = _compile_ms(12, rounds), _compile_ms(100, rounds)
    small, large = _compiled(12), _compiled(100)
    steps = {12: 1e9, 100: 1e9}
    for _ in range(rounds):  # in turns, so that a slow spell of the machine hits both
        steps[12] = min(steps[12], _step_us(small, 12))
        steps[100] = min(steps[100], _step_us(large, 100))
    return (
        Figure("compile a version of 12 tasks", compiling[0], "ms"),
        Figure("compile a version of 100 tasks", compiling[1], "ms", COMPILE_MS),
        Figure("step (enter a task) in 12 tasks", steps[12], "us"),
        Figure("step (enter a task) in 100 tasks", steps[100], "us"),
        Figure(STEP_RATIO_NAME, steps[100] / steps[12], "", STEP_RATIO),
        *(_checking(tasks, rounds) for tasks in (100, 300)),
        *(_parsing(tasks, rounds) for tasks in (100, 300)),
        Figure("render a task's prompt template", _render_us(small, rounds), "us"),
    )


def _compiled(tasks: int) -> CompiledFlow:
    return compile_flow(documents.complete(documents.build_version(tasks)), "hash")


def _compile_ms(tasks: int, rounds: int) -> float:
    def prepare(number: int) -> Callable[[], object]:
        # New texts each time: compiled templates are cached by their source.
        raw = documents.complete(documents.build_version(tasks, salt=f" Edition {tasks}.{number}."))
        return lambda: compile_flow(raw, "hash")

    return least_s(map(prepare, range(rounds))) * 1e3


def _step_us(flow: CompiledFlow, tasks: int, steps: int = 300) -> float:
    route, guard = documents.walk(tasks), _AlwaysOpen()
    states = flow.chart.start
    started = time.process_time()
    for number in range(steps):
        states = flow.chart.enter(states, route[number % len(route)], guard)
    return (time.process_time() - started) / steps * 1e6


def _checking(tasks: int, rounds: int) -> Figure:
    submissions = Submissions(load_system_prompts(), DocumentLimits(), lambda: "version-1")

    def prepare(number: int) -> Callable[[], object]:
        salt = f" Check {tasks}.{number}."
        body = orjson.dumps(documents.build_version(tasks, salt=salt))
        return lambda: submissions.check(body, flow_id="flow-1", created_by="benchmark", now=_NOW)

    milliseconds = least_s(map(prepare, range(rounds))) * 1e3
    return Figure(f"check a posted version of {tasks} tasks", milliseconds, "ms")


def _parsing(tasks: int, rounds: int) -> Figure:
    raw = documents.complete(documents.build_version(tasks))
    milliseconds = least_s([lambda: parse_version(raw)] * rounds) * 1e3
    return Figure(f"parse a stored version of {tasks} tasks", milliseconds, "ms")


def _render_us(flow: CompiledFlow, rounds: int, repeat: int = 500) -> float:
    variables = {spec.id: spec.name for spec in flow.variables}
    scope = TemplateScope(
        variables=variables,
        values=dict.fromkeys(variables, "something"),
        tenant={"shop": "Aurora Clinic"},
        contact={"name": "Ada"},
        channel="phone",
        language="en-US",
        flow={"id": "flow-1"},
        task={"id": documents.task_id(0)},
    )
    template = compile_template(flow.tasks[documents.task_id(0)].document.prompt)

    def render() -> None:
        for _ in range(repeat):
            template.render(scope)

    return least_s([render] * rounds) / repeat * 1e6


def measure_lint(*, rounds: int) -> tuple[Figure, ...]:
    """Parsing is no part of it. Compiled templates are cached by their source: the goal is for a version that
    was never seen, whose every template is compiled; a check after an edit compiles one."""
    return (
        Figure("lint 12 tasks, every template new", _least_ms(_new_each_time(12, rounds)), "ms"),
        Figure("lint 100 tasks, every template new", _least_ms(_new_each_time(100, rounds)), "ms"),
        Figure("lint 300 tasks, every template new", _least_ms(_new_each_time(300, rounds)), "ms", LINT_MS),
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
