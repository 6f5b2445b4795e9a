"""What real projects of Rasa hold beside flows, slots and texts: choices, cases, handovers, agents, questions
that actions ask."""

from __future__ import annotations

from typing import Any

import pytest

from flow_engine.errors import CorrectTheInput
from flow_engine.importing import IMPORTERS
from tests.flow_engine.importing.originals import Imported, errors_of, pointed_at


def project(steps: Any, **more: Any) -> Imported:
    raw: Any = {"flows": {"book": {"description": "x", "steps": steps}, **more.pop("flows", {})}, **more}
    found = Imported(IMPORTERS["rasa"](raw))
    assert errors_of(found.document) == []
    assert [each for each in found.draft.remarks if not pointed_at(raw, each["pointer"])] == []
    return found


def test_choices_are_offered() -> None:
    buttons = [{"title": "Sea", "payload": "/set(view=sea)"}, {"title": "Street", "payload": "street"}]
    answers = {"utter_ask_view": [{"text": "Which view?", "buttons": buttons}]}
    found = project([{"collect": "view"}], responses=answers)
    assert found.tasks["book"]["prompt"] == '1. Ask for view: "Which view?" (choices: Sea; Street)'
    assert found.draft.remarks == ()


@pytest.mark.parametrize(
    ("condition", "words"),
    [("slots.vip", "slots.vip"), ([{"type": "slot", "name": "vip", "value": True}], "slots.vip is True")],
)
def test_what_is_said_in_a_case_is_said_in_that_case(condition: Any, words: str) -> None:
    always, case = {"text": "Welcome."}, {"text": "Welcome back.", "condition": condition}
    for answers in ([always, case], [case, always]):
        found = project([{"action": "utter_hello"}], responses={"utter_hello": answers})
        told = f'1. Say: if {words}: "Welcome back."; otherwise: "Welcome."'
        assert found.tasks["book"]["prompt"] == told
    found = project([{"action": "utter_hello"}], responses={"utter_hello": [case]})
    assert found.tasks["book"]["prompt"] == f'1. Say: if {words}: "Welcome back."'


def test_what_a_slot_refuses_is_refused_wherever_it_is_asked_for() -> None:
    slots = {"age": {"type": "float", "validation": {"rejections": [{"if": "slots.age < 18"}]}}}
    found = project([{"collect": "age"}], slots=slots)
    assert found.tasks["book"]["prompt"].endswith("Refuse it if slots.age < 18.")


def test_a_condition_of_a_flow_that_others_lead_to_is_told() -> None:
    pay = {"description": "y", "if": "slots.known", "steps": [{"action": "utter_y"}]}
    slots = {"known": {"type": "bool"}}
    for steps, told in (
        ([{"link": "pay"}], True),
        ([{"call": "pay"}], True),
        ([{"action": "utter_x"}], False),
    ):
        found = project(steps, flows={"pay": pay}, slots=slots)
        assert found.tasks["pay"]["entryCondition"]["when"] == "vars.known == true"
        assert ("/flows/pay/if" in {each["pointer"] for each in found.draft.remarks}) is told


@pytest.mark.parametrize(("when", "told"), [({}, True), ({"if": False}, False)])
def test_a_link_s_condition_that_binds_users_too_is_told(when: dict[str, Any], told: bool) -> None:
    pay = {"description": "y", "steps": [{"action": "utter_y"}], **when}
    branch = [{"if": "slots.known", "then": [{"link": "pay"}]}, {"else": "END"}]
    found = project([{"noop": True, "next": branch}], flows={"pay": pay}, slots={"known": {"type": "bool"}})
    assert [each["message"] for each in found.draft.remarks if each["pointer"] == "/flows/pay"] == (
        ["'pay': in 'book' the condition of the link binds users who ask for it, too"] if told else []
    )


@pytest.mark.parametrize("kind", ["stories", "rules", "forms", "intents"])
def test_a_project_without_flows_is_told_what_is_read(kind: str) -> None:
    with pytest.raises(CorrectTheInput, match="accepted are flows, as CALM has them"):
        IMPORTERS["rasa"]({kind: []})


@pytest.mark.parametrize("actions", [["action_ask_room"], [{"action_ask_room": {"send_domain": True}}]])
def test_a_question_that_an_action_asks_is_a_tool(actions: Any) -> None:
    found = project([{"collect": "room"}], actions=actions)
    assert found.tasks["book"]["prompt"] == "1. Ask for room: call action_ask_room, which says how."
    (selection,) = found.tasks["book"]["mcpToolSelection"]
    assert [each["toolName"] for each in selection["selectedTools"]] == ["action_ask_room"]


