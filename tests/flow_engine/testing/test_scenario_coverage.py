"""Coverage counts what was entered and taken, over all scenarios of a flow."""

from __future__ import annotations

from pathlib import Path

from flow_engine.runtime.compiled import compile_flow
from flow_engine.testing.report import FlowReport, Minimum, RunReport, lines
from flow_engine.testing.running import Played, Share, measure
from service.scenarios import RunOptions, run_files
from tests.api.harness import clinic
from tests.flow_engine.testing.scene import ORDER, run_text

FLOW = compile_flow(clinic(), "hash")
STORY = "scenarios: [{name: a, steps: [%s]}]"


def played(entered: set[str], taken: set[tuple[str, str]]) -> Played:
    return Played("a", 0.0, None, frozenset(entered), frozenset(taken))


def test_what_several_scenarios_reach_adds_up() -> None:
    coverage = measure(
        FLOW,
        [
            played({"reception", "visit"}, {("reception", "visit")}),
            played({"reception", "operator"}, {("reception", "operator"), ("operator", "reception")}),
        ],
    )
    assert coverage.tasks == Share(6, ("supervised", "written", "island"))
    assert coverage.transitions == Share(
        9,
        (
            "reception → supervised",
            "reception → written",
            "Visita Perché → reception",
            "supervised → reception",
            "written → reception",
            "island → reception",
        ),
    )


def test_a_connection_of_a_task_with_itself_does_not_count() -> None:
    document = clinic()
    document["tasks"][0]["connectedTasks"].append("reception")
    assert measure(compile_flow(document, "hash"), []).transitions.total == 9


def test_a_flow_without_transitions_leaves_none_out() -> None:
    assert Share(0, ()).percent == 100.0


def test_only_what_went_through_counts(tmp_path: Path) -> None:
    steps = "change_task: take order, change_task: delivery, expect: {refused: missing_variables}"
    steps = ", ".join(f"{{{step}}}" for step in steps.split(", "))
    [flow] = run_text(tmp_path, STORY % steps).flows
    assert flow.coverage.tasks.reached == 2
    assert flow.coverage.transitions.reached == 1


def test_a_failed_scenario_counts_as_far_as_it_came(tmp_path: Path) -> None:
    [flow] = run_text(tmp_path, STORY % "{change_task: goodbye}, {change_task: moon}").flows
    assert flow.coverage.tasks.reached == 2


def test_a_minimum_is_compared_without_rounding() -> None:
    share = Share(2000, ("one",))
    reached = FlowReport("a.json", "a-v1", measure(FLOW, []))
    almost = FlowReport("b.json", "b-v1", type(reached.coverage)(share, share))
    report = RunReport((), (almost,), Minimum(tasks=100, transitions=99.95))
    assert report.shortfalls == ["b.json: task coverage is 99.9 %, the minimum is 100 %"]


def test_files_on_one_flow_are_measured_together_and_flows_apart(tmp_path: Path) -> None:
    for number, task in enumerate(("goodbye", "complaint")):
        text = f"flow: {ORDER}\nscenarios: [{{name: a, steps: [{{change_task: {task}}}]}}]"
        (tmp_path / f"{number}.yaml").write_text(text)
    (tmp_path / "other.yaml").write_text(
        f"flow: {ORDER.with_name('claim.es.json')}\nscenarios: [{{name: a, steps: [{{wait: 1}}]}}]"
    )
    report = run_files(sorted(tmp_path.glob("*.yaml")), RunOptions())
    assert [(flow.version_id, flow.coverage.tasks.reached) for flow in report.flows] == [
        ("order-v1", 3),
        ("claim-v1", 1),
    ]


def test_what_was_left_out_is_listed(tmp_path: Path) -> None:
    told = list(lines(run_text(tmp_path, STORY % "{change_task: goodbye}")))
    assert "  tasks: 2 of 9, 22.2 %" in told
    assert (
        "    not entered: take order, delivery, payment, card by phone, order status, complaint, colleague"
        in told
    )
