"""`flow-engine flow simulate`: recorded personas, personas played by a model, verdicts and exit codes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any
from xml.etree import ElementTree as Xml

import orjson
import pytest
from click.testing import Result
from typer.testing import CliRunner

from adapters.models.scripted import Answers, CallsTools, Fails, Says, ScriptedModel, Step
from flow_engine.ports.models import LLMRequest, ModelFailed, ToolCall
from flow_engine.testing.simulation import (
    Opinion,
    Recording,
    RunVerdict,
    read_file,
    write_recording,
)
from flow_engine.testing.simulation_report import pass_k
from flow_engine.testing.yaml_text import FileRejected
from service.cli import app
from service.settings import Settings
from service.simulating import Order, Simulated, simulate_with
from tests.flow_engine.testing.scene import BOOKING, CLAIM, ORDER

PERSONAS = Path(__file__).parents[3] / "flows" / "samples" / "personas"
FLOW_OF = {"order": ORDER, "claim": CLAIM, "booking": BOOKING}
EVERY = sorted(path.stem for path in PERSONAS.glob("*.yaml") if not path.stem.endswith(".recorded"))

PERSONA = """
    name: Ruth
    goal: Talk to a colleague.
    mood: calm
    language: en-US
    channel: phone
    expect: {task: colleague}
"""
RECORDED = """
    runs:
      - turns:
          - user: A person, please.
            agent:
              - say: One moment.
              - change_task: colleague
    """


def simulate(*options: object) -> Result:
    return CliRunner().invoke(app, ["flow", "simulate", *map(str, options)])


def written(directory: Path, name: str, text: str) -> Path:
    file = directory / name
    file.write_text(dedent(text), encoding="utf-8")
    return file


def played(directory: Path, *options: object, persona: str = PERSONA, recorded: str = RECORDED) -> Result:
    given = written(directory, "persona.yaml", persona)
    runs = written(directory, "recorded.yaml", recorded)
    return simulate(ORDER, "--persona", given, "--recorded", runs, *options)


def flow_of(persona: str) -> Path:
    return FLOW_OF[persona.partition("-")[0]]


# --- the samples' personas --------------------------------------------------------------------------


def test_every_sample_has_three_personas_with_recordings() -> None:
    assert len(EVERY) == 9
    for flow in FLOW_OF:
        assert sum(name.startswith(flow) for name in EVERY) == 3
    assert all((PERSONAS / f"{name}.recorded.yaml").exists() for name in EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_a_recorded_persona_of_the_samples_passes_without_a_model(name: str) -> None:
    persona, recorded = PERSONAS / f"{name}.yaml", PERSONAS / f"{name}.recorded.yaml"
    done = simulate(flow_of(name), "--persona", persona, "--recorded", recorded, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["passed"] == report["runs"] > 0
    assert (report["failed"], report["passK"]) == (0, 1)


def broken(flow: Path, directory: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A sample after a mistake of its designer."""
    document = orjson.loads(flow.read_bytes())
    change(document["version"])
    file = directory / flow.name
    file.write_bytes(orjson.dumps(document))
    return file


def without_connection(source: str, target: str) -> Callable[[dict[str, Any]], None]:
    def change(version: dict[str, Any]) -> None:
        [task] = [task for task in version["tasks"] if task["_id"] == source]
        task["connectedTasks"].remove(target)
        task.get("connectionConditions", {}).pop(target, None)

    return change


def with_requirement(target: str, variable: str) -> Callable[[dict[str, Any]], None]:
    def change(version: dict[str, Any]) -> None:
        [task] = [task for task in version["tasks"] if task["_id"] == target]
        task["transitionParameters"].append({"variableId": variable, "required": True})

    return change


def id_of(flow: Path, name: str) -> str:
    tasks = orjson.loads(flow.read_bytes())["version"]["tasks"]
    return next(task["_id"] for task in tasks if task.get("name") == name)


