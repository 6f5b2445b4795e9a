"""Calls that follow a flow, against the real engine (V2, F28-F35)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest
from structlog.testing import capture_logs

from channels.engine_client.client import PAUSES_S, EngineClient
from channels.engine_client.fake_mcp import ScriptedMcp
from channels.voice.call.ports import CallerSilent, KeysPressed, Refused, TransferFailed
from channels.voice.flow.task_context import LOST, NOBODY_FREE, TRY_AGAIN
from flow_engine.values import JsonValue
from tests.api.harness import BASE_URL, Scene, clinic, entry, hum_task, over_many_contacts
from tests.channels.engine_client.engine_doubles import Pauses, client_with
from tests.channels.voice.flow.flow_call import (
    AGENDA,
    CALL_ID,
    CATALOGUE,
    NOT_READ_ALONG,
    OPERATOR,
    eventually,
    flow_call,
    health_booking,
    scripted,
)
from tests.flow_engine.documents.samples import JsonObject, minimal_version

pytestmark = pytest.mark.anyio

VISIT = {"idPrestazione": "ECG-1", "nome": "Elettrocardiogramma"}


def quiet_clinic(**changes: Any) -> JsonObject:
    return clinic(aiHelpers=NOT_READ_ALONG, **changes)


def found(arguments: Mapping[str, object]) -> JsonValue:
    return "one visit: Elettrocardiogramma"


class Clinic(ScriptedMcp):
    """The servers of the sample. Its search writes what was found into the memory, as such tools do."""

    def __init__(self, scene: Scene) -> None:
        text, ids = {"type": "string"}, {"conversationId": {}, "contactId": {}}
        search = scripted("cerca_prestazione", found, "testo", testo=text, massimo={"type": "integer"}, **ids)
        slots = scripted(
            "cerca_disponibilita", found, "prestazione", prestazione={"type": "object"}, sede=text, dal=text
        )
        super().__init__({CATALOGUE: (search,), AGENDA: (slots,)})
        self._scene = scene

    async def call(
        self, url: str, tool: str, arguments: Mapping[str, object], meta: Mapping[str, object]
    ) -> JsonValue:
        if arguments.get("testo") == "never":
            await asyncio.Event().wait()
        if tool == "cerca_prestazione":
            told = [{"name": "Nome", "value": "Elettrocardiogramma"}]
            written = entry("idPrestazione", VISIT, contactId=arguments["contactId"], descriptionForLLM=told)
            await self._scene.written(written, conversation=str(arguments["conversationId"]))
        return await super().call(url, tool, arguments, meta)


class TestAWholeCall:
    async def test_from_the_greeting_over_a_refusal_and_a_tool_to_a_person(self) -> None:  # V2
        async with flow_call(health_booking(), mcp=Clinic) as call:
            settings = await call.opened()
            assert await call.handler.started() == "/start"
            assert "Poliambulatorio Aurora" in settings.instructions
            assert "+393471234567" in settings.instructions
            assert list(call.tools()) == ["change_task", "cerca_prestazione", "end_call"]

            refusal = await call.tool("change_task", task="disponibilità")
            assert (refusal["result"], refusal["code"]) == (False, "missing_variables")
            assert refusal["missing"] == [
                {
                    "name": "idPrestazione",
                    "type": "custom",
                    "fillableBy": ["cerca_prestazione"],
                    "fillableIn": [
                        {"task": "prestazione", "tools": ["cerca_prestazione"]},
                        {"task": "informazioni", "tools": ["cerca_prestazione"]},
                    ],
                }
            ]
            assert {"task": "operatore", "missing": []} in refusal["reachableTasks"]
            assert call.controls.told == []

            answer = await call.tool("cerca_prestazione", testo="ECG")
            assert answer == "one visit: Elettrocardiogramma"
            assert call.controls.names == ["reconfigure"]
            assert "Elettrocardiogramma" in call.settings.instructions

            assert await call.tool("change_task", task="disponibilità", reason="Vuole una data.") == {
                **{"result": True, "task": "disponibilità", "type": "AIO"}
            }
            conversation = call.handler.contact.conversation_id
            journal = await call.scene.http.get(f"/v1/conversations/{conversation}/journal")
            reasons = [e["rationale"] for e in journal.json()["entries"] if e["input"]["op"] == "change-task"]
            assert reasons == [None, "Vuole una data."]
            name, scene, command = call.controls.told[-1]
            assert (name, command) == ("switch_task", "/start_task disponibilità AIO")
            assert scene is call.settings
            assert list(call.tools()) == ["change_task", "cerca_disponibilita", "end_call"]

            await call.tool("cerca_disponibilita", dal="2026-01-20")
            assert call.servers.calls[-1].arguments == {"prestazione": VISIT, "dal": "2026-01-20"}

            await call.tool("change_task", task="operatore")
            assert call.controls.told[-2][0::2] == (
                "switch_task",
                "/start_task operatore HUM skills=segreteria optional_skills=inglese",
            )
            assert call.controls.told[-1] == ("transfer", OPERATOR)
            await call.over("transferred")
            events = await call.system_events()
        assert [event["subtype"] for event in events] == [
            *("contact_started", "task_refused", "task_changed", "task_changed", "routing_requested"),
            *("human_task", "contact_ended", "conversation_closed"),
        ]
        assert events[-3]["outcome"] == "connected"  # F34
        assert events[-2]["reason"] == "transferred"  # F30
        assert call.servers.is_closed

    async def test_a_tool_gets_the_ids_the_fixed_values_and_the_memory(self) -> None:  # V2
        async with flow_call(health_booking(), mcp=Clinic) as call:
            await call.opened()
            assert {tool["type"] for tool in call.tools().values()} == {"function"}
            schema = call.tools()["cerca_prestazione"]["parameters"]
            assert list(schema["properties"]) == ["testo"]
            assert schema["properties"]["testo"]["description"].startswith("Il nome della visita")
            await call.tool("cerca_prestazione", testo="ECG")
            (made,) = call.servers.calls
        assert made.arguments == {
            **{"testo": "ECG", "massimo": 5},
            **{"conversationId": CALL_ID, "contactId": CALL_ID},
        }
        ids, memory = made.meta["flow-engine/conversation"], made.meta["flow-engine/memory"]
        campaign = ids.pop("campaignId")
        assert ids == {"tenantId": "default", "conversationId": CALL_ID, "contactId": CALL_ID}
        assert isinstance(campaign, str)
        assert "idPrestazione" in {variable["varId"] for variable in memory["vars"]}  # type: ignore[index]

    async def test_what_both_sides_say_arrives_in_order_with_tools_and_silence(self) -> None:  # F33, F40
        async with flow_call(health_booking(), mcp=Clinic) as call:
            await call.opened()
            await call.agent("Buongiorno!")
            await call.user("Vorrei un elettrocardiogramma")
            await call.user("   ")
            await call.tool("cerca_prestazione", testo="ECG")
            await call.handler.notice(CallerSilent())
            await call.over()
            events = await call.events()
        said = [(event["type"], event["src"], event["body"], event["srcId"]) for event in events]
        assert [row for row in said if row[3] is not None or row[1] == "user"] == [
            ("message", "bot", "Buongiorno!", "agent-1"),
            ("message", "user", "Vorrei un elettrocardiogramma", None),
            ("tool", "bot", 'cerca_prestazione: "one visit: Elettrocardiogramma"', "cerca_prestazione"),
            ("system", "bot", {"subtype": "reported", "text": "no_utterance"}, "agent-1"),
        ]

    async def test_keys_are_words_of_the_caller(self) -> None:  # F33, V12
        async with flow_call(health_booking(), mcp=Clinic) as call:
            await call.opened()
            for _ in range(3):
                await call.handler.notice(CallerSilent())
            await call.handler.notice(KeysPressed("(pressed on the keypad: 42#)"))
            await call.handler.notice(CallerSilent())
            assert "hang_up" not in call.controls.names
            await call.over()
            said = [event["body"] for event in await call.events() if event["src"] == "user"]
        assert said == ["(pressed on the keypad: 42#)"]


class TestOpening:
    @pytest.mark.parametrize(
        ("document", "version"),
        [
            (quiet_clinic(), "unknown"),
            (quiet_clinic(channels=["chat"], mandatoryChannels=["chat"]), None),
        ],
        ids=["no such version", "not for the phone"],
    )
    async def test_a_flow_that_cannot_be_started_is_an_apology(
        self, document: JsonObject, version: str | None
    ) -> None:
        async with flow_call(document, version=version) as call:
            assert await call.handler.open() == Refused("Mi dispiace.")
            with capture_logs() as logged:
                await call.agent("Mi dispiace.")
                await call.over("agent_hung_up")
            assert logged == []  # V14: what was never begun is neither told nor ended
            assert call.requests == ["/v1/handle-new-contact"]

    async def test_an_engine_that_is_away_is_an_apology(self) -> None:  # V2
        away, script, _ = client_with(httpx2.ConnectError("refused"))
        async with flow_call(quiet_clinic(), engine=lambda scene: away) as call:
            assert await call.handler.open() == Refused("Mi dispiace.")
        assert len(script.requests) > 1

    async def test_tools_of_a_server_that_is_away_are_left_out_and_unknown_to_the_model(self) -> None:
        async with flow_call(health_booking()) as call:
            await call.opened()
            assert list(call.tools()) == ["change_task", "end_call"]
            answer = await call.tool("cerca_prestazione", testo="ECG")
        assert "no tool 'cerca_prestazione'" in answer["error"]

    async def test_a_tool_whose_schema_is_none_is_left_out(self) -> None:
        broken = scripted("cerca_prestazione", found, testo={"type": "nonsense"})
        async with flow_call(health_booking(), {CATALOGUE: (broken,)}) as call:
            await call.opened()
            assert list(call.tools()) == ["change_task", "end_call"]

    async def test_the_line_may_name_the_conversation_to_go_on_with(self) -> None:  # F28
        document = over_many_contacts(aiHelpers=NOT_READ_ALONG)
        async with flow_call(document, parameters={"conversationId": "conv-1", "room": "r1"}) as call:
            await call.scene.started(contactId="chat-1", channel="chat")
            await call.scene.written(entry("var_string", "ECG", contactId="chat-1"))
            settings = await call.opened()
            assert await call.handler.started() == "/resume"
        assert "|a string||ECG|" in settings.instructions
        assert "r1" in settings.instructions

    async def test_the_first_words_have_their_own_rule_for_interruptions(self) -> None:  # F28
        async with flow_call(quiet_clinic()) as call:
            assert (await call.opened()).allow_interruptions is False
            await call.agent("Good morning")
            assert call.settings.allow_interruptions is True
            await call.agent("How can I help?")
            assert call.controls.names == ["reconfigure"]


class TestFreshPrompts:
    async def test_the_model_is_told_again_only_of_what_the_clock_has_not_done(self) -> None:  # F31
        async with flow_call(quiet_clinic()) as call:
            before = await call.opened()
            await call.agent("Good morning")
            for text in ("Hello", "I need a visit"):
                call.scene.clock.advance(minutes=7)
                await call.heard(text)
            assert call.reconfigurations() == 1  # the end of the first words
            await call.scene.written(entry("var_string", "ECG"), conversation=CALL_ID)
            await call.user("An ECG")
            await eventually(lambda: call.reconfigurations() == 2)
            await call.heard("Yes")
            assert call.reconfigurations() == 2
        instructions = call.settings.instructions
        assert "|a string||ECG|" in instructions
        assert shared(before.instructions, instructions) > 0.8 * len(before.instructions)  # F24

    async def test_a_value_that_only_changes_its_digits_is_news(self) -> None:
        async with flow_call(quiet_clinic()) as call:
            await call.opened()
            for number, changes in ((10, 1), (11, 2)):
                await call.scene.written(entry("var_number", number), conversation=CALL_ID)
                await call.user(f"It is {number}")
                await eventually(lambda changes=changes: call.reconfigurations() == changes)
                assert f"|a number||{number}|" in call.settings.instructions

    async def test_what_is_missing_for_a_task_follows_the_memory(self) -> None:  # V2
        async with flow_call(quiet_clinic()) as call:
            await call.opened()
            assert "Still missing: a string, a boolean." in change_task_text(call)
            await call.scene.written(entry("var_boolean", False), conversation=CALL_ID)
            await call.user("No")
            await eventually(lambda: "Still missing: a string." in change_task_text(call))

    async def test_a_prompt_that_a_change_of_task_has_overtaken_is_not_taken(self) -> None:
        gate = Gate()
        async with flow_call(quiet_clinic(), engine=gate.client) as call:
            await call.opened()
            await call.scene.written(entry("var_string", "ECG"), conversation=CALL_ID)
            await call.user("An ECG")
            await eventually(lambda: gate.held == 1)
            await call.tool("change_task", task="supervised")
            gate.open.set()
            await call.user("Hello?")
            await eventually(lambda: gate.passed >= 2)
            await asyncio.sleep(0.05)
        assert call.controls.names == ["switch_task"]
        assert gate.contacts == 1

    async def test_a_task_that_somebody_else_has_changed_is_followed(self) -> None:
        async with flow_call(quiet_clinic()) as call:
            await call.opened()
            await call.scene.changed("supervised", conversationId=CALL_ID)
            await call.user("Hello")
            await eventually(lambda: "switch_task" in call.controls.names)
            assert call.controls.told[-1][2] == "/resume"
            assert list(change_task(call)["enum"]) == ["reception"]

    async def test_a_call_follows_where_the_conversation_goes_by_itself(self) -> None:
        document = quiet_clinic()
        way = {"when": "has(vars.var_number)", "advance": "auto"}
        document["tasks"][0]["connectionConditions"] = {"supervised": way}
        async with flow_call(document) as call:
            await call.opened()
            await call.scene.written(entry("var_number", 3), conversation=CALL_ID)
            await call.user("Three")
            await eventually(lambda: "switch_task" in call.controls.names)
            await call.heard("Hello?")
            switched = [told[2] for told in call.controls.told if told[0] == "switch_task"]
            assert switched == ["/start_task supervised AIS"]  # once, whoever noticed it first
            assert list(change_task(call)["enum"]) == ["reception"]

    async def test_a_refusal_that_leads_to_a_person_puts_the_caller_through(self) -> None:
        document = quiet_clinic()
        way = {"when": "refusals('visit') >= 1", "advance": "auto"}
        document["tasks"][0]["connectionConditions"] = {"operator": way}
        async with flow_call(document, transfer_to=OPERATOR) as call:
            await call.opened()
            refused = await call.tool("change_task", task="visit")
            assert refused["result"] is False
            await eventually(lambda: "transfer" in call.controls.names)
            switched = [str(told[2]) for told in call.controls.told if told[0] == "switch_task"]
            assert [command.split()[:2] for command in switched] == [["/start_task", "operator"]]


class TestHandingOver:
    async def test_without_an_address_the_engine_is_told_and_the_model_goes_on(self) -> None:  # F34
        async with flow_call(quiet_clinic(), transfers={}) as call:
            await call.opened()
            assert (await call.tool("change_task", task="operator"))["result"] is True
            assert call.controls.names == ["switch_task"]
            assert call.controls.told[0][2] == "/human_task_failed no address to transfer the call to"
            assert "Nobody was available" in call.settings.instructions
            await call.over()
            outcomes = [e for e in await call.system_events() if e["subtype"] == "human_task"]
        assert [outcome["outcome"] for outcome in outcomes] == ["failed"]

    async def test_a_caller_who_could_not_be_put_through_goes_on_with_the_agent(self) -> None:  # V2, F34
        async with flow_call(quiet_clinic(), transfer_to=OPERATOR) as call:
            await call.opened()
            await call.tool("change_task", task="operator")
            await call.handler.notice(TransferFailed(OPERATOR))
            name, _, command = call.controls.told[-1]
            assert (name, str(command).partition(" ")[0]) == ("switch_task", "/human_task_failed")
            assert "Nobody was available" in call.settings.instructions
            await call.over()
            outcomes = [e for e in await call.system_events() if e["subtype"] == "human_task"]
        assert [outcome["outcome"] for outcome in outcomes] == ["failed"]  # once, not at the end again

    async def test_nor_does_the_call_end_when_the_engine_cannot_be_told(self) -> None:  # V2
        gone = False

        def lost(request: httpx2.Request) -> bool:
            return gone

        async with flow_call(quiet_clinic(), transfer_to=OPERATOR, lost=lost) as call:
            await call.opened()
            await call.tool("change_task", task="operator")
            gone = True
            await call.handler.notice(TransferFailed(OPERATOR))
            assert call.controls.told[-1] == ("instruct", NOBODY_FREE)

    async def test_a_call_that_could_not_be_moved_is_told_as_failed(self) -> None:  # F34
        async with flow_call(quiet_clinic(), transfers={}, transfer_to="sip:desk@example.com") as call:
            await call.opened()
            await call.tool("change_task", task="operator")
            assert call.controls.told[-1] == ("transfer", "sip:desk@example.com")
            await call.over("failed")
            outcomes = [e for e in await call.system_events() if e["subtype"] == "human_task"]
        assert [outcome["outcome"] for outcome in outcomes] == ["failed"]

    async def test_a_flow_that_begins_with_a_person_hands_over_after_the_first_words(self) -> None:
        document = minimal_version(tasks=[hum_task("operator")], firstTask="operator")
        async with flow_call(document, transfer_to=OPERATOR) as call:
            await call.opened()
            assert call.controls.names == []
            await call.agent("One moment, please")
            await call.agent("Still there?")
        assert call.controls.names.count("transfer") == 1

    async def test_supervised_tasks_go_on_with_the_agent(self) -> None:
        async with flow_call(quiet_clinic(), transfer_to=OPERATOR) as call:
            await call.opened()
            await call.tool("change_task", task="supervised")
            assert call.controls.names == ["switch_task"]


class TestTrouble:
    async def test_an_engine_that_goes_away_is_told_to_the_model_and_ends_no_call(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("channels.voice.flow.call_handler.DRAIN_WITHIN_S", 0.1)
        gone = False

        def lost(request: httpx2.Request) -> bool:
            return gone

        async with flow_call(health_booking(), mcp=Clinic, lost=lost) as call:
            await call.opened()
            gone = True
            assert await call.tool("change_task", task="operatore") == {"result": False, "reason": TRY_AGAIN}
            assert "memory" in str(await call.tool("cerca_prestazione", testo="ECG"))
            await call.user("Hello?")
            await call.handler.notice(CallerSilent())
            await call.over()
        assert call.controls.names == ["instruct"]

    async def test_words_and_the_end_wait_for_an_engine_that_comes_back(self) -> None:  # V2
        away = 0

        def gone(scene: Scene) -> EngineClient:
            engine = httpx2.ASGITransport(app=scene.app)

            async def answer(request: httpx2.Request) -> httpx2.Response:
                nonlocal away
                if away:
                    away -= 1
                    raise httpx2.ConnectError("refused")
                return await engine.handle_async_request(request)

            return EngineClient(
                httpx2.AsyncClient(transport=httpx2.MockTransport(answer), base_url=BASE_URL), pause=Pauses()
            )

        tries = 1 + len(PAUSES_S)
        async with flow_call(quiet_clinic(), engine=gone) as call:
            await call.opened()
            away = 2 * tries
            await call.user("My number is 347 123 4567")
            await eventually(lambda: not away)
            await asyncio.sleep(0.05)
            away = 3 * tries
            await call.over()
            said = [event["body"] for event in await call.events() if event["src"] == "user"]
            ended = [e for e in await call.system_events() if e["subtype"] == "contact_ended"]
        assert said == ["My number is 347 123 4567"]
        assert len(ended) == 1

    async def test_a_required_variable_without_a_value_is_told_to_the_model(self) -> None:
        slots = scripted("cerca_prestazione", found, "massimo", massimo={})
        document = health_booking()
        document["tasks"][0]["mcpToolSelection"][0]["selectedTools"][0]["toolParameters"] = [
            {"parameterName": "massimo", "assignmentStrategy": "variable", "assignmentValue": "sede"}
        ]
        async with flow_call(document, {CATALOGUE: (slots,)}) as call:
            await call.opened()
            assert await call.tool("cerca_prestazione") == {
                **{"error": "no value yet for: sede", "missing": ["sede"]}
            }
            assert call.servers.calls == []

    @pytest.mark.parametrize("arguments", ["", "{", "[]", "null", '{"task": 5}', '{"task": null}', "{}"])
    async def test_arguments_that_are_none_are_refused_by_the_engine(self, arguments: str) -> None:
        async with flow_call(quiet_clinic()) as call:
            await call.opened()
            answer: Any = await call.handler.run_tool("change_task", arguments)
        assert (answer["result"], answer["code"]) == (False, "task_unknown")

    async def test_arguments_that_break_a_tool_s_schema_are_not_sent(self) -> None:
        async with flow_call(health_booking(), mcp=Clinic) as call:
            await call.opened()
            answer = await call.tool("cerca_prestazione", testo=5)
            assert "testo" in answer["error"]
            assert call.servers.calls == []

    async def test_every_tool_leaves_its_line_in_the_log_however_it_ended(self) -> None:  # 21, V14
        async with flow_call(health_booking(), mcp=Clinic) as call:
            await call.opened()
            with capture_logs() as logged:
                await call.tool("cerca_prestazione", testo="ECG")
                await call.tool("cerca_prestazione", testo=5)
                await call.tool("change_task", task="nowhere")
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await call.tool("cerca_prestazione", testo="never")
                await call.tool("end_call")
        lines = [entry for entry in logged if entry["event"] == "tool_call"]
        assert [(line["tool"], line["outcome"]) for line in lines] == [
            ("cerca_prestazione", "ok"),
            ("cerca_prestazione", "failed"),
            ("change_task", "failed"),
            ("cerca_prestazione", "cancelled"),
            ("end_call", "ok"),
        ]
        assert all(line["duration_ms"] >= 0 for line in lines)

    @pytest.mark.parametrize("how", ["closed", "superseded"])
    async def test_a_conversation_that_is_no_longer_this_call_s_is_taken_leave_of(self, how: str) -> None:
        document = over_many_contacts(aiHelpers=NOT_READ_ALONG) if how == "superseded" else quiet_clinic()
        async with flow_call(document) as call:
            await call.opened()
            if how == "superseded":
                await call.scene.started(contactId="chat-1", conversationId=CALL_ID, channel="chat")
            else:
                await call.scene.end(conversationId=CALL_ID)
            answer = await call.tool("change_task", task="operator")
            assert answer["result"] is False
            assert call.controls.told == [("instruct", LOST)]
            await call.user("Hello?")
            await call.tool("change_task", task="operator")
            assert call.controls.told == [("instruct", LOST)]
            await call.over()
            events = await call.events()
        assert "Hello?" not in [event["body"] for event in events]

    @pytest.mark.parametrize("by", ["words", "a change of task"])
    async def test_a_conversation_that_is_erased_during_its_call_is_taken_leave_of(  # V2, 18
        self, by: str
    ) -> None:
        async with flow_call(quiet_clinic()) as call:
            await call.opened()
            assert (await call.scene.http.delete(f"/v1/conversations/{CALL_ID}")).status_code == 200
            if by == "words":
                await call.user("Hello?")
            else:
                await call.tool("change_task", task="operator")
            await eventually(lambda: call.controls.told == [("instruct", LOST)])

    async def test_a_conversation_that_was_closed_is_noticed_with_the_next_tool(self) -> None:
        async with flow_call(health_booking(), {CATALOGUE: (scripted("cerca_prestazione", found),)}) as call:
            await call.opened()
            await call.scene.end(conversationId=CALL_ID)
            await call.tool("cerca_prestazione")
            assert call.controls.told == [("instruct", LOST)]


class TestSilenceAndEnd:
    async def test_the_third_silence_in_a_row_ends_in_a_goodbye(self) -> None:  # V2
        async with flow_call(health_booking(), mcp=Clinic) as call:
            assert (await call.opened()).silence_s == 15
            for _ in range(3):
                await call.handler.notice(CallerSilent())
            await call.user("I am back")
            await call.handler.notice(CallerSilent())
            assert "hang_up" not in call.controls.names
            for _ in range(3):
                await call.handler.notice(CallerSilent())
            assert call.controls.names[-1] == "hang_up"  # the model has not done it itself
        texts = [str(told[1]) for told in call.controls.told if told[0] == "instruct"]
        assert ["end_call" in text for text in texts] == [False, False, True, False, False, True]
        assert all("15 seconds" in text for text in texts)

    async def test_end_call_hangs_up(self) -> None:
        async with flow_call(quiet_clinic()) as call:
            await call.opened()
            assert await call.tool("end_call") == {"status": "ok"}
        assert call.controls.told == [("hang_up",)]

    @pytest.mark.parametrize(
        ("reason", "by"),
        [("caller_hung_up", "user"), ("agent_hung_up", "bot"), ("time_limit", None), ("shut_down", None)],
    )
    async def test_the_contact_ends_once_and_says_who_ended_it(self, reason: Any, by: str | None) -> None:
        async with flow_call(quiet_clinic()) as call:
            await call.opened()
            await call.over(reason)
            await call.over(reason)
            ended = [e for e in await call.system_events() if e["subtype"] == "contact_ended"]
        assert [event.get("by") for event in ended] == [by]  # F30

    async def test_a_prompt_that_is_waited_for_is_nobody_s_after_the_end(self) -> None:  # V2
        """The caller's last words arrive at the engine with the end, and would be looked for there."""
        gate = Gate()
        async with flow_call(health_booking(), engine=gate.client) as call:
            await call.opened()
            before = asyncio.all_tasks()
            await call.user("Arrivederci")
            await call.over()
            assert asyncio.all_tasks() == before

    async def test_a_caller_who_leaves_while_the_contact_begins_leaves_none_behind(self) -> None:  # V2
        gate = Gate()

        def slow(scene: Scene) -> EngineClient:
            engine = httpx2.ASGITransport(app=scene.app)

            async def later(request: httpx2.Request) -> httpx2.Response:
                async def taken() -> httpx2.Response:
                    gate.held += 1
                    if request.url.path == "/v1/handle-new-contact":
                        await gate.open.wait()
                    return await engine.handle_async_request(request)

                return await asyncio.shield(asyncio.create_task(taken()))  # the engine has it, come what may

            return EngineClient(
                httpx2.AsyncClient(transport=httpx2.MockTransport(later), base_url=BASE_URL), pause=Pauses()
            )

        async with flow_call(quiet_clinic(), engine=slow) as call:
            opening = asyncio.create_task(call.handler.open())
            await eventually(lambda: gate.held > 0)
            opening.cancel()
            await asyncio.wait({opening})
            ended = asyncio.create_task(call.over())
            await asyncio.sleep(0.05)
            gate.open.set()
            await ended
            assert [e["subtype"] for e in await call.system_events()].count("contact_ended") == 1

    async def test_a_call_that_was_never_opened_ends_without_trouble(self) -> None:
        async with flow_call(quiet_clinic()) as call:
            await call.over("failed")
            assert call.servers.is_closed


class Gate(httpx2.AsyncBaseTransport):
    """Answers everything by the engine; prompts are made at once and delivered when it is open."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.held = self.passed = self.contacts = 0

    def client(self, scene: Scene) -> EngineClient:
        self._engine = httpx2.ASGITransport(app=scene.app)
        return EngineClient(httpx2.AsyncClient(transport=self, base_url=BASE_URL))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = await self._engine.handle_async_request(request)
        self.contacts += request.url.path == "/v1/handle-new-contact"
        if request.url.path.startswith("/v1/prompt/"):
            await answer.aread()
            self.held += 1
            await self.open.wait()
            self.passed += 1
        return answer


def change_task(call: Any) -> Any:
    return call.tools()["change_task"]["parameters"]["properties"]["task"]


def change_task_text(call: Any) -> str:
    return str(change_task(call)["description"])


def shared(one: str, other: str) -> int:
    """The length of the common beginning."""
    return next(n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
