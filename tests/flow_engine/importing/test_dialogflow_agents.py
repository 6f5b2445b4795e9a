"""What agents of Dialogflow CX consist of beside pages and routes: events, ends of flows, playbooks, and what
they set by themselves."""

from __future__ import annotations

from typing import Any

import pytest

from flow_engine.errors import CorrectTheInput
from flow_engine.importing import IMPORTERS, gathered
from tests.flow_engine.importing.originals import Imported, errors_of, pointed_at


def agent(*flows: Any, **more: Any) -> Imported:
    raw: Any = {"flows": list(flows), **more}
    found = Imported(IMPORTERS["dialogflow-cx"](raw))
    assert errors_of(found.document) == []
    assert [each for each in found.draft.remarks if not pointed_at(raw, each["pointer"])] == []
    return found


def flow(name: str, *pages: Any, **more: Any) -> Any:
    return {"displayName": name, "pages": list(pages), **more}


def said(*messages: Any, **more: Any) -> Any:
    return {"messages": list(messages), **more}


def text(words: str) -> Any:
    return {"text": {"text": [words]}}


class TestWords:
    @pytest.mark.parametrize(
        "audio", [{"text": "Stay on the line."}, {"ssml": "<speak>Stay on <b/>the line.</speak>"}]
    )
    def test_what_is_said_on_the_phone_alone_is_said(self, audio: Any) -> None:
        page = {"displayName": "p", "entryFulfillment": said({"outputAudioText": audio})}
        assert 'Say: "Stay on the line."' in agent(flow("f", page)).tasks["f.p"]["prompt"]

    def test_of_ssml_the_words_are_said(self) -> None:
        words = text('<speak>It is <say-as interpret-as="date">$flow.day</say-as>.</speak>')
        page = {"displayName": "p", "entryFulfillment": said(words)}
        prompt = agent(flow("f", page)).tasks["f.p"]["prompt"]
        assert prompt == 'Say: "It is {{ $tenant.day }} ."'

    def test_what_is_said_on_the_phone_too_is_said_once(self) -> None:
        both = said(text("Stay here."), {"outputAudioText": {"text": "Stay on the line."}})
        prompt = agent(flow("f", {"displayName": "p", "entryFulfillment": both})).tasks["f.p"]["prompt"]
        assert ("Stay here." in prompt, "line" in prompt) == (True, False)

    def test_what_is_said_in_a_case_is_said_in_that_case(self) -> None:
        cases = [
            {"condition": "$session.params.n > 3", "caseContent": [{"message": text("Many.")}]},
            {"caseContent": [{"message": text("Few.")}]},
        ]
        page = {"displayName": "p", "entryFulfillment": said(conditionalCases=[{"cases": cases}])}
        prompt = agent(flow("f", page)).tasks["f.p"]["prompt"]
        assert prompt == 'Say, if n > 3: "Many."\n\nSay, otherwise: "Few."'

    def test_what_is_asked_in_a_case_is_asked_in_that_case(self) -> None:
        cases = [
            {"condition": "$session.params.n > 3", "caseContent": [{"message": text("Who are you all?")}]}
        ]
        asked = {"initialPromptFulfillment": {"conditionalCases": [{"cases": cases}]}}
        form = {"parameters": [{"displayName": "who", "fillBehavior": asked}]}
        prompt = agent(flow("f", {"displayName": "p", "form": form})).tasks["f.p"]["prompt"]
        assert prompt == 'Ask for who.\n\nAsk for who, if n > 3: "Who are you all?"'