class TestPersons:
    def test_rasa_s_own_handover_is_a_human_s_task_though_no_file_has_it(self) -> None:
        branch = [{"if": "slots.tries > 2", "then": [{"link": "pattern_human_handoff"}]}, {"else": "END"}]
        found = project([{"noop": True, "next": branch}], slots={"tries": {"type": "float"}})
        assert found.tasks["pattern_human_handoff"]["type"] == "HUM"
        assert found.condition("book", "pattern_human_handoff")["when"] == "vars.tries > 2"
        assert "pattern_human_handoff" in found.document["globalTasks"]
        assert found.remark("/flows")[0] == "changed"
        assert found.tasks["book"]["prompt"].endswith("Otherwise: this is settled.")

    def test_a_handover_of_the_project_s_own_says_what_it_says(self) -> None:
        own = {"description": "to the desk", "steps": [{"action": "utter_wait"}]}
        found = project(
            [{"action": "utter_x"}],
            flows={"pattern_human_handoff": own},
            responses={"utter_wait": [{"text": "One moment."}]},
        )
        person = found.tasks["pattern_human_handoff"]
        assert (person["type"], person["description"]) == ("HUM", "to the desk")
        assert person["prompt"] == '1. Say: "One moment."'

    def test_another_pattern_is_told_as_the_platform_s(self) -> None:
        found = project([{"link": "pattern_chitchat"}])
        told = "what Rasa does in 'pattern_chitchat' is a rule of the platform's prompts here"
        assert found.remark("/flows/book/steps/0") == ("dropped", told)


def test_what_is_called_and_is_no_flow_is_a_tool() -> None:
    steps = [{"call": "luggage_agent"}, {"call": "find_room", "mcp_server": "rooms"}]
    servers = [{"name": "rooms", "url": "https://rooms.example.com/mcp", "type": "http"}]
    found = project(steps, mcp_servers=servers)
    assert {each["name"]: each["url"] for each in found.document["mcpServers"]} == {
        "imported-tools": "https://tools.invalid/mcp",
        "rooms": "https://rooms.example.com/mcp",
    }
    assert found.tasks["book"]["prompt"] == "1. Call luggage_agent.\n2. Call find_room."
    told = "no flow is called 'luggage_agent': an agent is a tool here"
    assert found.remark("/flows/book/steps/0") == ("changed", told)


def test_what_a_call_passes_and_sets_is_the_tool_s_parameters_and_result_mapping() -> None:
    mapping = {
        "input": [{"param": "city", "slot": "town"}, {"param": "day", "slot": "nothing"}],
        "output": [
            {"slot": "room", "value": "result.structuredContent.rooms[0].name"},
            {"slot": "price", "value": "{{ result.structuredContent.price }}"},
            {"slot": "town", "value": "result.content[0].text"},
            {"slot": "town", "value": "result.structuredContent.[x"},
        ],
    }
    steps = [{"call": "find_room", "mcp_server": "rooms", "mapping": mapping}]
    tools = {"type": "text", "mappings": [{"type": "controlled"}]}
    slots = {"town": {"type": "text"}, "room": tools, "price": tools}
    found = project(
        steps, slots=slots, mcp_servers=[{"name": "rooms", "url": "https://rooms.example.com/mcp"}]
    )
    (selection,) = found.tasks["book"]["mcpToolSelection"]
    assert selection["selectedTools"] == [
        {
            "toolName": "find_room",
            "toolParameters": [
                {"parameterName": "city", "assignmentStrategy": "variable", "assignmentValue": "town"}
            ],
            "resultMapping": {"room": "$.rooms[0].name", "price": "$.price"},
        }
    ]
    dropped = [each["pointer"] for each in found.draft.remarks if each["kept"] == "dropped"]
    at = "/flows/book/steps/0/mapping"
    assert dropped == [f"{at}/input/1", f"{at}/output/2", f"{at}/output/3"]


@pytest.mark.parametrize(
    ("value", "mappings", "when"),
    [
        (True, [{"type": "from_llm"}], None),
        (None, [{"type": "from_llm"}], "vars.done == true"),
        (True, [{"type": "controlled"}], "vars.done == true"),
    ],
    ids=["set alone", "forgotten", "written by tools too"],
)
def test_a_condition_on_what_a_flow_alone_sets_is_the_model_s(value: Any, mappings: Any, when: Any) -> None:
    branch = [{"if": "slots.done", "then": [{"link": "pay"}]}, {"else": "END"}]
    found = project(
        [{"set_slots": [{"done": value}]}, {"noop": True, "next": branch}],
        flows={"pay": {"description": "y", "steps": [{"action": "utter_y"}]}},
        slots={"done": {"type": "bool", "mappings": mappings}},
    )
    assert found.tasks["book"]["connectedTasks"] == ["pay"]
    assert found.condition("book", "pay").get("when") == when


