"""The benchmark's own parts work, and its two goals that do not depend on the machine's speed hold."""

from __future__ import annotations

import itertools
import shutil
import sys

import orjson
import pytest

from benchmarks import documents, report
from benchmarks.budgets import loop_us, read_budgets
from benchmarks.lint_time import measure_lint
from benchmarks.micro import STEP_RATIO_NAME, measure_parts
from benchmarks.processes import Cores
from benchmarks.results import Figure, Rate, Results, RoundTrips
from benchmarks.roundtrips import count_round_trips
from benchmarks.throughput import SCENES

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="reads CPU times and sets cores as Linux does"),
]


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")
async def test_every_call_keeps_to_its_round_trips() -> None:  # F15
    rows = await count_round_trips(Cores.choose(), repeat=3)
    judged = {row.call: row.measured for row in rows if row.goal is not None}
    assert judged == {
        "new contact": 2,
        "change task": 1,
        "resume (second contact)": 2,
        "same contact again": 2,
        "prompt": 1,
        "memory put": 1,
    }


async def test_a_step_costs_the_same_whatever_the_number_of_tasks() -> None:  # F10
    figures = {figure.name: figure for figure in measure_parts(rounds=3)}
    assert figures[STEP_RATIO_NAME].value < 1.5


async def test_the_linter_is_judged_by_its_first_look_at_300_tasks() -> None:  # F9
    goals = {figure.name: figure.at_most for figure in measure_lint(rounds=1) if figure.at_most is not None}
    assert goals == {"lint 300 tasks, every template new": 250.0}


@pytest.mark.parametrize("tasks", [12, 100])
async def test_a_walk_only_takes_connections_that_the_version_has(tasks: int) -> None:
    version = documents.build_version(tasks)
    connected = {task["_id"]: task["connectedTasks"] for task in version["tasks"]}
    steps = [version["firstTask"], *documents.walk(tasks), documents.walk(tasks)[0]]
    for left, entered in itertools.pairwise(steps):
        assert entered in connected[left]


async def test_a_missed_goal_is_named_in_both_forms_of_the_report() -> None:
    missed = RoundTrips("prompt", 2, 1, ("GET", "GET"))
    results = Results({}, (missed,), (), (Figure("compile", 1.0, "ms", 50.0),))
    assert results.missed == ["prompt"]
    assert "Goals missed: prompt" in report.to_text(results)
    assert orjson.loads(report.to_json(results))["missed"] == ["prompt"]


def rate(loops: float, budget: float | None) -> Rate:
    return Rate("hot", "prompt", 12, 1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, loops, budget)


async def test_a_request_over_its_budget_by_a_fifth_is_a_missed_goal() -> None:
    rates = (rate(11.9, 10.0), rate(1e9, None), rate(12.1, 10.0))
    assert [each.met for each in rates] == [True, True, False]
    assert Results({}, (), rates).missed == ["hot, 12 tasks: prompt"]


async def test_every_request_of_every_scene_has_a_budget() -> None:
    names = ("prompt", "change task", "memory put", "new contact", "whole conversation")
    labels = {f"{scene.name}, {scene.tasks} tasks: {name}" for scene in SCENES for name in names}
    assert labels <= read_budgets().keys()
    assert all(budget > 0 for budget in read_budgets().values())


async def test_a_loop_of_work_is_timed() -> None:
    assert 1 < loop_us() < 10_000