class TestParameters:
    def test_a_route_without_an_intent_has_none_though_one_has_no_id(self) -> None:
        routes = [{"condition": "$session.params.n > 3", "targetPage": "p"}]
        found = agent(
            flow("f", {"displayName": "p"}, transitionRoutes=routes), intents=[{"displayName": "order"}]
        )
        assert "reason" not in found.condition("f", "f.p")

    def test_what_an_intent_finds_and_a_condition_reads_is_a_variable(self) -> None:
        parameters = [{"id": "size", "entityType": "@size"}, {"id": "mood", "entityType": "@sys.any"}]
        size = {"displayName": "size", "entities": [{"value": "small"}, {"value": "large"}]}
        route = {"condition": '$session.params.size = "large"', "targetPage": "big"}
        found = agent(
            flow("f", {"displayName": "big"}, transitionRoutes=[route]),
            intents=[{"displayName": "order", "parameters": parameters}],
            entityTypes=[size],
        )
        assert found.condition("f", "f.big") == {"when": "vars.size == 'large'", "advance": "auto"}
        assert list(found.variables) == ["size"]
        told = "no text and no condition reads 'mood'"
        assert found.remark("/intents/0/parameters") == ("dropped", told)

    @pytest.mark.parametrize(
        ("kind", "value"), [("KIND_REGEXP", "IT[0-9]{2}"), ("KIND_LIST", "for @sys.number")]
    )
    def test_what_fits_a_pattern_is_a_text_and_not_the_pattern(self, kind: str, value: str) -> None:
        code = {"displayName": "code", "kind": kind, "entities": [{"value": value}]}
        form = {"parameters": [{"displayName": "code", "entityType": "@code", "required": True}]}
        found = agent(flow("f", {"displayName": "p", "form": form}), entityTypes=[code])
        assert found.variables["code"]["type"] == "string"
        assert found.variables["code"]["prompt"] == f"The value of code. It looks like {value}"
        assert found.remark("/entityTypes/0/entities")[0] == "changed"

    @pytest.mark.parametrize("name", ["$session.params.day", "$flow.day"])
    def test_a_parameter_of_a_flow_is_called_as_it_is_read(self, name: str) -> None:
        form = {"parameters": [{"displayName": name, "entityType": "@sys.date", "required": True}]}
        route = {"condition": f"{name} != NULL", "targetPage": "q"}
        page = {"displayName": "p", "form": form, "transitionRoutes": [route]}
        page["entryFulfillment"] = said(text(f"On {name}?"))
        found = agent(flow("f", page, {"displayName": "q"}))
        assert found.condition("f.p", "f.q")["when"] == "has(vars.day)"
        assert found.tasks["f.p"]["prompt"].startswith('Say: "On {{ $vars.day }}?"')

    def test_what_the_agent_sets_by_itself_is_told_to_the_model_which_judges_it(self) -> None:
        given = [{"parameter": "tries", "value": 2}, {"parameter": "day", "value": None}]
        given.append({"parameter": "log", "value": "x"})
        page = {
            "displayName": "p",
            "entryFulfillment": said(
                text("Try $session.params.tries, $flow.day."), setParameterActions=given
            ),
            "transitionRoutes": [{"condition": "$session.params.tries > 1", "targetPage": "q"}],
        }
        found = agent(flow("f", page, {"displayName": "q"}))
        assert found.condition("f.p", "f.q") == {}
        assert "Take as settled: tries is 2, day is None." in found.tasks["f.p"]["prompt"]
        assert 'Say: "Try [tries], {{ $tenant.day }}."' in found.tasks["f.p"]["prompt"]
        assert found.tasks["f.q"]["description"] == "Enter when: tries > 1."
        place = "/flows/0/pages/0/transitionRoutes/0/condition"
        assert found.remark(place) == ("changed", "the model judges '$session.params.tries > 1'")
        place = "/flows/0/pages/0/entryFulfillment/setParameterActions"
        told = [each["message"] for each in found.draft.remarks if each["pointer"] == place]
        assert told[1:] == ["no text and no condition reads 'log'"]

    def test_what_a_webhook_alone_can_set_is_written_by_tools(self) -> None:
        routes = [
            {"condition": "$session.params.known = true", "targetPage": "q"},
            {"condition": '$page.params.status = "FINAL"', "targetPage": "r"},
        ]
        page = {"displayName": "p", "transitionRoutes": routes, "entryFulfillment": said(text("$flow.sum"))}
        of = flow("f", page, {"displayName": "q"}, {"displayName": "r"})
        found = agent(of, webhooks=[{"displayName": "find"}])
        assert found.condition("f.p", "f.q")["when"] == "vars.known == true"
        assert {name: each["type"] for name, each in found.variables.items()} == {
            "known": "custom",
            "sum": "custom",
        }
        told = "'known', 'sum': only tools write them: map what a tool answers to them"
        assert found.remark("") == ("changed", told)
        assert agent(of).condition("f.p", "f.q")["when"] == "tenant.known == true"

    @pytest.mark.parametrize("always", ["true", "TRUE", " True "])
    def test_a_condition_that_always_holds_is_none(self, always: str) -> None:
        route = {"condition": always, "targetPage": "p"}
        found = agent(flow("f", {"displayName": "p"}, transitionRoutes=[route]))
        assert (found.tasks["f"]["connectedTasks"], found.draft.remarks) == (["f.p"], ())


