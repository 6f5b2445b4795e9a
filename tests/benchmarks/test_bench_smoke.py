"""The benchmark's own parts work, and its two goals that do not depend on the machine's speed hold."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from dataclasses import replace

import orjson
import pytest

from benchmarks import documents, report
from benchmarks.budgets import loop_us, read_budgets
from benchmarks.micro import STEP_RATIO_NAME, measure_lint, measure_parts
from benchmarks.processes import Cores
from benchmarks.results import Figure, Rate, Results, RoundTrips
from benchmarks.roundtrips import count_round_trips
from benchmarks.scale import Check
from benchmarks.scale_model import PAGE, Assumptions, Figures, limits, plan, read_figures, to_text
from benchmarks.servers import ROOT
from benchmarks.throughput import SCENES

pytestmark = [
    pytest.mark.long,
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="reads CPU times and sets cores as Linux does"),
]


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")
async def test_every_call_keeps_to_its_round_trips() -> None:  # F15
    rows = await count_round_trips(Cores.choose(), repeat=3)
    judged = {row.call: row.measured for row in rows if row.goal is not None}
    assert judged == {
        "new contact": 1,
        "change task": 1,
        "resume (second contact)": 2,
        "same contact again": 2,
        "prompt": 1,
        "memory put": 1,
    }


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")
async def test_every_request_is_measured_beside_the_least_that_it_could_cost() -> None:  # F15
    command = [sys.executable, "-m", "benchmarks.steps", "--rounds", "1", "--conversations", "16"]
    printed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    ).stdout
    rows = {line[:22].strip(): line[22:].split() for line in printed.splitlines()[1:]}
    kinds = {"new contact", "prompt", "memory put", "prompt again", "change task", "end contact"}
    assert rows.keys() == kinds | {"by kind, the mix", "by turns, the mix"}
    for dear in ("new contact", "memory put", "change task"):
        cost, least = map(int, rows[dear])
        assert cost > least > 0


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


FIGURES = Figures(
    requests=45,
    service_ms=8.0,
    unheld_ms=16.0,
    clustered_ms=10.0,
    worker_ms=5.0,
    redis_ms=2.0,
    common_ms=0.5,
    stored_kb=20.0,
    archived_kb=4.0,
    http_kb=200.0,
    gzip_kb=50.0,
    redis_kb=100.0,
    events=10.0,
    event_kb=0.5,
    jobs=5.0,
    held_kb=16.0,
    state_kb=8.0,
    idle_mb=100.0,
)


async def test_what_so_many_conversations_need_follows_from_what_one_costs() -> None:
    given = Assumptions(peak_share=0.36, process_load=0.5, redis_load=0.5, fragmentation=1.0)
    small, large = (plan(FIGURES, a_day, given) for a_day in (10_000, 10_000_000))
    assert small.a_second == pytest.approx(1)
    assert (small.processes, small.workers, small.shards, small.cells) == (2, 2, 1, 1)
    assert large.processes == 20  # 1,000 a second, 10 ms each where Redis is a cluster, half a core
    assert large.held == pytest.approx(15_000)  # 50 a second in each, five minutes long
    assert large.held_mib == pytest.approx(228.9, rel=0.001)  # 16 kB each
    assert large.workers == 10
    assert large.shards == 16  # 200 GB, 12 GiB each
    assert large.shards_because == "memory"
    assert large.cells == 1
    assert large.mongo_gib == pytest.approx(1717, rel=0.01)  # 4 kB, half as much again, for 30 days
    assert (small.mongo_sets, large.mongo_sets) == (1, 1)
    assert plan(FIGURES, 15_000_000, given).mongo_sets == 2  # 2,000 GiB each
    assert plan(FIGURES, 25_000_000, given).cells == 3  # 2,500 a second, 0.5 ms each, half a core
    assert large.cost_of_a_thousand < small.cost_of_a_thousand


async def test_the_limit_that_is_met_first_is_told_first() -> None:
    given = Assumptions(peak_share=0.36, process_load=0.5, redis_load=0.5, fragmentation=1.0, lasts_minutes=1)
    met = limits(FIGURES, given)
    assert [limit.a_day for limit in met] == sorted(limit.a_day for limit in met)
    assert met[0].what == "a core of `serve`"
    assert met[0].a_day == pytest.approx(625_000)
    assert any("MongoDB" in limit.what and limit.a_day == pytest.approx(11.65e6, rel=0.01) for limit in met)
    [held] = [limit for limit in met if "holds" in limit.what]
    assert held.a_day == pytest.approx(1_398_101, rel=0.001)  # 64 MiB, 8 kB each for a minute
    assert "16.0 ms" in held.then
    slow = limits(replace(FIGURES, common_ms=50.0), given)
    assert "share" in slow[0].what


async def test_a_prediction_that_is_off_by_more_than_a_third_does_not_hold() -> None:
    assert Check("CPU", 3.0, 3.9, "ms").holds
    assert not Check("CPU", 3.0, 4.1, "ms").holds
    assert not Check("CPU", 3.0, 1.9, "ms").holds


async def test_the_page_on_scale_shows_the_figures_that_are_kept() -> None:
    _, _, rest = PAGE.read_text(encoding="utf-8").partition("```figures\n")
    assert rest.partition("\n```\n")[0] == to_text(read_figures(), Assumptions())