@pytest.mark.parametrize(
    ("name", "change", "because"),
    [
        (
            "order-present",
            without_connection(id_of(ORDER, "payment"), id_of(ORDER, "goodbye")),
            "task_not_connected",
        ),
        ("claim-crash", with_requirement(id_of(CLAIM, "perito"), "telefono"), "missing_variables"),
        (
            "booking-cancel",
            with_requirement(id_of(BOOKING, "chiusura"), "nomePaziente"),
            "missing_variables",
        ),
    ],
)
def test_a_flow_that_was_broken_on_purpose_fails(
    tmp_path: Path, name: str, change: Callable[[dict[str, Any]], None], because: str
) -> None:
    flow = broken(flow_of(name), tmp_path, change)
    persona, recorded = PERSONAS / f"{name}.yaml", PERSONAS / f"{name}.recorded.yaml"
    done = simulate(flow, "--persona", persona, "--recorded", recorded, "--json")
    assert done.exit_code == 1, done.output
    report = json.loads(done.stdout)
    assert report["failed"] == report["runs"]
    assert any(f"refused with {because}" in line for line in report["results"][0]["failures"])


# --- verdicts ---------------------------------------------------------------------------------------


def test_a_run_that_passes_says_so_in_lines(tmp_path: Path) -> None:
    done = played(tmp_path)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "Ruth: Talk to a colleague.",
        "  ✓ run 1, 1 turns",
        "1 passed, 0 failed, pass^1 1",
    ]


def test_what_does_not_hold_at_the_end_fails_the_run(tmp_path: Path) -> None:
    done = played(tmp_path, persona=PERSONA.replace("colleague}", "goodbye}"))
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        "Ruth: Talk to a colleague.",
        "  ✗ run 1, 1 turns",
        "      at the end, task: expected 'goodbye', found 'colleague'",
        "0 passed, 1 failed, pass^1 0",
    ]


def test_a_refusal_fails_the_run_whatever_comes_of_it(tmp_path: Path) -> None:
    recorded = RECORDED.replace("- change_task", "- change_task: delivery\n              - change_task")
    done = played(tmp_path, "--json", recorded=recorded)
    assert done.exit_code == 1
    [result] = json.loads(done.stdout)["results"]
    assert result["failures"][0].startswith("change_task: delivery: refused with task_not_connected")
    assert result["failures"][1].endswith("or `refused: task_not_connected` beside it in a recording")


@pytest.mark.parametrize(
    ("action", "marked", "exit_code"),
    [
        ("change_task: delivery", "task_not_connected", 0),
        ("change_task: delivery", "missing_variables", 1),
        ("change_task: nowhere", "task_unknown", 0),
        ("memory: {deliveryMethod: by balloon}", "memory_invalid", 0),
        ("memory: {deliveryMethod: by balloon}", "task_not_connected", 1),
        ("change_task: take order", "task_not_connected", 0),
    ],
    ids=[
        "as marked",
        "another code",
        "unknown task",
        "a value",
        "a value, wrongly marked",
        "no longer refused",
    ],
)
def test_only_a_refusal_that_the_recording_does_not_mark_counts(
    tmp_path: Path, action: str, marked: str, exit_code: int
) -> None:
    extra = f"- {action}\n                refused: {marked}\n              - change_task: colleague"
    done = played(tmp_path, recorded=RECORDED.replace("- change_task: colleague", extra))
    assert done.exit_code == exit_code, done.output


def test_a_contact_that_cannot_begin_is_all_that_is_told_of_a_run(tmp_path: Path) -> None:
    elsewhere = PERSONA.replace("channel: phone", "channel: mail")
    done = played(tmp_path, "--json", persona=elsewhere)
    failures = json.loads(done.stdout)["results"][0]["failures"]
    assert failures[0].startswith("the contact: failed with channel_not_supported")
    assert not [line for line in failures if line.startswith(("user:", "say:", "change_task:", "memory:"))]