class TestEvents:
    @pytest.mark.parametrize(
        ("event", "words"),
        [
            ("sys.no-match-default", "what the user says fits nothing here"),
            ("sys.no-input-3", "the user says nothing (3 times)"),
            ("webhook.error.timeout", "a tool fails"),
            ("ring", "the event 'ring' happens"),
        ],
    )
    def test_an_event_that_leads_on_is_a_connection_and_one_that_does_not_is_told(
        self, event: str, words: str
    ) -> None:
        stays = {"event": "sys.no-match-1", "triggerFulfillment": said(text("Pardon?"))}
        handlers = [stays, {"event": event, "targetPage": "help"}]
        found = agent(flow("f", {"displayName": "help"}, {"displayName": "p"}, eventHandlers=handlers))
        for source in ("f", "f.p"):  # every page of a flow has its flow's handlers
            assert found.tasks[source]["connectedTasks"] == ["f.help"]
        assert found.tasks["f.help"]["description"] == f"Enter when: {words}."
        assert found.remark("/flows/0/eventHandlers")[0] == "dropped"

    def test_so_is_one_of_a_parameter_that_is_asked_for_again(self) -> None:
        again = {"repromptEventHandlers": [{"event": "sys.no-match-3", "targetPage": "help"}]}
        form = {"parameters": [{"displayName": "n", "fillBehavior": again}]}
        found = agent(flow("f", {"displayName": "p", "form": form}, {"displayName": "help"}))
        assert found.tasks["f.p"]["connectedTasks"] == ["f.help"]


class TestEnds:
    def ended(self, page: str) -> Imported:
        desk = {"displayName": "desk", "transitionRoutes": [{"intent": "pay", "targetFlow": "pay"}]}
        last = {"displayName": "last", "transitionRoutes": [{"intent": "stop", "targetPage": page}]}
        return agent(flow("f", desk), flow("pay", last), agent={"startFlow": "f"})

    @pytest.mark.parametrize(
        ("page", "words"),
        [
            ("END_FLOW", ""),
            ("End Flow", ""),
            ("END_FLOW_WITH_FAILURE", " and what was to be done has failed"),
            ("END_FLOW_WITH_CANCELLATION", " and what was to be done is cancelled"),
            ("END_FLOW_WITH_HUMAN_ESCALATION", " and a person is needed"),
        ],
    )
    def test_the_end_of_a_flow_leads_back_to_where_it_was_entered_from(self, page: str, words: str) -> None:
        found = self.ended(page)
        assert found.tasks["pay.last"]["connectedTasks"] == ["f.desk"]
        assert found.tasks["f.desk"]["description"] == f"Enter when: the user means 'stop'{words}."
        assert "end the conversation" not in found.tasks["pay.last"]["prompt"]
        assert found.draft.remarks == ()

    def test_the_end_of_the_session_is_the_end_wherever_it_is(self) -> None:
        found = self.ended("END_SESSION")
        assert found.tasks["pay.last"]["connectedTasks"] == []
        assert "When the user means 'stop', end the conversation." in found.tasks["pay.last"]["prompt"]

    def test_an_end_or_a_word_on_a_condition_has_that_condition(self) -> None:
        form = {"parameters": [{"displayName": "n", "entityType": "@sys.number"}]}
        many = {"condition": "$session.params.n > 3", "triggerFulfillment": said(text("Many."))}
        for page, line in (("END_SESSION", "When n > 3, end the conversation."), ("END_FLOW", "")):
            last = {"displayName": "p", "form": form, "transitionRoutes": [{**many, "targetPage": page}]}
            found = agent(flow("f", transitionRoutes=[{"intent": "i", "targetFlow": "g"}]), flow("g", last))
            prompt = found.tasks["g.p"]["prompt"]
            assert ('When n > 3, say: "Many."' in prompt, line in prompt) == (True, True)
            way = {"when": "vars.n > 3", "advance": "auto"} if page == "END_FLOW" else {}
            assert found.condition("g.p", "f") == way

    def test_the_end_of_a_complete_form_is_told_in_words(self) -> None:
        form = {"parameters": [{"displayName": "n", "required": True}]}
        done = {"condition": '$page.params.status = "FINAL"', "targetPage": "End Session"}
        found = agent(flow("f", {"displayName": "p", "form": form, "transitionRoutes": [done]}))
        assert "When all that is asked for is known, end the conversation." in found.tasks["f.p"]["prompt"]

    @pytest.mark.parametrize("call", ["liveAgentHandoff", "telephonyTransferCall"])
    def test_a_handover_that_ends_leaves_the_task_that_it_leads_from_the_model_s(self, call: str) -> None:
        over = said(text("One moment."), {call: {"phoneNumber": "+34911222333"}})
        routes = [{"intent": "person", "triggerFulfillment": over, "targetPage": "END_SESSION"}]
        found = agent(flow("f", transitionRoutes=routes))
        (person,) = found.tasks["f"]["connectedTasks"]
        assert (found.tasks["f"]["type"], found.tasks[person]["type"]) == ("AIO", "HUM")
        assert "One moment." in found.tasks[person]["prompt"]
        assert found.tasks[person]["description"] == "Enter when: the user means 'person'."

    def test_a_flow_s_handover_is_one_task_for_all_of_its_pages(self) -> None:
        over = said(text("One moment."), {"liveAgentHandoff": {}})
        routes = [{"intent": "person", "triggerFulfillment": over}, {"condition": "true", "targetPage": "p"}]
        found = agent(flow("f", {"displayName": "p"}, transitionRoutes=routes))
        person, page = found.tasks["f"]["connectedTasks"]
        assert (found.tasks[person]["type"], page) == ("HUM", "f.p")
        assert found.tasks["f.p"]["connectedTasks"] == [person]
        assert len(found.tasks) == 3


