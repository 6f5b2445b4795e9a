"""Flows of other systems become drafts that a save takes, and what was left out is told."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flow_engine.errors import CorrectTheInput, Finding
from flow_engine.importing import IMPORTERS, gathered
from flow_engine.templates import lint_template
from tests.flow_engine.importing.originals import (
    Imported,
    errors_of,
    imported,
    originals,
    places,
    pointed_at,
)

NAMES = ("retell", "dialogflow-cx", "rasa", "pipecat", "pipecat of today")
known = functools.cache(originals)


@pytest.mark.parametrize("name", NAMES)
def test_every_original_becomes_a_draft_that_a_save_takes(name: str) -> None:
    found = imported(name)
    assert found.document["draft"] is True
    assert errors_of(found.document) == []
    assert found.document["firstTask"] in found.tasks


@pytest.mark.parametrize("name", NAMES)
def test_every_remark_points_into_the_original_and_none_is_made_twice(name: str) -> None:
    remarks = imported(name).draft.remarks
    assert remarks
    rows = [(remark["pointer"], remark["message"]) for remark in remarks]
    assert len(set(rows)) == len(rows)
    _, raw = known()[name]
    assert [pointer for pointer, _ in rows if not pointed_at(raw, pointer)] == []


def test_what_nothing_reads_is_told_in_the_order_of_the_original() -> None:
    unknown = dict.fromkeys(["g", "c", "e", "a", "f", "b", "d"], 1)
    for raw in ({"conversationFlow": known()["retell"][1], **unknown}, {**known()["retell"][1], **unknown}):
        remarks = IMPORTERS["retell"](raw).remarks
        assert [each["pointer"] for each in remarks if each["pointer"][1:] in unknown] == [
            f"/{name}" for name in unknown
        ]


class TestRetell:
    def test_what_decides_or_collects_is_no_task(self) -> None:
        found = imported("retell")
        assert list(found.tasks) == [
            "n-hello",
            "n-slots",
            "n-book",
            "n-parts",
            "n-person",
            "n-hours",
            "n-bye",
        ]
        assert set(found.tasks["n-hello"]["connectedTasks"]) == {"n-person", "n-slots", "n-parts"}
        assert {each["variableId"] for each in found.tasks["n-slots"]["transitionParameters"]} == {
            *("plate", "mileage", "urgency", "is_driveable")
        }

    def test_a_node_that_does_nothing_here_leads_on_whether_it_would_succeed_or_fail(self) -> None:
        _, raw = copy.deepcopy(known()["retell"])
        [sms] = (each for each in raw["nodes"] if each["type"] == "sms")
        told = {"transition_condition": {"type": "prompt", "prompt": "Sent"}}
        del sms["edge"]
        sms["success_edge"] = {"id": "s", "destination_node_id": "n-bye", **told}
        sms["failed_edge"] = {"id": "f", "destination_node_id": "n-person", **told}
        found = Imported(IMPORTERS["retell"](raw))
        [before] = (
            each["id"]
            for each in raw["nodes"]
            if any(edge.get("destination_node_id") == sms["id"] for edge in each.get("edges", ()))
            or (each.get("edge") or {}).get("destination_node_id") == sms["id"]
        )
        assert {"n-bye", "n-person"} <= set(found.tasks[before]["connectedTasks"])
        assert [each for each in found.draft.remarks if "_edge" in each["pointer"]] == []

    def test_equations_are_conditions_and_contains_is_the_model_s(self) -> None:
        found = imported("retell")
        assert found.condition("n-slots", "n-book") == {"when": "has(vars.slots)", "advance": "auto"}
        assert "{{ $vars.plate }} contains TAXI" in found.tasks["n-hello"]["prompt"]
        assert found.remark("/nodes/2/edges/1/transition_condition")[0] == "changed"

    def test_a_condition_compares_with_the_type_of_its_variable(self) -> None:
        _, raw = copy.deepcopy(known()["retell"])
        del raw["nodes"][2]["edges"][1]  # with it the way would be open whatever the equations say
        found = Imported(IMPORTERS["retell"](raw))
        when = found.condition("n-hello", "n-person")["when"]
        assert when == "(vars.urgency == 'today') and (vars.mileage > 200000)"
        assert errors_of(found.document) == []

    def test_a_placeholder_is_compared_as_what_it_stands_for(self) -> None:
        equation = {"left": "{{city}}", "operator": "==", "right": "{{ home_city }}"}
        edge = {"transition_condition": {"type": "equation", "equations": [equation]}}
        raw = {
            "start_node_id": "a",
            "nodes": [
                {"id": "a", "type": "conversation", "edges": [{**edge, "destination_node_id": "b"}]},
                {"id": "b", "type": "end"},
            ],
        }
        found = Imported(IMPORTERS["retell"](raw))
        assert found.condition("a", "b")["when"] == "tenant.city == tenant.home_city"
        assert found.remark("")[1].startswith("'city', 'home_city' are read of the tenant's data")

    def test_a_condition_beside_a_way_without_one_is_told_at_its_edge(self) -> None:
        found = imported("retell")  # its branch leads to a person by equations, and by words
        assert found.condition("n-hello", "n-person") == {}
        judged = "(vars.urgency == 'today') and (vars.mileage > 200000)"
        assert judged in found.tasks["n-hello"]["prompt"]
        kept, message = found.remark("/nodes/2/edges/0")
        assert (kept, judged in message) == ("changed", True)

    def test_a_comparison_that_no_value_of_the_type_allows_is_the_model_s(self) -> None:
        _, raw = copy.deepcopy(known()["retell"])
        equation = {"left": "{{mileage}}", "operator": "==", "right": "unknown"}
        transition = {"type": "equation", "equations": [equation]}
        raw["nodes"][2]["edges"] = [{"destination_node_id": "n-bye", "transition_condition": transition}]
        found = Imported(IMPORTERS["retell"](raw))
        assert "n-bye" not in found.tasks["n-hello"].get("connectionConditions", {})
        assert "{{ $vars.mileage }} == unknown" in found.tasks["n-hello"]["prompt"]
        kept, message = found.remark("/nodes/2/edges/0/transition_condition")
        assert (kept, "'unknown'" in message) == ("changed", True)
        assert errors_of(found.document) == []

    @pytest.mark.parametrize("path", ["data.items.0.id", "", "$.[", "$..a..b"])
    def test_a_path_into_a_result_that_nobody_can_read_is_told(self, path: str) -> None:
        _, raw = copy.deepcopy(known()["retell"])
        number, tool = next((n, each) for n, each in enumerate(raw["tools"]) if "response_variables" in each)
        tool["response_variables"] = {"slots": path, "other": "data.other"}
        found = Imported(IMPORTERS["retell"](raw))
        (selection,) = found.tasks["n-slots"]["mcpToolSelection"]
        assert selection["selectedTools"][0]["resultMapping"] == {"other": "$.data.other"}
        kept, message = found.remark(f"/tools/{number}/response_variables/slots")
        assert (kept, repr(path) in message) == ("dropped", True)
        assert errors_of(found.document) == []

    def test_a_global_node_is_a_global_task_that_returns(self) -> None:
        found = imported("retell")
        assert found.document["globalTasks"] == ["n-hours"]
        assert found.tasks["n-hours"]["returns"] is True

    def test_tools_keep_their_servers_and_map_their_results(self) -> None:
        found = imported("retell")
        servers = {each["name"]: each["url"] for each in found.document["mcpServers"]}
        assert servers == {
            "imported-tools": "https://tools.invalid/mcp",
            "parts": "https://parts.example.com/mcp",
        }
        (selection,) = found.tasks["n-slots"]["mcpToolSelection"]
        assert selection["selectedTools"][0]["resultMapping"] == {"slots": "$.data.slots"}
        assert found.remark("/mcps/0/headers") == ("dropped", "'headers' has no counterpart")

    def test_dynamic_variables_come_with_the_contact(self) -> None:
        prompt = imported("retell").document["globalPrompt"]
        assert "{{ $tenant.garage_name | default('Nordlicht Garage') }}" in prompt

    @pytest.mark.parametrize("name", ["current_time_Europe/Rome", "pick-up", "2nd", "pet.name"])
    def test_a_placeholder_is_one_name_whatever_stands_in_it(self, name: str) -> None:
        _, raw = known()["retell"]
        found = Imported(IMPORTERS["retell"](changed(raw, ("global_prompt",), f"It is {{{{{name}}}}}.")))
        key = name.replace("/", "-")
        assert found.document["globalPrompt"] == f'It is {{{{ $tenant["{key}"] }}}}.'
        assert not any(lint_template(found.document["globalPrompt"], (), "/globalPrompt"))
        (told,) = [each for each in found.draft.remarks if "of the tenant's data" in each["message"]]
        assert told["message"].startswith(f"'{key}'")

    def test_an_agent_s_export_is_read_too(self) -> None:
        _, raw = known()["retell"]
        found = Imported(
            IMPORTERS["retell"]({"agent_name": "x", "language": "it-IT", "conversationFlow": raw})
        )
        assert found.document["defaultLanguage"] == found.document["systemPromptsLanguage"] == "it-IT"
        assert found.remark("/agent_name")[0] == "dropped"
        assert "/language" not in {each["pointer"] for each in found.draft.remarks}
        assert found.remark("/conversationFlow/mcps/0/headers")[0] == "dropped"
        assert errors_of(found.document) == []

    @pytest.mark.parametrize("language", ["multi", ["it-IT", "en-US"]])
    def test_what_is_no_language_is_told(self, language: Any) -> None:
        _, raw = known()["retell"]
        found = Imported(IMPORTERS["retell"]({"language": language, "conversationFlow": raw}))
        assert found.document["defaultLanguage"] == "en-US"
        assert found.remark("/language")[0] == "dropped"

    def test_a_start_that_speaks_nothing_begins_behind_it(self) -> None:
        _, raw = copy.deepcopy(known()["retell"])
        raw["start_node_id"] = "n-details"
        found = Imported(IMPORTERS["retell"](raw))
        assert found.document["firstTask"] == "n-person"
        assert found.remark("/start_node_id")[0] == "changed"

    def test_a_start_that_leads_nowhere_is_told_with_where_the_flow_starts(self) -> None:
        nodes = [{"id": "lost", "type": "sms"}, {"id": "a", "type": "end"}]
        found = Imported(IMPORTERS["retell"]({"start_node_id": "lost", "nodes": nodes}))
        assert found.document["firstTask"] == "a"
        begins = "the node 'lost' speaks nothing: the flow starts in 'a'"
        assert found.remark("/start_node_id") == ("changed", begins)

    @pytest.mark.parametrize("kind", ["press_digit", "extract_dynamic_variables"])
    def test_a_global_node_that_speaks_nothing_is_told(self, kind: str) -> None:
        silent = {"id": "s", "type": kind, "global_node_setting": {"condition": "They press 0"}}
        found = Imported(IMPORTERS["retell"]({"nodes": [{"id": "a", "type": "end"}, silent]}))
        kept, message = found.remark("/nodes/1/global_node_setting")
        assert (kept, "is no global task" in message) == ("dropped", True)

    def test_what_goes_on_without_an_answer_says_so(self) -> None:
        skip = {"destination_node_id": "b", "transition_condition": {"prompt": "Skip response"}}
        node = {"id": "a", "type": "conversation", "skip_response_edge": skip}
        found = Imported(IMPORTERS["retell"]({"nodes": [node, {"id": "b", "type": "end"}]}))
        assert found.tasks["b"]["description"] == "Enter when: this is said, whatever the answer."

    def test_the_numbers_of_a_call_are_the_contact_s(self) -> None:
        equation = {"left": "{{user_number}}", "operator": "exists"}
        edge = {"transition_condition": {"type": "equation", "equations": [equation]}}
        said = {"text": "From {{user_number}} to {{ agent_number }}."}
        node = {"id": "a", "type": "conversation", "instruction": said}
        node["edges"] = [{**edge, "destination_node_id": "b"}]
        found = Imported(IMPORTERS["retell"]({"nodes": [node, {"id": "b", "type": "end"}]}))
        assert found.tasks["a"]["prompt"] == "From {{ $contact.callerId }} to {{ $contact.calleeId }}."
        assert found.condition("a", "b")["when"] == "has(contact.callerId)"
        assert errors_of(found.document) == []

    def test_no_node_is_no_task(self) -> None:
        with pytest.raises(CorrectTheInput) as refused:
            IMPORTERS["retell"]({"nodes": []})
        assert [each.code for each in refused.value.findings] == ["nothing_to_import"]


class TestDialogflow:
    BOOK = "Default Start Flow.Book a visit"

    @pytest.mark.parametrize("end", ["END_SESSION", "End Session", "END_FLOW", "End Flow"])
    def test_an_end_is_known_by_the_name_of_the_api_and_of_an_export(self, end: str) -> None:
        _, raw = copy.deepcopy(known()["dialogflow-cx"])
        route = {"condition": "true", "targetPage": end}
        raw["flows"][0]["pages"][0]["transitionRoutes"] = [route]
        found = Imported(IMPORTERS["dialogflow-cx"](raw))
        task = f"{raw['flows'][0]['displayName']}.{raw['flows'][0]['pages'][0]['displayName']}"
        assert "end the conversation" in found.tasks[task]["prompt"]
        assert [each for each in found.draft.remarks if "there is no page" in each["message"]] == []

    def test_parameters_are_variables_of_their_types(self) -> None:
        found = imported("dialogflow-cx")
        assert found.variables["visit_date"]["type"] == "date"
        assert found.variables["treatment"]["enumValues"] == ["check-up", "braces"]
        assert found.variables["insurance_number"]["sensitive"] is True

    def test_a_complete_form_leads_on_by_itself(self) -> None:
        way = imported("dialogflow-cx").condition(self.BOOK, "Default Start Flow.Anything else")
        assert way["advance"] == "auto"
        assert way["when"] == (
            "((has(vars.visit_date)) and (has(vars.treatment))) and vars.treatment != 'braces'"
        )

    def test_intents_say_when_a_task_is_entered_from_every_page_of_the_flow(self) -> None:
        found = imported("dialogflow-cx")
        description = found.tasks[self.BOOK]["description"]
        assert description.startswith(
            "Enter when: The patient wants an appointment (such as: I need an appointment"
        )
        pages = [name for name in found.tasks if name.startswith("Default Start Flow.")]
        assert all(self.BOOK in found.tasks[name]["connectedTasks"] for name in pages if name != self.BOOK)

    @pytest.mark.parametrize("place", ["page", "flow"])
    def test_an_intent_opens_what_a_condition_of_the_same_page_guards(self, place: str) -> None:
        guarded = {"condition": "$session.params.n > 3", "targetPage": "next"}
        asked = {"intent": "skip", "targetPage": "next"}
        page = {
            "displayName": "ask",
            "form": {"parameters": [{"displayName": "n", "entityType": "@sys.number"}]},
            "transitionRoutes": [guarded, asked] if place == "page" else [guarded],
        }
        flow = {"displayName": "f", "pages": [page, {"displayName": "next"}]}
        flow["transitionRoutes"] = [] if place == "page" else [asked]
        found = Imported(IMPORTERS["dialogflow-cx"]({"flows": [flow]}))
        assert found.condition("f.ask", "f.next") == {}
        assert "when: vars.n > 3; or the user means 'skip'" in found.tasks["f.ask"]["prompt"]
        assert found.remark("/flows/0/pages/0/transitionRoutes/0")[0] == "changed"

    @pytest.mark.parametrize(
        "name", ["@sys.number", "sys.number", "projects/-/locations/-/agents/-/entityTypes/sys.number"]
    )
    def test_a_system_entity_is_known_by_each_of_its_names(self, name: str) -> None:
        page = {"displayName": "ask", "form": {"parameters": [{"displayName": "n", "entityType": name}]}}
        found = Imported(IMPORTERS["dialogflow-cx"]({"flows": [{"displayName": "f", "pages": [page]}]}))
        assert found.variables["n"]["type"] == "number"

    def test_a_handoff_makes_the_task_a_human_s(self) -> None:
        found = imported("dialogflow-cx")
        assert found.tasks["Default Start Flow.Emergency"]["type"] == "HUM"
        assert found.remark("/flows/0/pages/2/entryFulfillment/messages")[0] == "changed"

    def test_what_is_said_on_a_route_is_said_where_it_leads(self) -> None:
        prompt = imported("dialogflow-cx").tasks["Default Start Flow.Anything else"]["prompt"]
        assert (
            "When you come from 'Book a visit', say: \"It is booked for {{ $vars.visit_date }}.\"" in prompt
        )
        assert prompt.index("Goodbye.") < prompt.index("end the conversation")

    def test_a_condition_with_a_function_is_the_model_s(self) -> None:
        found = imported("dialogflow-cx")
        assert found.condition(self.BOOK, "Default Start Flow") == {}
        kept, message = found.remark("/flows/0/pages/1/transitionRoutes/2/condition")
        assert (kept, "$sys.func.IF" in message) == ("changed", True)

    @pytest.mark.parametrize(
        ("original", "written"),
        [
            ("$session.params.n >= 3", "vars.n >= 3"),
            ("$session.params.n = null", "not has(vars.n)"),
            ("$session.params.n != null", "has(vars.n)"),
            ("NOT ($session.params.n = 3 OR $session.params.t = 'x')", "not (vars.n == 3 or vars.t == 'x')"),
            ("$session.params.unknown = true", "tenant.unknown == true"),
            ('$session.params.t : "x"', ""),
            ('$session.params.n = "many"', ""),
        ],
    )
    def test_conditions_are_written_in_the_engine_s_language(self, original: str, written: str) -> None:
        page = {
            "displayName": "ask",
            "form": {
                "parameters": [
                    {"displayName": "n", "entityType": "@sys.number"},
                    {"displayName": "t", "entityType": "@sys.any"},
                ]
            },
            "transitionRoutes": [{"condition": original, "targetPage": "next"}],
        }
        flow = {"displayName": "f", "pages": [page, {"displayName": "next"}]}
        found = Imported(IMPORTERS["dialogflow-cx"]({"flows": [flow]}))
        assert found.condition("f.ask", "f.next").get("when", "") == written
        of_tenant = [each for each in found.draft.remarks if "'unknown' are read" in each["message"]]
        assert len(of_tenant) == ("tenant" in written)
        assert errors_of(found.document) == []

    @pytest.mark.parametrize(
        "original",
        [
            "$session.params.day",
            "$page.params.day",
            "$intent.params.day.original",
            "$session.params.day.resolved",
            "${session.params.day}",
        ],
    )
    def test_a_parameter_is_a_variable_however_it_is_written(self, original: str) -> None:
        said = {"messages": [{"text": {"text": [f"On {original}."]}}]}
        form = {"parameters": [{"displayName": "day", "entityType": "@sys.date"}]}
        page = {"displayName": "ask", "form": form, "entryFulfillment": said}
        found = Imported(IMPORTERS["dialogflow-cx"]({"flows": [{"displayName": "f", "pages": [page]}]}))
        assert found.tasks["f.ask"]["prompt"].startswith('Say: "On {{ $vars.day }}."')

    def test_a_package_in_several_languages_is_carried_in_its_own(self) -> None:
        messages = [
            {"text": {"text": ["Which?"]}, "languageCode": "en"},
            {"text": {"text": ["Welche?"]}, "languageCode": "de"},
        ]
        asked = {"initialPromptFulfillment": {"messages": messages, "webhook": "log", "tag": "log"}}
        parameter = {"displayName": "doctor", "entityType": "@doctor", "fillBehavior": asked}
        phrases = {
            language: {"trainingPhrases": [{"parts": [{"text": language}]}]} for language in ("de", "en")
        }
        files: dict[str, Any] = {
            "agent.json": {"defaultLanguageCode": "en", "supportedLanguageCodes": ["de"]},
            "flows/f/f.json": {"displayName": "f"},
            "flows/f/pages/ask.json": {"displayName": "ask", "form": {"parameters": [parameter]}},
            "entityTypes/doctor/doctor.json": {"displayName": "doctor"},
            "entityTypes/doctor/entities/de.json": {"entities": [{"value": "Frau Ruiz"}]},
            "entityTypes/doctor/entities/en.json": {"entities": [{"value": "Ms Ruiz"}]},
            "testCases/triage.json": {"displayName": "triage"},
            **{f"intents/i/trainingPhrases/{each}.json": phrases[each] for each in phrases},
            "intents/i/i.json": {"displayName": "i"},
        }
        raw: Any = gathered(files)
        assert raw["intents"][0]["trainingPhrases"] == phrases["en"]["trainingPhrases"]
        found = Imported(IMPORTERS["dialogflow-cx"](raw))
        assert found.document["supportedLanguages"] == ["en", "de"]
        assert found.variables["doctor"]["enumValues"] == ["Ms Ruiz"]
        prompt = found.tasks["f.ask"]["prompt"]
        assert "Which?" in prompt
        assert "Welche?" not in prompt
        assert "Call log when you ask for doctor." in prompt
        assert found.remark("/agent/supportedLanguageCodes")[0] == "changed"
        assert found.remark("/testCases") == ("dropped", "'testCases' has no counterpart")

    def test_groups_of_routes_are_routes_where_they_are_named(self) -> None:
        group = {"displayName": "common", "transitionRoutes": [{"intent": "person", "targetPage": "desk"}]}
        pages = [
            {"displayName": "ask", "transitionRouteGroups": ["common", "none"]},
            {"displayName": "desk"},
            {"displayName": "alone"},
        ]
        raw: Any = gathered(
            {
                "flows/f/f.json": {"displayName": "f"},
                **{f"flows/f/pages/{page['displayName']}.json": page for page in pages},
                "flows/f/transitionRouteGroups/common.json": group,
            }
        )
        found = Imported(IMPORTERS["dialogflow-cx"](raw))
        assert found.tasks["f.ask"]["connectedTasks"] == ["f.desk"]
        assert found.tasks["f.alone"]["connectedTasks"] == []
        named = [each for each in found.draft.remarks if "group of routes 'none'" in each["message"]]
        assert [each["kept"] for each in named] == ["dropped"]


class TestRasa:
    def test_a_mapping_of_an_odd_kind_is_not_one_of_tools(self) -> None:
        flow = {"description": "x", "steps": [{"action": "utter_x"}]}
        slots = {"s": {"type": "text", "mappings": [{"type": []}]}}
        found = Imported(IMPORTERS["rasa"]({"flows": {"f": flow}, "slots": slots}))
        assert found.variables["s"]["type"] == "string"

    def test_what_only_part_of_a_step_says_is_carried(self) -> None:
        refused = [{"if": "slots.day == 'sunday'", "utter": "utter_closed"}]
        steps = [
            {"collect": "day", "rejections": refused, "next": "b"},
            {"id": "b", "noop": True, "next": [{"if": "slots.day", "then": "END"}]},
        ]
        raw = {
            "language": "es",
            "flows": {"visit": {"description": "x", "steps": steps}},
            "slots": {"day": {"type": "text"}},
            "responses": {"utter_closed": [{"text": "Not on {{ slots.day }}."}]},
            "forms": {"old": {}},
        }
        found = Imported(IMPORTERS["rasa"](raw))
        prompt = found.tasks["visit"]["prompt"]
        assert 'sunday\', and say: "Not on {{ $vars.day }}."' in prompt
        assert "(step b) Go on" in prompt, "to which other steps lead"
        assert (found.document["defaultLanguage"], found.document["systemPromptsLanguage"]) == ("es", "es-ES")
        assert found.remark("/forms")[0] == "dropped"

    def test_a_flow_that_never_begins_by_itself_is_entered_by_links_alone(self) -> None:
        steps = [
            {"action": "utter_x", "next": [{"if": "slots.a", "then": [{"link": "behind"}]}, {"else": "END"}]}
        ]
        raw = {
            "flows": {
                "first": {"description": "x", "steps": steps},
                "behind": {"description": "y", "if": False, "steps": [{"action": "utter_y"}]},
            },
            "slots": {"a": {"type": "bool"}},
        }
        found = Imported(IMPORTERS["rasa"](raw))
        assert found.document["globalTasks"] == ["first"]
        assert found.tasks["first"]["connectedTasks"] == ["behind"]

    def test_flows_are_tasks_that_users_come_to_from_everywhere(self) -> None:
        found = imported("rasa")
        assert found.document["firstTask"] == "start"
        assert found.document["globalTasks"] == ["transfer_money", "top_up", "business_hours"]
        assert found.tasks["verify_identity"]["returns"] is True  # it is called, and comes back

    def test_a_link_behind_a_predicate_is_a_connection_with_a_condition(self) -> None:
        found = imported("rasa")
        assert found.condition("transfer_money", "top_up")["when"] == (
            "not (has(vars.has_funds) and vars.has_funds == true)"
        )
        assert found.condition("transfer_money", "verify_identity")["when"] == (
            "vars.amount > 1000 and vars.is_verified == false"
        )
        assert found.tasks["verify_identity"]["entryCondition"]["when"] == "vars.is_verified == false"

    def test_steps_are_told_in_their_order(self) -> None:
        prompt = imported("rasa").tasks["transfer_money"]["prompt"]
        lines = [line.partition(". ")[2] for line in prompt.splitlines()]
        assert lines[0] == 'Ask for recipient: "Who shall get the money?"'
        asked = 'Ask for amount even if it is known: "How much shall {{ $vars.recipient }} get?"'
        assert lines[1].startswith(f"(step ask_amount) {asked}")
        assert lines[1].endswith("Refuse it if slots.amount <= 0.")
        assert lines[-1] == "Otherwise: Take as settled: amount is None. Then go on with step ask_amount."

    def test_slots_are_variables_and_controlled_ones_are_written_by_tools(self) -> None:
        variables = imported("rasa").variables
        types = {name: each["type"] for name, each in variables.items()}
        assert types == {
            "recipient": "string",
            "amount": "number",
            "is_confirmed": "boolean",
            "is_verified": "boolean",
            "has_funds": "custom",
            "branch": "enum",
            "birth_date": "string",
            "top_up_amount": "number",
        }
        assert variables["amount"]["prompt"] == "how much is sent, in euros"
        assert imported("rasa").remark("/slots/has_funds") == ("changed", "only tools write it")

    @pytest.mark.parametrize(
        ("mappings", "kind"),
        [
            ([{"type": "controlled"}], "custom"),
            ([{"type": "custom", "action": "action_login"}], "custom"),
            ([{"type": "controlled"}, {"type": "from_llm"}], "boolean"),
            ([{"type": []}], "boolean"),
            ([{"type": "from_llm"}], "boolean"),
            ([], "boolean"),
            (None, "boolean"),
        ],
    )
    def test_what_users_may_say_of_a_slot_is_as_its_mappings_have_it(self, mappings: Any, kind: str) -> None:
        flow = {"description": "x", "if": "slots.logged_in", "steps": [{"action": "utter_x"}]}
        slots = {"logged_in": {"type": "bool", "mappings": mappings}}
        found = Imported(IMPORTERS["rasa"]({"flows": {"pay": flow}, "slots": slots}))
        assert found.variables["logged_in"]["type"] == kind
        assert found.tasks["pay"]["entryCondition"]["when"] == "vars.logged_in == true"

    @pytest.mark.parametrize("kind", ["list", "any"])
    def test_what_nobody_hears_and_no_tool_is_said_to_write_is_told(self, kind: str) -> None:
        flow = {"description": "x", "steps": [{"collect": "wishes"}]}
        found = Imported(IMPORTERS["rasa"]({"flows": {"pay": flow}, "slots": {"wishes": {"type": kind}}}))
        assert found.variables["wishes"]["type"] == "custom"
        told = "'wishes': only tools write them: map what a tool answers to them"
        assert found.remark("") == ("changed", told)

    def test_a_controlled_slot_that_a_flow_collects_is_asked_for(self) -> None:
        flow = {"description": "x", "steps": [{"collect": "agreed"}]}
        slots = {"agreed": {"type": "bool", "mappings": [{"type": "controlled"}]}}
        found = Imported(IMPORTERS["rasa"]({"flows": {"pay": flow}, "slots": slots}))
        assert found.variables["agreed"]["type"] == "boolean"

    def test_a_predicate_that_no_value_of_the_type_allows_is_the_model_s(self) -> None:
        steps = [{"noop": True, "next": [{"if": "slots.a > 'b'", "then": [{"link": "behind"}]}]}]
        raw = {
            "flows": {
                "first": {"description": "x", "if": "slots.a == 'c'", "steps": steps},
                "behind": {"description": "y", "steps": [{"action": "utter_y"}]},
            },
            "slots": {"a": {"type": "bool"}},
        }
        found = Imported(IMPORTERS["rasa"](raw))
        assert found.remark("/flows/first/if")[0] == "changed"
        assert found.remark("/flows/first/steps/0/next/0/then/0")[0] == "changed"
        assert found.tasks["first"]["connectedTasks"] == ["behind"]
        assert errors_of(found.document) == []

    def test_a_link_inside_of_alternatives_asks_for_all_of_them_and_otherwise_is_the_model_s(self) -> None:
        inner = [{"if": "slots.amount > 5", "then": [{"link": "b"}]}, {"else": [{"link": "c"}]}]
        outer = [{"if": "slots.vip", "then": [{"noop": True, "next": inner}]}, {"else": "END"}]
        flows: dict[str, Any] = {name: {"description": name} for name in "bc"}
        flows["a"] = {"description": "a", "steps": [{"noop": True, "next": outer}]}
        slots = {"vip": {"type": "bool"}, "amount": {"type": "float"}}
        found = Imported(IMPORTERS["rasa"]({"flows": flows, "slots": slots}))
        assert found.condition("a", "b")["when"] == "(vars.vip == true) and (vars.amount > 5)"
        assert found.condition("a", "c") == {
            "when": "vars.vip == true",
            "reason": "slots.vip and none of (slots.amount > 5)",
        }
        place = "/flows/a/steps/0/next/0/then/0/next/1/else/0"
        assert found.remark(place) == ("changed", "the model judges 'none of (slots.amount > 5)'")
        assert errors_of(found.document) == []

    def test_a_flow_that_is_called_as_the_task_before_all_flows_stays_itself(self) -> None:
        flows = {"start": {"description": "mine", "steps": [{"action": "hello"}]}}
        found = Imported(IMPORTERS["rasa"]({"flows": flows}))
        assert list(found.tasks) == ["start-2", "start"]
        assert found.document["firstTask"] == "start-2"
        assert found.tasks["start"]["description"] == "mine"
        assert errors_of(found.document) == []

    def test_patterns_and_predicates_beyond_the_language_are_told(self) -> None:
        found = imported("rasa")
        assert "pattern_cannot_handle" not in found.tasks
        assert found.remark("/flows/pattern_cannot_handle")[0] == "dropped"
        assert found.remark("/flows/business_hours/if")[0] == "changed"
        assert 'Only if slots.branch matches "^B".' in found.tasks["business_hours"]["prompt"]


class TestPipecat:
    def test_functions_lead_on_whichever_provider_s_form_they_have(self) -> None:
        found = imported("pipecat")
        ways = {name: task["connectedTasks"] for name, task in found.tasks.items()}
        assert ways == {"start": ["bread", "cake"], "bread": ["end"], "cake": ["end"], "end": []}
        assert found.tasks["cake"]["description"] == "Enter when: The customer wants a cake."

    def test_properties_are_variables_and_required_ones_are_needed(self) -> None:
        found = imported("pipecat")
        assert found.variables["occasion"]["enumValues"] == ["birthday", "wedding"]
        assert found.variables["pickup"]["type"] == "date"
        needs = {each["variableId"]: each["required"] for each in found.tasks["cake"]["transitionParameters"]}
        assert needs == {"guests": True, "occasion": False}

    def test_a_node_that_two_functions_lead_to_needs_what_each_of_them_needs(self) -> None:
        needs = {each["variableId"] for each in imported("pipecat").tasks["end"]["transitionParameters"]}
        assert needs == {"loaves", "pickup"}

    def test_a_node_requires_what_every_function_that_leads_to_it_requires(self) -> None:
        both = {"day": {"type": "string"}, "hour": {"type": "string"}}
        book = {"name": "book", "properties": both, "required": ["day", "hour"], "transition_to": "end"}
        move = {"name": "move", "properties": both, "required": ["day"], "transition_to": "end"}
        skip = {"name": "skip", "transition_to": "end"}
        for functions, required in (([book], "day hour"), ([book, move], "day"), ([book, move, skip], "")):
            nodes = {str(number): {"functions": [each]} for number, each in enumerate(functions)}
            raw: Any = {"initial_node": "0", "nodes": {**nodes, "end": {}}}
            found = Imported(IMPORTERS["pipecat"](raw))
            needs = {
                each["variableId"]: each["required"] for each in found.tasks["end"]["transitionParameters"]
            }
            assert needs == {name: name in required.split() for name in both}

    def test_what_is_said_before_and_behind_a_node_is_said(self) -> None:
        say, end = {"type": "tts_say", "text": "One moment."}, {"type": "end_conversation", "text": "Bye."}
        nodes = {"a": {"pre_actions": [say]}, "b": {"post_actions": [say, end]}, "c": {"pre_actions": [end]}}
        found = Imported(IMPORTERS["pipecat"]({"initial_node": "a", "nodes": nodes}))
        assert [found.tasks[each]["prompt"] for each in nodes] == [
            'First say: "One moment."',
            'Say: "One moment."\n\nSay: "Bye."\n\nThen end the conversation.',
            'First say: "Bye."\n\nThen end the conversation.',
        ]
        assert [each["pointer"] for each in found.draft.remarks] == ["/nodes/b", "/nodes/c"]

    def test_functions_with_handlers_are_tools(self) -> None:
        found = imported("pipecat")
        assert "mcpToolSelection" in found.tasks["start"]
        (server,) = found.document["mcpServers"]
        assert [each["toolName"] for each in server["includedTools"]] == [
            "choose_cake",
            "take_order",
            "take_cake",
        ]

    @pytest.mark.parametrize("wrapping", ["", "function", "function_declarations"])
    def test_a_function_is_read_with_what_json_schema_and_null_allow(self, wrapping: str) -> None:
        size, why = {"type": ["null", "integer"]}, {"type": ["null"]}
        function: Any = {"name": "choose", "handler": None, "transition_to": "b"}
        function |= {"properties": {"size": size, "why": why}, "required": ["size"]}
        if wrapping:
            function = {wrapping: function if wrapping == "function" else [function]}
        raw: Any = {"initial_node": "a", "nodes": {"a": {"functions": [function]}, "b": {}}}
        found = Imported(IMPORTERS["pipecat"](raw))
        assert found.tasks["a"]["connectedTasks"] == ["b"]
        assert found.tasks["a"]["mcpToolSelection"] == []
        assert found.tasks["b"]["transitionParameters"] == [
            {"variableId": "size", "required": True},
            {"variableId": "why", "required": False},
        ]
        types = {name: each["type"] for name, each in found.variables.items()}
        assert types == {"size": "number", "why": "string"}

    @pytest.mark.parametrize(
        ("function", "inside"),
        [
            ({"description": "x"}, "/name"),
            ({"function": {"description": "x"}}, "/function/name"),
            ({"function_declarations": [{}]}, "/function_declarations/0/name"),
            ({"type": "function", "function": None}, "/name"),
            ("choose", ""),
            (None, ""),
        ],
    )
    def test_a_function_that_cannot_be_read_is_told(self, function: Any, inside: str) -> None:
        raw: Any = {"initial_node": "a", "nodes": {"a": {"functions": [function]}}}
        with pytest.raises(CorrectTheInput) as refused:
            IMPORTERS["pipecat"](raw)
        assert [each.pointer for each in refused.value.findings] == [f"/nodes/a/functions/0{inside}"]

    def test_roles_are_the_global_prompt_and_another_one_the_task_s(self) -> None:
        found = imported("pipecat")
        assert found.document["globalPrompt"].startswith("You take orders for a bakery.")
        assert found.tasks["cake"]["prompt"].startswith("You are the confectioner.")
        assert "{{ $vars.guests }}" in found.tasks["cake"]["prompt"]

    def test_a_branch_of_a_result_is_the_model_s_to_decide(self) -> None:
        found = imported("pipecat of today")
        assert set(found.tasks["reception"]["connectedTasks"]) == {"check_in", "apology", "new_room"}
        assert found.tasks["check_in"]["description"] == "Enter when: found of find_booking is true."
        assert found.remark("/nodes/reception/functions/0/transition_to")[0] == "changed"

    def test_a_node_that_only_a_handler_s_code_leads_to_is_told(self) -> None:
        raw: Any = {
            "initial_node": "a",
            "nodes": {"a": {"functions": [{"name": "f", "handler": "f"}]}, "b": {}},
        }
        kept, message = Imported(IMPORTERS["pipecat"](raw)).remark("/nodes/b")
        assert (kept, message.startswith("no function here leads to it")) == ("changed", True)

    def test_what_the_visual_editor_exports_is_read(self) -> None:
        size = {"type": "string", "enum": ["small", "large"]}
        case = {"operator": "==", "value": "'none'", "next_node_id": "sorry"}
        decision = {"action": "result = look()", "conditions": [case], "default_next_node_id": "bye"}
        functions = [
            {"name": "order", "description": "They order", "next_node_id": "bye"},
            {"name": "look", "description": "Looks", "decision": decision, "properties": {"size": size}},
            {"name": "lost", "description": "x", "next_node_id": "nowhere"},
        ]
        first = {"label": "Hello", "task_messages": [{"role": "system", "content": "Greet."}]}
        raw: Any = {
            "$id": "https://flows.example.com/flow.json",
            "meta": {"name": "shop"},
            "nodes": [
                {"id": "bye", "type": "end", "data": {"post_actions": [{"type": "end_conversation"}]}},
                {"id": "hello", "type": "initial", "position": {"x": 3, "y": 4}, "data": first},
                {"id": "sorry", "data": {"task_messages": [], "respond_immediately": False}},
            ],
            "edges": [{"id": "e", "source": "hello", "target": "bye"}],
        }
        raw["nodes"][1]["data"]["functions"] = functions
        found = Imported(IMPORTERS["pipecat"](raw))
        assert errors_of(found.document) == []
        assert (found.document["firstTask"], found.tasks["hello"]["name"]) == ("hello", "Hello")
        assert found.document["uiMetadata"]["positions"] == {"hello": {"x": 3.0, "y": 4.0}}
        assert found.tasks["hello"]["connectedTasks"] == ["bye", "sorry"]
        assert found.tasks["sorry"]["description"] == "Enter when: the result of look == 'none'."
        (selection,) = found.tasks["hello"]["mcpToolSelection"]
        assert [each["toolName"] for each in selection["selectedTools"]] == ["look"]
        assert {each["pointer"]: each["kept"] for each in found.draft.remarks} == {
            "/nodes/2/data/respond_immediately": "dropped",
            "/nodes/1/data/functions/1/decision": "changed",
            "/nodes/1/data/functions/2/next_node_id": "dropped",
            "": "changed",
        }
        with pytest.raises(CorrectTheInput) as refused:
            IMPORTERS["pipecat"]({"nodes": [{"id": "a"}, {"id": "a"}]})
        assert [each.pointer for each in refused.value.findings] == ["/nodes/1/id"]

    def test_a_global_function_is_offered_at_every_node(self) -> None:
        found = imported("pipecat of today")
        offered = [
            tool["toolName"]
            for task in found.tasks.values()
            for selection in task["mcpToolSelection"]
            for tool in selection["selectedTools"]
        ]
        assert offered.count("opening_hours") == len(found.tasks)


# What is not there, and what is there twice --------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "raw", "pointer", "what"),
    [
        ("retell", {"start_node_id": "zz", "nodes": [{"id": "a", "type": "end"}]}, "/start_node_id", "node"),
        ("pipecat", {"initial_node": "zz", "nodes": {"a": {}}}, "/initial_node", "node"),
        (
            "dialogflow-cx",
            {"agent": {"startFlow": "zz"}, "flows": [{"displayName": "a"}]},
            "/agent/startFlow",
            "flow",
        ),
    ],
)
def test_a_start_that_is_not_there_is_told(kind: Any, raw: Any, pointer: str, what: str) -> None:
    found = Imported(IMPORTERS[kind](raw))
    assert found.document["firstTask"] == "a"
    assert found.remark(pointer) == ("changed", f"there is no {what} 'zz': the flow starts in 'a'")


@pytest.mark.parametrize("named", ["Second", "projects/p/agents/a/flows/f-2"])
def test_an_agent_of_dialogflow_starts_where_it_says(named: str) -> None:
    flows = [{"displayName": "Default Start Flow"}, {"displayName": "Second", "name": "f-2"}]
    found = Imported(IMPORTERS["dialogflow-cx"]({"agent": {"startFlow": named}, "flows": flows}))
    assert found.tasks[found.document["firstTask"]]["name"] == "Second"
    assert found.draft.remarks == ()


@pytest.mark.parametrize(
    ("kind", "raw", "told"),
    [
        (
            "retell",
            {"nodes": [{"id": each, "type": "end"} for each in ("a", "b", "a")] + [{"id": "a"}]},
            {
                "/nodes/2/id": "'a' is the id of an earlier node",
                "/nodes/3/id": "'a' is the id of an earlier node",
                "/nodes/3/type": "'type' is required here",
            },
        ),
        (
            "dialogflow-cx",
            {
                "flows": [
                    {"displayName": "f", "pages": [{"displayName": "p"}, {"displayName": "p"}]},
                    {"displayName": "f", "pages": [{"displayName": "p"}]},
                ]
            },
            {
                "/flows/0/pages/1/displayName": "'p' is the displayName of an earlier page",
                "/flows/1/displayName": "'f' is the displayName of an earlier flow",
            },
        ),
    ],
)
def test_what_has_the_name_of_an_earlier_one_is_told(kind: Any, raw: Any, told: dict[str, str]) -> None:
    with pytest.raises(CorrectTheInput) as refused:
        IMPORTERS[kind](raw)
    assert {each.pointer: each.message for each in refused.value.findings} == told


# What nobody foresaw ------------------------------------------------------------------------------------


RASA_LINK = "/flows/a/steps/0/next/0/then/0/link"


@pytest.mark.parametrize(
    ("kind", "raw", "pointer"),
    [
        ("retell", {"nodes": [{"type": "end"}]}, "/nodes/0/id"),
        ("retell", {}, "/nodes"),
        ("dialogflow-cx", {"flows": [{}]}, "/flows/0/displayName"),
        ("rasa", {"slots": {}}, "/flows"),
        ("rasa", {"flows": {"a": {"steps": [{"next": [{"then": [{"link": []}]}]}]}}}, RASA_LINK),
        ("pipecat", {"nodes": {}}, "/initial_node"),
        ("pipecat", [], ""),
    ],
)
def test_what_is_of_another_format_is_refused_with_its_place(kind: Any, raw: Any, pointer: str) -> None:
    with pytest.raises(CorrectTheInput) as refused:
        IMPORTERS[kind](raw)
    assert refused.value.code == "original_invalid"
    assert pointer in [finding.pointer for finding in refused.value.findings]
    for finding in refused.value.findings:
        missing = finding.code == "missing_property"
        assert pointed_at(raw, finding.pointer.rpartition("/")[0] if missing else finding.pointer)


def changed(raw: Any, path: tuple[str | int, ...], value: object) -> Any:
    """The document with another value at one place; without it where `value` is `...`."""
    if not path:
        return raw
    copied = copy.deepcopy(raw)
    within = copied
    for part in path[:-1]:
        within = within[part]
    if value is ...:
        del within[path[-1]]
    else:
        within[path[-1]] = value
    return copied


ODD = st.sampled_from(
    [
        ...,
        None,
        "",
        "x",
        "{{ x }}",
        "{{ {% }}",
        "a/b",
        "Ä ö",
        0,
        -1.5,
        True,
        [],
        {},
        ["x"],
        {"x": "y"},
        "n-bye",
    ]
)


@settings(max_examples=400, deadline=None)
@given(data=st.data(), name=st.sampled_from(NAMES))
def test_an_original_with_odd_parts_is_refused_or_becomes_a_sound_draft(
    data: st.DataObject, name: str
) -> None:
    kind, raw = known()[name]
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(places(raw))))
        raw = changed(raw, path, data.draw(ODD))
    try:
        draft = IMPORTERS[kind](raw)
    except CorrectTheInput as refused:
        findings = refused.findings
    else:
        findings = (Finding("", "none", ""),)
        assert errors_of(draft.document) == []
    assert findings
    there = [each.pointer for each in findings if each.code != "missing_property"]
    assert [each for each in there if not pointed_at(raw, each)] == []


EDGES = st.lists(st.tuples(st.integers(0, 7), st.sampled_from(["", "the caller asks", "Else"])), max_size=4)
NODE = st.tuples(
    st.sampled_from(["conversation", "branch", "sms", "end", "extract_dynamic_variables"]), EDGES
)


@settings(max_examples=100, deadline=None)
@given(nodes=st.lists(NODE, min_size=1, max_size=8))
def test_whatever_speaks_can_be_reached_as_in_the_original(
    nodes: list[tuple[str, list[tuple[int, str]]]],
) -> None:
    """Through nodes that are no tasks too, rings of them included."""
    raw = {
        "nodes": [
            {
                "id": str(number),
                "type": kind,
                "instruction": {"type": "prompt", "text": "x"},
                "edges": [
                    {
                        "id": f"{number}.{at}",
                        "destination_node_id": str(target),
                        "transition_condition": {"type": "prompt", "prompt": words},
                    }
                    for at, (target, words) in enumerate(edges)
                ],
            }
            for number, (kind, edges) in enumerate(nodes)
        ]
    }
    spoken = {str(number) for number, (kind, _) in enumerate(nodes) if kind in {"conversation", "end"}}
    assume(spoken)
    document: Any = IMPORTERS["retell"](raw).document
    assert {task["_id"] for task in document["tasks"]} == spoken
    for task in document["tasks"]:
        assert set(task["connectedTasks"]) == spoken_behind(int(task["_id"]), nodes, spoken) - {task["_id"]}


def spoken_behind(start: int, nodes: list[tuple[str, list[tuple[int, str]]]], spoken: set[str]) -> set[str]:
    """Plain search: every node with words that one way through silent nodes leads to."""
    found: set[str] = set()
    waiting, seen = [start], set[int]()
    while waiting:
        for target, _ in nodes[waiting.pop()][1]:
            if target >= len(nodes):
                continue
            if str(target) in spoken:
                found.add(str(target))
            elif target not in seen:
                seen.add(target)
                waiting.append(target)
    return found