def test_fewer_recorded_runs_than_asked_for_repeat(tmp_path: Path) -> None:
    two = (
        RECORDED
        + """
      - turns:
          - agent: [{say: Hello.}]
          - {user: A person., agent: [{change_task: colleague}]}
    """.replace("\n    ", "\n", 0)
    )
    done = played(tmp_path, "--runs", 5, "--json", recorded=two)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["runs"] == report["passed"] == 5
    assert [result["run"] for result in report["results"]] == [1, 2, 3, 4, 5]
    assert [result["turns"] for result in report["results"]] == [1, 2, 1, 2, 1]


def test_runs_do_not_see_each_other(tmp_path: Path) -> None:
    """Each is a conversation of its own: what one remembers no other one knows."""
    persona = PERSONA.replace("{task: colleague}", "{task: colleague, memory: {giftWrap: null}}")
    remembers = RECORDED.replace("- say: One moment.", "- memory: {giftWrap: true}")
    done = played(
        tmp_path, "--json", persona=persona, recorded=remembers + RECORDED.replace("    runs:\n", "")
    )
    report = json.loads(done.stdout)
    assert [result["passed"] for result in report["results"]] == [False, True]
    assert (report["passed"], report["failed"], report["passK"]) == (1, 1, 0)


def test_what_the_user_says_is_read_by_the_rules(tmp_path: Path) -> None:  # F18
    persona = PERSONA.replace("{task: colleague}", "{task: colleague, memory: {orderNumber: 40917}}")
    recorded = RECORDED.replace("A person, please.", "A person, please. My order number is 40917.")
    done = played(tmp_path, persona=persona, recorded=recorded)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("passed", "expected"), [([], 0.0), ([True], 1.0), ([True, True], 1.0), ([True, False], 0.0)]
)
def test_pass_k_is_that_all_of_k_pass(passed: Sequence[bool], expected: float) -> None:
    verdicts = [RunVerdict(at, 1, () if fine else ("failed",)) for at, fine in enumerate(passed)]
    assert pass_k(verdicts) == expected


def test_junit_has_a_case_for_each_run(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    done = played(tmp_path, "--runs", 2, "--junit", file, persona=PERSONA.replace("colleague}", "goodbye}"))
    assert done.exit_code == 1
    [suite] = Xml.parse(file).getroot()
    assert suite.attrib == {"name": "Ruth", "tests": "2", "failures": "2", "errors": "0"}
    assert [case.attrib["name"] for case in suite] == ["run 1", "run 2"]
    assert [case[0].text for case in suite] == ["at the end, task: expected 'goodbye', found 'colleague'"] * 2


def test_a_page_that_cannot_be_written_leaves_what_came_of_the_runs(tmp_path: Path) -> None:
    done = played(tmp_path, "--junit", tmp_path / "nowhere" / "junit.xml")
    assert done.exit_code == 2
    assert "1 passed, 0 failed" in done.stdout


# --- what cannot be read ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("persona", "line"),
    [
        ("[", "not_yaml"),
        ("name: Ruth", "/goal missing"),
        (PERSONA + "    shoes: red\n", "/shoes extra_forbidden"),
        (PERSONA + "    knowlege: {}\n", "/knowlege extra_forbidden: is no property here; nearest are 'know"),
        (PERSONA + "    phone: {interruptAfterMs: 1}\n", "nearest are 'interruptsAfterMs'"),
        (PERSONA + "    maxTurns: 0\n", "/maxTurns greater_than_equal"),
        (PERSONA.replace("{task: colleague}", "{}"), "/expect refused"),
        (PERSONA.replace("{task: colleague}", "{task: nowhere}"), "line 7: /expect/task unknown_name"),
        (PERSONA.replace("phone", "pigeon"), "/channel literal_error"),
    ],
    ids=[
        "no YAML",
        "missing",
        "unknown key",
        "misspelt",
        "misspelt inside",
        "no turn",
        "nothing expected",
        "unknown task",
        "channel",
    ],
)
def test_a_persona_that_cannot_be_used_ends_with_2_and_its_place(
    tmp_path: Path, persona: str, line: str
) -> None:
    done = played(tmp_path, persona=persona)
    assert done.exit_code == 2
    assert line in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("recorded", "line"),
    [
        ("runs: []", "/runs refused"),
        ("runs: [{turns: []}]", "/runs/0/turns refused"),
        ("runs: [{turns: [{user: Hello, agent: [{}]}]}]", "/runs/0/turns/0/agent/0 refused"),
        (
            "runs: [{turns: [{user: Hello, agent: [{say: Hello, change_task: colleague}]}]}]",
            "/runs/0/turns/0/agent/0 refused",
        ),
        ("runs: [{turns: [{user: ''}]}]", "/runs/0/turns/0/user string_too_short"),
        ("runs: [{turns: [{bot: Hello}]}]", "bot extra_forbidden: is no property here; accepted are 'agent'"),
    ],
)
def test_a_recording_that_cannot_be_played_ends_with_2_and_its_place(
    tmp_path: Path, recorded: str, line: str
) -> None:
    done = played(tmp_path, recorded=recorded)
    assert done.exit_code == 2
    assert line in done.stderr