@pytest.mark.parametrize("page", ["PREVIOUS_PAGE", "Previous Page"])
def test_a_page_that_leads_to_the_one_before_it_returns(page: str) -> None:
    routes = [{"condition": "$session.params.known = false", "targetPage": page}]
    ask = {"displayName": "ask", "transitionRoutes": [{"intent": "go", "targetPage": "check"}]}
    found = agent(flow("f", ask, {"displayName": "check", "transitionRoutes": routes}))
    assert found.tasks["f.check"]["returns"] is True
    assert found.tasks["f.check"]["prompt"].endswith("When known = false, go back to where you came from.")


def test_a_page_called_as_a_flow_has_a_name_of_its_own() -> None:
    found = agent(flow("f", {"displayName": "Pay"}), flow("pay"))
    assert [each["name"] for each in found.document["tasks"]] == ["f", "pay", "Pay 2"]


def test_a_page_and_a_flow_that_would_be_one_task_are_told() -> None:
    with pytest.raises(CorrectTheInput) as refused:
        agent(flow("A", {"displayName": "B"}), flow("A.B"))
    assert [each.message for each in refused.value.findings] == ["two parts are both 'A.B' here: rename one"]


TREES: Any = {
    "agent.json": {"startPlaybook": "projects/a/playbooks/0"},
    "flows/pay/pay.json": {"name": "0", "displayName": "pay"},
    "playbooks/hello/hello.json": {
        "name": "0",
        "displayName": "hello",
        "goal": "Greet, and find out what it is about.",
        "instruction": {
            "steps": [
                {"text": "Greet.", "steps": [{"text": "Look up the name with ${TOOL:t-1}."}]},
                {"text": "For trees go to ${PLAYBOOK: trees}, to pay to ${FLOW:pay}, else ${FLOW:none}."},
            ]
        },
        "referencedPlaybooks": ["projects/a/playbooks/p-2"],
    },
    "playbooks/hello/examples/one.json": {"displayName": "one"},
    "playbooks/trees/trees.json": {
        "name": "p-2",
        "displayName": "trees",
        "goal": "Speak of trees.",
        "instruction": {"guidelines": "Be leafy."},
    },
    "tools/find name/find name.json": {
        "name": "t-1",
        "displayName": "find name",
        "description": "Who it is.",
    },
    "tools/find name/schema.yaml": {"openapi": "3.0.0"},
}
"""An export with playbooks, by its files."""


class TestPlaybooks:
    def test_a_playbook_is_a_task_and_what_it_names_are_connections_and_tools(self) -> None:
        raw: Any = gathered(TREES)
        found = Imported(IMPORTERS["dialogflow-cx"](raw))
        assert errors_of(found.document) == []
        hello = found.tasks[found.document["firstTask"]]
        assert (hello["name"], hello["description"]) == ("hello", "Greet, and find out what it is about.")
        assert hello["connectedTasks"] == ["playbook trees", "pay"]
        assert hello["prompt"].splitlines()[2:] == [
            "1. Greet.",
            "   1. Look up the name with find_name.",
            "2. For trees go to 'trees', to pay to 'pay', else 'none'.",
        ]
        (server,) = found.document["mcpServers"]
        assert server["includedTools"] == [{"toolName": "find_name", "uiToolDescription": "Who it is."}]
        assert found.tasks["playbook trees"]["prompt"] == "Speak of trees.\n\nBe leafy."
        assert found.remark("/playbooks/0") == ("dropped", "there is no flow 'none'")
        for place, name in (("/playbooks/0/examples", "examples"), ("/tools/0/schema.yaml", "schema.yaml")):
            assert found.remark(place) == ("dropped", f"{name!r} has no counterpart")

    def test_a_route_into_a_playbook_is_a_connection(self) -> None:
        routes = [{"intent": "trees", "targetPlaybook": "trees"}]
        found = agent(flow("f", transitionRoutes=routes), playbooks=[{"displayName": "trees"}])
        assert found.tasks["f"]["connectedTasks"] == ["playbook trees"]