@pytest.mark.parametrize(
    ("written", "when"),
    [
        ("slots.kind != 'shop'", "not (has(vars.kind) and vars.kind == 'shop')"),
        ("slots.kind is not 'shop'", "not (has(vars.kind) and vars.kind == 'shop')"),
        ("not slots.kind != 'shop'", "vars.kind == 'shop'"),
        ("not slots.age >= 18", "not (has(vars.age) and vars.age >= 18)"),
        ("slots.kind is not null", "has(vars.kind)"),
        ("not slots.kind is undefined", "has(vars.kind)"),
        ("slots.kind is empty", "not has(vars.kind)"),
        (
            "slots.vip and slots.kind or slots.age < 9",
            "vars.vip == true and (has(vars.kind) or vars.age < 9)",
        ),
        ("slots.vip or slots.kind or slots.age < 9", "vars.vip == true or has(vars.kind) or vars.age < 9"),
        ("slots.kind == slots.other", None),
        ("slots.kind != context.previous_flow_name", None),
    ],
)
def test_a_condition_means_what_it_means_to_rasa(written: str, when: str | None) -> None:
    """`!=` holds where nothing is known, `and` binds no closer than `or`."""
    raw: Any = {
        "flows": {"pay": {"description": "y", "if": written, "steps": [{"action": "utter_y"}]}},
        "slots": {"kind": {}, "other": {}, "age": {"type": "float"}, "vip": {"type": "bool"}},
    }
    found = Imported(IMPORTERS["rasa"](raw))
    assert found.tasks["pay"].get("entryCondition", {}).get("when") == when
    assert ("/flows/pay/if" in {each["pointer"] for each in found.draft.remarks}) is (when is None)


def test_what_no_step_says_calls_or_fills_is_told() -> None:
    mappings = [{"type": "from_llm"}, {"type": "from_intent", "intent": "affirm", "value": True}]
    found = project(
        [{"action": "utter_hello"}, {"action": "find_room"}, {"collect": "sure"}],
        responses={"utter_hello": [{"text": "Hi."}, {"text": "Hello."}], "utter_bye": [{"text": "Bye."}]},
        actions=["find_room", "validate_sure", "action_restart", "utter_hello"],
        slots={"sure": {"type": "bool", "mappings": mappings}},
    )
    assert [(each["kept"], each["pointer"]) for each in found.draft.remarks[:4]] == [
        ("dropped", "/responses/utter_hello/1"),
        ("dropped", "/responses/utter_bye"),
        ("dropped", "/actions/1"),
        ("dropped", "/slots/sure/mappings/1"),
    ]


def test_what_rasa_does_by_itself_is_no_tool() -> None:
    steps = [{"action": "action_listen"}, {"action": "action_hangup"}, {"action": "find_room"}]
    found = project(steps)
    assert (
        found.tasks["book"]["prompt"]
        == "1. Wait for the answer.\n2. End the conversation.\n3. Call find_room."
    )
    (server,) = found.document["mcpServers"]
    assert [each["toolName"] for each in server["includedTools"]] == ["find_room"]


def test_a_flow_of_the_project_s_own_may_be_called_as_rasa_s_are() -> None:
    own = {"description": "put it in", "steps": [{"action": "utter_done"}]}
    found = project([{"link": "pattern_fill_basket"}], flows={"pattern_fill_basket": own})
    assert found.tasks["book"]["connectedTasks"] == ["pattern_fill_basket"]
    assert found.tasks["pattern_fill_basket"]["description"] == "put it in"


def test_what_opens_a_session_opens_the_first_task() -> None:
    steps = [{"action": "action_session_start"}, {"action": "utter_hello"}]
    found = project(
        [{"action": "utter_x"}],
        flows={"pattern_session_start": {"description": "opens", "steps": steps}},
        responses={"utter_hello": [{"text": "Good morning!"}]},
    )
    assert found.tasks["start"]["prompt"].splitlines()[0] == 'Say: "Good morning!"'
    assert found.remark("/flows/pattern_session_start") == ("changed", "it opens the task 'start'")