def test_no_mistake_hides_another_and_each_is_in_its_file(tmp_path: Path) -> None:
    persona = PERSONA.replace("{task: colleague}", "{task: nowhere, status: 5}") + "    shoes: red\n"
    done = played(tmp_path, persona=persona, recorded="runs: []")
    assert done.exit_code == 2
    of_persona, of_recording = f"{tmp_path / 'persona.yaml'}: line", f"{tmp_path / 'recorded.yaml'}: line"
    for place in (
        "7: /expect/task unknown_name",
        "7: /expect/status string_type",
        "8: /shoes extra_forbidden",
    ):
        assert f"{of_persona} {place}: " in done.stderr
    assert f"{of_recording} 1: /runs refused: " in done.stderr


def test_a_version_that_cannot_be_used_hides_no_mistake_of_a_file(tmp_path: Path) -> None:
    version = written(tmp_path, "version.json", "{}")
    persona = written(tmp_path, "persona.yaml", "name: Ruth")
    recorded = written(tmp_path, "recorded.yaml", "runs: []")
    done = simulate(version, "--persona", persona, "--recorded", recorded)
    assert done.exit_code == 2
    for part in ("/goal missing", "/runs refused", "version.json"):
        assert part in done.stderr


def test_files_that_are_not_there_end_with_2(tmp_path: Path) -> None:
    persona = written(tmp_path, "persona.yaml", PERSONA)
    recorded = written(tmp_path, "recorded.yaml", RECORDED)
    for flow, given, runs, named in (
        (tmp_path / "none.json", persona, recorded, "none.json"),
        (ORDER, tmp_path / "none.yaml", recorded, "none.yaml"),
        (ORDER, persona, tmp_path / "gone.yaml", "gone.yaml"),
    ):
        done = simulate(flow, "--persona", given, "--recorded", runs)
        assert done.exit_code == 2
        assert named in done.stderr


def test_without_a_model_and_without_a_recording_nothing_can_be_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLOW_ENGINE_LLM_MODEL", raising=False)
    done = simulate(ORDER, "--persona", written(tmp_path, "persona.yaml", PERSONA))
    assert done.exit_code == 2
    assert "--recorded" in done.stderr


