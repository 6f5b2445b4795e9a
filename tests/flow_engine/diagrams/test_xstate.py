"""The exported machine steps in XState as the engine's own chart does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flow_engine.diagrams.graphviz import dot
from flow_engine.diagrams.mermaid import mermaid
from flow_engine.diagrams.xstate import xstate
from flow_engine.documents import parse_version
from flow_engine.errors import CorrectTheInput, ReloadAndDecide
from flow_engine.runtime.compiled import CompiledFlow, compile_flow
from flow_engine.runtime.memory import MemoryEntry
from flow_engine.runtime.rules import TaskGuard
from flow_engine.runtime.statechart import StateConfiguration
from tests.api.harness import clinic, needs
from tests.flow_engine.diagrams.conftest import JavaScript
from tests.flow_engine.diagrams.drawn import draft, runnable_documents, sample
from tests.flow_engine.documents.samples import aio_task, hum_task, minimal_version

EVENTS = ("contact_ended", "contact_resumed", "conversation_closed")
OUTCOMES = ("connected", "completed", "failed", "taken_over", "released")


@dataclass(frozen=True)
class Step:
    event: str
    channel: str
    variables: frozenset[str]
    task_id: str | None = None


def runs(task_ids: list[str], *, at_least: int) -> st.SearchStrategy[list[list[Step]]]:
    """Mostly moves, since a close ends a run; and a pause out of the second sub-state, as one piece."""
    enter = st.builds(_move, st.sampled_from(task_ids), _CHANNEL, _VARIABLES)
    human = st.sampled_from(OUTCOMES).map(lambda outcome: f"human_{outcome}")
    plain = st.builds(_plain, st.one_of(human, human, st.sampled_from(EVENTS)), _CHANNEL, _VARIABLES)
    away = st.sampled_from(("human_connected", "human_taken_over")).map(
        lambda event: [_plain(each) for each in (event, "contact_ended", "contact_resumed")]
    )
    piece = st.one_of(enter.map(_alone), enter.map(_alone), plain.map(_alone), away)
    run = st.lists(piece, min_size=1, max_size=25).map(lambda pieces: [step for p in pieces for step in p])
    return st.lists(run, min_size=at_least, max_size=10)


_CHANNEL = st.sampled_from(("phone", "chat"))
_VARIABLES = st.frozensets(st.sampled_from(("var_string", "var_number")))


def _alone(step: Step) -> list[Step]:
    return [step]


def _move(task_id: str, channel: str, variables: frozenset[str]) -> Step:
    return Step(event_of(task_id), channel, variables, task_id)


def _plain(event: str, channel: str = "phone", variables: frozenset[str] = frozenset()) -> Step:
    return Step(event, channel, variables)


@cache
def event_of(task_id: str) -> str:
    machine: Any = xstate(parse_version(minimal_version(tasks=[aio_task(task_id)], firstTask=task_id)))
    return machine["states"]["active"]["initial"].replace("task:", "enter:", 1)


def in_the_engine(flow: CompiledFlow, run: list[Step]) -> list[str]:
    states = flow.chart.start
    seen = [key_path(flow, states)]
    for step in run:
        states = stepped(flow, states, step)
        seen.append(key_path(flow, states))
    return seen


def stepped(flow: CompiledFlow, states: StateConfiguration, step: Step) -> StateConfiguration:
    if states.phase == "closed":
        return states
    if step.task_id is not None:
        memory = {v: MemoryEntry("string", "t", None, "x", "c", None) for v in step.variables}
        return flow.chart.enter(states, step.task_id, TaskGuard(flow, memory, step.channel))
    if step.event == "contact_ended":
        task = flow.tasks[flow.chart.current_task(states)]
        # Where the task's closure is for one contact, its end closes the conversation: nothing pauses.
        return flow.chart.pause(states) if task.document.closure_config.multi_contact else states
    if step.event == "contact_resumed":
        return flow.chart.resume(states)
    if step.event == "conversation_closed":
        return flow.chart.close(states)
    return flow.chart.human(states, step.event.removeprefix("human_"))


def key_path(flow: CompiledFlow, states: StateConfiguration) -> str:
    if len(states.configuration) == 1:
        return states.configuration[0]
    task = event_of(flow.chart.current_task(states)).replace("enter:", "task:", 1)
    status = states.status
    return "/".join(["active", task, *([] if status is None else [status])])


@pytest.fixture(scope="module")
def step_in_xstate(javascript: Callable[[str], JavaScript]) -> JavaScript:
    return javascript("xstate/step.mjs")


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), document=runnable_documents())
@pytest.mark.long
def test_random_events_lead_to_the_same_states_in_both(  # F10 F11 F27
    step_in_xstate: JavaScript, data: st.DataObject, document: dict[str, Any]
) -> None:
    flow = compile_flow(document, "hash")
    assert_same(step_in_xstate, flow, document, data.draw(runs(list(flow.tasks), at_least=8)))


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.parametrize("name", ["claim.es.json", "health-booking.it.json", "order.en.json"])
@given(data=st.data())
def test_a_sample_steps_the_same_in_both(  # F27
    step_in_xstate: JavaScript, data: st.DataObject, name: str
) -> None:
    flow = compile_flow(sample(name), "hash")
    assert_same(step_in_xstate, flow, sample(name), data.draw(runs(list(flow.tasks), at_least=5)))


def assert_same(
    step_in_xstate: JavaScript, flow: CompiledFlow, document: dict[str, Any], given_runs: list[list[Step]]
) -> None:
    found = step_in_xstate(
        {
            "machine": xstate(parse_version(document)),
            "runs": [
                [{"event": s.event, "channel": s.channel, "variables": sorted(s.variables)} for s in run]
                for run in given_runs
            ],
        }
    )
    assert found == [in_the_engine(flow, run) for run in given_runs]


def test_the_guards_say_what_they_ask_for() -> None:  # F11 F27
    visit = {"name": "Visit", "transitionParameters": needs("var_string"), "channels": ["phone"]}
    document = minimal_version(
        tasks=[
            aio_task(connectedTasks=["visit", "both", "on_phone"]),
            aio_task("visit", **{**visit, "channels": None}),
            aio_task("both", **{**visit, "name": "Both"}),
            aio_task("on_phone", channels=["phone"]),
        ]
    )
    machine = json.loads(json.dumps(xstate(parse_version(document))))
    has = {"type": "hasVariables", "params": {"required": ["var_string"]}}
    on_phone = {"type": "channelIs", "params": {"channels": ["phone"]}}
    assert machine["states"]["active"]["states"]["task:reception"]["on"] == {
        "enter:visit": {"target": "task:visit", "guard": has},
        "enter:both": {
            "target": "task:both",
            "guard": {"type": "and", "params": {"guards": [has, on_phone]}},
        },
        "enter:on_phone": {"target": "task:on_phone", "guard": on_phone},
    }


def test_a_version_for_one_contact_has_nothing_between_contacts() -> None:  # F10
    machine = xstate(parse_version(clinic()))
    assert list(machine["states"]) == ["active", "closed"]  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("changes", "gap"),
    [
        ({"firstTask": "reception"}, "there is no task 'away'"),
        ({"tasks": [aio_task()]}, "the first task is not set"),
        ({"tasks": [aio_task(), aio_task()], "firstTask": "reception"}, "two tasks have the id 'reception'"),
        ({"tasks": [aio_task()], "firstTask": "gone"}, "there is no task 'gone'"),
    ],
)
def test_a_draft_that_does_not_hold_together_is_no_machine_and_is_told_why(  # F8 F27
    changes: dict[str, Any], gap: str
) -> None:
    unfinished = draft(**{"tasks": [aio_task(connectedTasks=["away"])], **changes})
    with pytest.raises(ReloadAndDecide) as refused:
        xstate(unfinished)
    assert refused.value.code == "draft_incomplete"
    assert gap in refused.value.detail


def test_guards_that_would_fill_the_memory_are_refused() -> None:  # F27
    wide = [f"v{'x' * 3_000}{number}" for number in range(30)]
    ids = [f"t{number}" for number in range(90)]
    tasks = [aio_task("hub", transitionParameters=needs(*wide), connectedTasks=ids)]
    tasks += [aio_task(each, connectedTasks=["hub"]) for each in ids]
    with pytest.raises(CorrectTheInput, match="diagram_too_large"):
        xstate(draft(tasks=tasks, firstTask="hub"))


def test_what_a_connection_does_by_itself_is_told_in_every_notation() -> None:  # F27
    ways = {"b": {"advance": "auto", "when": "has(vars.var_string)"}, "c": {"advance": "suggest"}}
    tasks = [aio_task("a", connectedTasks=["b", "c"], connectionConditions=ways)]
    tasks += [aio_task(each, connectedTasks=["a"]) for each in ("b", "c")]
    version = parse_version(minimal_version(tasks=tasks, firstTask="a"))
    machine: Any = xstate(version)
    enter = machine["states"]["active"]["states"]["task:a"]["on"]
    assert [enter[f"enter:{each}"]["meta"] for each in "bc"] == [{"advance": "auto"}, {"advance": "suggest"}]
    assert "meta" not in machine["states"]["active"]["states"]["task:b"]["on"]["enter:a"]
    labels = mermaid(version).splitlines()
    assert any("t0 --> t1 : by itself · when has" in line for line in labels)
    assert any(line.endswith("t0 --> t2 : suggested") for line in labels)
    assert dot(version).count("by itself when") == dot(version).count("suggested") == 1


def test_conditions_are_guards_and_labels() -> None:  # F27
    document = minimal_version(
        tasks=[
            aio_task("a", connectedTasks=["b"], connectionConditions={"b": {"when": "has(vars.var_string)"}}),
            aio_task("b", connectedTasks=["a"], entryCondition={"when": "channel == 'chat'"}),
        ],
        firstTask="a",
    )
    version = parse_version(document)
    machine: Any = xstate(version)
    whens = ["has(vars.var_string)", "channel == 'chat'"]
    assert machine["states"]["active"]["states"]["task:a"]["on"]["enter:b"]["guard"] == {
        "type": "and",
        "params": {"guards": [{"type": "conditionHolds", "params": {"when": when}} for when in whens]},
    }
    assert "guard" not in machine["states"]["active"]["states"]["task:b"]["on"]["enter:a"]
    labels = mermaid(version).splitlines()
    assert any("t0 --> t1 : when has" in line and " · when channel" in line for line in labels)
    assert dot(version).count("t0 -> t1 [label=") == 1
    assert "t1 -> t0\n" in dot(version)


def test_a_task_with_approval_has_the_states_of_its_texts() -> None:
    task = hum_task("answers", type="AIS", approval=True)
    version = parse_version(minimal_version(tasks=[task], firstTask="answers"))
    drawn: Any = xstate(version)
    states = drawn["states"]["active"]["states"]["task:answers"]["states"]
    asking = {"human_waiting": "waiting", "human_taken_over": "human"}
    decisions = ("approved", "edited", "rejected", "timeout")
    assert states == {
        "ai": {"on": asking},
        "waiting": {"on": {**{f"human_{each}": each for each in decisions}, "human_taken_over": "human"}},
        **{each: {"on": asking} for each in decisions},
        "human": {"on": {"human_released": "ai"}},
    }
    assert "t0_waiting --> t0_edited : edited" in mermaid(version)
    assert "waiting" in dot(version)