@pytest.mark.parametrize(
    ("model", "said"), [("nope", "'nope' names no model; accepted: "), ("openai:m", "set OPENAI_API_KEY")]
)
def test_a_model_that_is_none_is_told_by_the_option_that_named_it(
    monkeypatch: pytest.MonkeyPatch, model: str, said: str
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    persona = PERSONAS / "order-status.yaml"
    done = simulate(ORDER, "--persona", persona, "--model", model)
    assert done.exit_code == 2
    assert done.stderr.startswith("flow-engine: --model: ")
    assert said in done.stderr
    assert "FLOW_ENGINE_LLM_MODEL" not in done.stderr


# --- by a model -------------------------------------------------------------------------------------


class Actors:
    """A model that plays all parts: the lines of the persona, and the steps of the agent, in order."""

    def __init__(self, lines: Sequence[Step], agent: Sequence[Step]) -> None:
        self._steps = {"simulated_user": iter(lines), "simulated_agent": iter(agent)}
        self.model = ScriptedModel(self.step)

    def step(self, request: LLMRequest) -> Step:
        if request.purpose == "simulation_opinion":
            return Answers({"reached": False, "why": "Nobody\nanswered."})
        return next(self._steps[request.purpose])

    def asked(self, purpose: str) -> list[LLMRequest]:
        return [request for request in self.model.requests if request.purpose == purpose]


def says(words: str, *, done: bool = False) -> Answers:
    return Answers({"say": words, "done": done})


def calls(tool: str, **arguments: Any) -> CallsTools:
    return CallsTools([ToolCall(f"call-{tool}", tool, arguments)])


async def talked(directory: Path, actors: Actors, *, persona: str = PERSONA, **changes: Any) -> Simulated:
    given = {"runs": None, "recorded": None, "record": None, "model": None, **changes}
    order = Order(ORDER, written(directory, "persona.yaml", persona), **given)
    return await simulate_with(order, Settings(), actors.model)


@pytest.mark.anyio
async def test_a_persona_talks_until_it_is_done_and_the_chart_decides(tmp_path: Path) -> None:
    actors = Actors(
        [says("A person, please."), says("Thanks, bye.", done=True)],
        [Says("May I ask why?"), calls("change_task", task="colleague"), Says("One moment.")],
    )
    done = await talked(tmp_path, actors)
    [verdict] = done.verdicts
    assert verdict == RunVerdict(1, 2, (), Opinion(reached=False, why="Nobody answered."))
    assert verdict.passed  # the opinion is another one, and does not count

    persona, _ = actors.asked("simulated_user")
    assert persona.messages[0].role == "system"
    for part in ("Ruth", "Talk to a colleague.", "calm", "en-US"):
        assert part in persona.messages[0].content
    first, _, last = actors.asked("simulated_agent")
    assert [tool.name for tool in first.tools] == ["change_task", "remember_values"]
    assert "Find out whether the customer wants to order" in first.messages[0].content
    assert "\n\n## Date and time" in first.messages[0].content  # F24: as an agent gets it
    assert "Find out whether" not in last.messages[0].content
    assert [m.role for m in last.messages] == ["system", "user", "assistant", "user", "assistant", "tool"]


@pytest.mark.anyio
async def test_a_model_stands_in_for_a_tool_that_writes_a_custom_variable(tmp_path: Path) -> None:  # F19
    """No tool of the model's has a place for a description: the value gets one of its own members."""
    actors = Actors(
        [says("A bag of Darjeeling.", done=True)],
        [
            calls("change_task", task="take order"),
            calls("remember_values", values={"cart": {"sku": "DARJ-1"}}),
            calls("change_task", task="delivery"),
            Says("Where to?"),
        ],
    )
    persona, file = PERSONA.replace("colleague}", "delivery}"), tmp_path / "recorded.yaml"
    done = await talked(tmp_path, actors, persona=persona, record=file)
    assert done.verdicts[0].failures == ()
    assert "|cart|sku|DARJ-1|" in actors.asked("simulated_agent")[-1].messages[0].content
    again = await talked(tmp_path, actors, persona=persona, recorded=file)
    assert again.verdicts[0].failures == ()


@pytest.mark.anyio
async def test_what_a_model_played_can_be_played_again_without_it(tmp_path: Path) -> None:
    actors = Actors(
        [says("A person, please.", done=True)],
        [
            calls("change_task", task="delivery"),
            calls("remember_values", values={"giftWrap": True}),
            calls("change_task", task="colleague"),
            Says("One moment."),
        ],
    )
    file = tmp_path / "recorded.yaml"
    done = await talked(tmp_path, actors, record=file)
    assert file.read_text("utf-8") == dedent("""\
        runs:
        - turns:
          - user: A person, please.
            agent:
            - change_task: delivery
              refused: task_not_connected
            - memory:
              - varId: giftWrap
                value: true
            - change_task: colleague
            - say: One moment.
        """)
    assert not done.verdicts[0].passed  # a model that is refused has not done well
    again = await asyncio.to_thread(
        simulate, ORDER, "--persona", tmp_path / "persona.yaml", "--recorded", file
    )
    assert again.exit_code == 0, again.output


@pytest.mark.anyio
async def test_a_conversation_ends_after_its_most_turns(tmp_path: Path) -> None:
    actors = Actors([says("And?")] * 9, [Says("Well.")] * 9)
    done = await talked(tmp_path, actors, persona=PERSONA + "    maxTurns: 3\n")
    assert done.verdicts[0].turns == 3
    assert not done.verdicts[0].passed


@pytest.mark.anyio
async def test_each_of_several_runs_is_talked_anew(tmp_path: Path) -> None:
    actors = Actors(
        [says("A person.", done=True)] * 3, [calls("change_task", task="colleague"), Says("Yes.")] * 3
    )
    done = await talked(tmp_path, actors, runs=3)
    assert [(v.number, v.passed) for v in done.verdicts] == [(1, True), (2, True), (3, True)]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("open_door", {}),
        ("change_task", {}),
        ("change_task", {"task": 7}),
        ("remember_values", {"values": 1}),
    ],
)
async def test_calls_that_are_no_action_are_answered_and_not_recorded(
    tmp_path: Path, tool: str, arguments: Mapping[str, Any]
) -> None:
    actors = Actors([says("Hello.", done=True)], [calls(tool, **arguments), Says("Sorry.")])
    file = tmp_path / "recorded.yaml"
    await talked(tmp_path, actors, record=file)
    assert read_file(Recording, file.read_bytes()).runs[0].turns[0].agent[0].say == "Sorry."
    last = actors.asked("simulated_agent")[-1].messages[-1]
    assert (last.role, json.loads(last.content)) == ("tool", {"error": "these arguments cannot be used"})


@pytest.mark.anyio
async def test_an_agent_that_calls_and_calls_is_cut_short(tmp_path: Path) -> None:
    actors = Actors([says("Hello.", done=True)], [calls("remember_values", values={"giftWrap": True})] * 50)
    done = await talked(tmp_path, actors)
    assert len(actors.asked("simulated_agent")) == 8
    assert done.verdicts[0].turns == 1


@pytest.mark.anyio
async def test_a_model_that_fails_ends_the_simulation(tmp_path: Path) -> None:
    with pytest.raises(ModelFailed, match="timeout"):
        await talked(tmp_path, Actors([Fails("timeout")], []))


@pytest.mark.anyio
async def test_a_model_that_fails_leaves_the_runs_that_it_has_played(tmp_path: Path) -> None:
    record = tmp_path / "runs.yaml"
    actors = Actors([says("Bye.", done=True), Fails("timeout")], [Says("Goodbye.")])
    done = await talked(tmp_path, actors, runs=3, record=record)
    assert [verdict.number for verdict in done.verdicts] == [1]
    assert "timeout" in str(done.failed)
    assert len(read_file(Recording, record.read_bytes()).runs) == 1


@pytest.mark.anyio
async def test_a_recording_that_cannot_be_written_is_told_before_a_model_is_asked(tmp_path: Path) -> None:
    actors = Actors([], [])
    with pytest.raises(FileNotFoundError):
        await talked(tmp_path, actors, record=tmp_path / "nowhere" / "runs.yaml")
    assert actors.model.requests == []


# --- texts that a person reads first ----------------------------------------------------------------

REFUNDS = Path(__file__).parents[3] / "examples" / "refunds" / "flow.json"
CUSTOMER = PERSONA.replace("phone", "chat")
DECIDED = """
    runs:
      - turns:
          - user: My tea came wet.
            agent:
              - memory: {orderNumber: 4711}
              - change_task: refund
              - say: We refund everything.
                decision: {outcome: rejected, reason: only the tea}
              - say: We refund the tea.
                decision: {outcome: edited, text: We refund the wet tea.}
    """


def refunded(directory: Path, expect: str, recorded: str) -> Result:
    persona = CUSTOMER.replace("task: colleague", f"task: refund, {expect}")
    files = written(directory, "persona.yaml", persona), written(directory, "recorded.yaml", recorded)
    return simulate(REFUNDS, "--persona", files[0], "--recorded", files[1])


@pytest.mark.parametrize(
    ("kept", "expect"),
    [
        (DECIDED, "status: edited, prompt_contains: «We refund the wet tea.»"),
        (DECIDED[: DECIDED.rindex("                decision")], "status: approved"),
        (DECIDED[: DECIDED.rindex("              - say")], "status: rejected, prompt_contains: only the tea"),
    ],
)
def test_what_the_agent_writes_is_read_first_by_a_person(
    tmp_path: Path, kept: str, expect: str
) -> None:  # F34
    done = refunded(tmp_path, expect, kept)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("action", "told"),
    [
        ("say: Hi., decision: timeout", "accepted is one of 'approved', 'edited' and 'rejected'"),
        ("say: Hi., decision: edited", "outcome 'edited' needs the text"),
        ("change_task: refund, decision: approved", "accepted is 'decision' beside 'say' alone"),
    ],
)
def test_a_decision_is_one_on_a_text_of_the_agent(tmp_path: Path, action: str, told: str) -> None:  # F34
    done = refunded(tmp_path, "status: ai", f"runs: [{{turns: [{{agent: [{{{action}}}]}}]}}]")
    assert done.exit_code == 2
    assert told in done.stderr


def test_a_decision_where_no_text_waits_fails_the_run(tmp_path: Path) -> None:  # F34
    done = refunded(tmp_path, "status: ai", "runs: [{turns: [{agent: [{say: Hi., decision: approved}]}]}]")
    assert done.exit_code == 1
    assert "'waiting' does not follow in task 'welcome' (AIO)" in done.stdout


@pytest.mark.anyio
async def test_what_a_model_writes_is_approved(tmp_path: Path) -> None:  # F34
    actors = Actors(
        [says("Order 4711.", done=True)],
        [
            calls("remember_values", values={"orderNumber": 4711}),
            calls("change_task", task="refund"),
            Says("We refund the tea."),
        ],
    )
    persona = written(tmp_path, "p.yaml", CUSTOMER.replace("colleague}", "refund, status: approved}"))
    done = await simulate_with(Order(REFUNDS, persona, None, None, None, None), Settings(), actors.model)
    assert done.verdicts[0].failures == ()


# --- recordings as text -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_a_recording_is_written_as_it_is_read(name: str) -> None:
    recording = read_file(Recording, (PERSONAS / f"{name}.recorded.yaml").read_bytes())
    again = read_file(Recording, write_recording(recording).encode())
    assert again == recording


def test_every_mistake_of_a_file_is_listed_at_once() -> None:
    with pytest.raises(FileRejected) as rejected:
        read_file(Recording, b"runs:\n  - turns: [{user: ''}]\n  - turns: []\n  - {}\n")
    assert [(mistake.line, mistake.pointer) for mistake in rejected.value.mistakes] == [
        (2, "/runs/0/turns/0/user"),
        (3, "/runs/1/turns"),
        (4, "/runs/2/turns"),
    ]


# --- the page ---------------------------------------------------------------------------------------


def test_the_page_shows_what_the_command_does(tmp_path: Path) -> None:
    page = (PERSONAS.parents[2] / "docs" / "simulated-users.md").read_text("utf-8")
    persona, recorded = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    given, runs = written(tmp_path, "persona.yaml", persona), written(tmp_path, "recorded.yaml", recorded)
    done = simulate(BOOKING, "--persona", given, "--recorded", runs)
    assert done.exit_code == 0, done.output
    [shown] = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    present = PERSONAS / "order-present"
    files = ("--persona", f"{present}.yaml", "--recorded", f"{present}.recorded.yaml")
    assert simulate(ORDER, *files).stdout == shown
