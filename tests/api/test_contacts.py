"""Contacts that start, come back, take over and end (F28, F30)."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.outbound.fake import Answer
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, OutboundReply
from tests.api.harness import (
    CALL,
    HANDLER,
    Scene,
    clinic,
    entry,
    multi_contact,
    open_scene,
    over_many_contacts,
)
from tests.flow_engine.documents.samples import JsonObject, stt

pytestmark = pytest.mark.anyio
NO = {HANDLER: [OutboundReply(200, b"false")]}


def subtypes(events: list[Any]) -> list[str]:
    return [event["body"]["subtype"] for event in events if event["type"] == "system"]


async def memory_of(scene: Scene, conversation: str = "conv-1") -> dict[str, Any]:
    dump = (await scene.http.get(f"/v1/memory/{conversation}")).json()
    return {variable["varId"]: variable["value"] for variable in dump["vars"]}


class TestStarting:
    async def test_a_new_conversation_begins_in_the_first_task_with_everything_an_agent_needs(self) -> None:
        async with open_scene(clinic()) as scene:
            reply = await scene.started(contact={"callerId": "+39061234567"}, tenant={"name": "Alfa"})
            assert reply["command"] == "/start"  # F25, F28
            assert (reply["taskId"], reply["taskName"], reply["taskType"]) == (
                "reception",
                "reception",
                "AIO",
            )
            assert (reply["tenantId"], reply["conversationId"], reply["contactId"]) == (
                "default",
                "conv-1",
                "call-1",
            )
            assert reply["revision"] == 1
            assert reply["language"] == "en-US"
            assert reply["routingParameters"] is None
            assert reply["mcpServers"] == ["http://127.0.0.1:8080/mcp"]
            assert [task["taskId"] for task in reply["reachableTasks"]] == ["visit", "operator", "supervised"]
            assert "callerId: +39061234567" in reply["prompt"]
            assert subtypes(await scene.events()) == ["contact_started"]  # F40

    async def test_every_variable_starts_empty(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            assert set((await memory_of(scene)).values()) == {None}  # F17

    async def test_tools_of_the_task_come_with_their_parameters_assigned(self) -> None:
        assigned = [
            {"parameterName": "who", "assignmentStrategy": "variable", "assignmentValue": "var_string"},
            {"parameterName": "where", "assignmentStrategy": "fixed", "assignmentValue": "Rome"},
            {"parameterName": "when", "assignmentStrategy": "prompt", "assignmentValue": "the date"},
        ]
        document = clinic()
        document["mcpServers"] = [
            {"name": "agenda", "url": "http://agenda.internal/mcp", "includedTools": [{"toolName": "book"}]}
        ]
        document["tasks"][0]["mcpToolSelection"] = [
            {
                "mcpServerName": "agenda",
                "selectedTools": [{"toolName": "book", "toolParameters": assigned}],
            }
        ]
        async with open_scene(document) as scene:
            reply = await scene.started()
            assert reply["mcpServers"] == ["http://127.0.0.1:8080/mcp", "http://agenda.internal/mcp"]  # F28
            who, where, when = reply["mcpTools"][1]["tools"][0]["parameters"]
            assert who == {**assigned[0], "value": None}
            assert where == {**assigned[1], "value": "Rome"}
            assert when == assigned[2]
            await scene.written(entry("var_string", "Ada"))
            again = (await scene.started())["mcpTools"][1]["tools"][0]["parameters"]
            assert again[0]["value"] == "Ada"

    @pytest.mark.parametrize(
        ("named", "code"),
        [
            ({"conversationalFlowVersionId": "version-9"}, "version_unknown"),
            ({"conversationalFlowVersionId": ..., "flowId": "flow-9", "tag": "prod"}, "flow_unknown"),
        ],
    )
    async def test_an_unknown_version_is_404(self, named: JsonObject, code: str) -> None:
        async with open_scene(clinic()) as scene:
            reply = await scene.contact(**named)
            assert (reply.status_code, reply.json()["code"]) == (404, code)  # F28
            assert (await scene.http.get("/v1/memory/conv-1")).status_code == 404

    async def test_a_draft_is_kept_but_never_run(self) -> None:
        async with open_scene() as scene:
            draft = await scene.publish({**clinic(), "draft": True})
            reply = await scene.contact(conversationalFlowVersionId=draft)
            assert (reply.status_code, reply.json()["code"]) == (409, "version_is_draft")  # F8
            assert (await scene.http.get("/v1/memory/conv-1")).status_code == 404

    @pytest.mark.parametrize(
        "named",
        [
            {"conversationalFlowVersionId": ...},
            {"conversationalFlowVersionId": ..., "flowId": "f"},
            {"conversationalFlowVersionId": ..., "tag": "prod"},
            {"flowId": "f", "tag": "prod"},
        ],
    )
    async def test_a_version_is_named_in_exactly_one_way(self, named: JsonObject) -> None:
        async with open_scene(clinic()) as scene:
            reply = await scene.contact(**named)
            assert (reply.status_code, reply.json()["code"]) == (422, "body_invalid")  # F6, F28

    async def test_a_tag_chooses_the_version_and_a_running_conversation_keeps_its_own(self) -> None:
        async with open_scene() as scene:
            await scene.publish(clinic(), tag="prod")
            flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
            by_tag = {"conversationalFlowVersionId": ..., "flowId": flow_id, "tag": "prod"}
            before = await scene.started(**by_tag)
            await scene.save(flow_id, clinic(_id="version-2", globalPrompt="Second version."))
            moved = {"versionId": "version-2", "updatedBy": "ada"}
            assert (await scene.http.put(f"/v1/flows/{flow_id}/tags/prod", json=moved)).status_code == 200
            after = await scene.started(**by_tag, conversationId="conv-2")
            assert "Second version." in after["prompt"]  # F6
            again = await scene.started(**by_tag)
            assert again["prefixHash"] == before["prefixHash"]  # F13
            unknown = await scene.contact(**{**by_tag, "tag": "canary"}, conversationId="conv-3")
            assert (unknown.status_code, unknown.json()["code"]) == (404, "tag_unknown")

    @pytest.mark.parametrize(
        ("channel", "code"),
        [("sms", "channel_not_supported"), ("pigeon", "body_invalid"), (None, "body_invalid")],
    )
    async def test_a_channel_that_the_version_lacks_is_422(self, channel: Any, code: str) -> None:
        async with open_scene(clinic()) as scene:
            reply = await scene.contact(channel=channel)
            assert (reply.status_code, reply.json()["code"]) == (422, code)  # F28
            assert [error["pointer"] for error in reply.json()["errors"]] == ["/channel"]
            assert (await scene.http.get("/v1/memory/conv-1")).status_code == 404

    @pytest.mark.parametrize(
        ("asked", "chosen"),
        [("it-IT", "it-IT"), ("de-DE", "en-US"), (None, "en-US"), ("it", "it-IT"), ("it-CH", "it-IT")],
    )
    async def test_a_supported_language_is_taken_up_and_any_other_left(self, asked: Any, chosen: str) -> None:
        async with open_scene(clinic()) as scene:
            assert (await scene.started(language=asked))["language"] == chosen  # F28


class TestTheSameContact:
    async def test_it_goes_on_where_it_is_and_nothing_is_created_twice(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.written(entry("var_number", 4))
            await scene.changed("operator")
            events = await scene.events()
            scene.clock.advance(seconds=5)
            again = await scene.started()
            assert (again["command"], again["taskId"], again["revision"]) == ("/resume", "operator", 2)  # F28
            assert (await memory_of(scene))["var_number"] == 4
            assert await scene.events() == events
            twice = await scene.started()
            assert twice == again

    @pytest.mark.parametrize("document", [clinic(), over_many_contacts()], ids=["single", "multi"])
    async def test_after_its_end_it_is_refused_with_the_state(self, document: JsonObject) -> None:
        async with open_scene(document, answers=NO) as scene:
            await scene.started()
            await scene.end()
            reply = await scene.contact()
            problem = reply.json()
            assert (reply.status_code, problem["code"]) == (409, "contact_ended")  # F28
            assert problem["accepted"] == ["a new contact id"]
            assert problem["state"]["activeContactId"] is None


class TestAnotherContact:
    async def test_without_several_contacts_it_supersedes_and_starts_anew(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.written(entry("var_number", 4))
            await scene.changed("operator")
            fresh = await scene.started(contactId="call-2", tenant={"timezone": "Europe/Rome"})
            assert (fresh["command"], fresh["taskId"], fresh["revision"]) == ("/start", "reception", 3)  # F28
            assert (await memory_of(scene))["var_number"] is None
            assert "Europe/Rome" in fresh["prompt"]
            assert "contact_superseded" in subtypes(await scene.events())
            superseded = await scene.contact()
            assert superseded.json()["code"] == "contact_ended"
            assert (await scene.change("operator")).status_code == 409

    async def test_with_several_contacts_memory_and_task_are_kept(self) -> None:
        async with open_scene(over_many_contacts()) as scene:
            await scene.started(tenant={"name": "Alfa"})
            await scene.written(entry("var_number", 4))
            await scene.say("m-1", "I would like an appointment")
            await scene.changed("operator")
            resumed = await scene.started(contactId="chat-1", channel="chat", tenant={"name": "Beta"})
            assert (resumed["command"], resumed["taskId"], resumed["channel"]) == (
                "/resume",
                "operator",
                "chat",
            )  # F28
            assert (await memory_of(scene))["var_number"] == 4
            assert "appointment" in resumed["prompt"]  # F20: the earlier contact's summary
            assert (await scene.http.get("/v1/memory/conv-1")).json()["tenant"] == {
                "campaignId": "campaign-1",
                "name": "Alfa",
            }
            assert "contact_superseded" in subtypes(await scene.events())
            assert (await scene.contact()).json()["code"] == "contact_ended"

    async def test_between_contacts_it_resumes(self) -> None:
        async with open_scene(over_many_contacts(), answers=NO) as scene:
            await scene.started()
            await scene.written(entry("var_number", 4))
            assert (await scene.end()).json()["status"] == "between_contacts"
            resumed = await scene.started(contactId="call-2")
            assert (resumed["command"], resumed["taskId"]) == ("/resume", "reception")  # F28
            assert (await memory_of(scene))["var_number"] == 4

    @pytest.mark.parametrize(
        ("task", "outcome", "again"),
        [("operator", "connected", "routing"), ("supervised", "taken_over", "ai")],
    )
    @pytest.mark.parametrize("ended", [True, False])
    async def test_the_human_part_of_a_task_begins_again(
        self, task: str, outcome: str, again: str, ended: bool
    ) -> None:
        async with open_scene(over_many_contacts(), answers=NO) as scene:
            await scene.started()
            await scene.changed(task)
            assert (await scene.human(outcome)).json()["taskStatus"] != again
            if ended:
                await scene.end()
            resumed = await scene.started(contactId="call-2")
            assert (resumed["taskId"], resumed["taskStatus"]) == (task, again)  # F10

    async def test_a_resumed_routing_has_its_whole_time_again(self) -> None:
        async with open_scene(over_many_contacts(), answers=NO) as scene:
            await scene.started()
            await scene.changed("operator")
            await scene.end()
            scene.clock.advance(minutes=10)
            assert (await scene.started(contactId="call-2"))["taskStatus"] == "routing"  # F10, F34
            scene.clock.advance(seconds=59)
            assert (await scene.started(contactId="call-2"))["taskStatus"] == "routing"
            scene.clock.advance(seconds=1)
            assert (await scene.started(contactId="call-2"))["taskStatus"] == "failed"

    @pytest.mark.parametrize(
        ("of_flow", "of_task", "command"),
        [
            (multi_contact(), {"multiContact": False}, "/start"),
            ({"multiContact": False}, multi_contact(), "/resume"),
        ],
    )
    async def test_the_active_tasks_closure_config_goes_before_the_flows(
        self, of_flow: JsonObject, of_task: JsonObject, command: str
    ) -> None:
        document = clinic(closureConfig=of_flow)
        document["tasks"][0]["closureConfig"] = of_task
        async with open_scene(document) as scene:
            await scene.started()
            assert (await scene.started(contactId="call-2"))["command"] == command  # F28

    async def test_on_a_channel_that_the_version_lacks_nothing_changes(self) -> None:
        async with open_scene(over_many_contacts()) as scene:
            before = await scene.started()
            reply = await scene.contact(contactId="sms-1", channel="sms")
            assert (reply.status_code, reply.json()["code"]) == (422, "channel_not_supported")  # F28
            assert (await scene.started())["revision"] == before["revision"]

    async def test_it_stays_on_the_version_that_the_conversation_was_started_on(self) -> None:
        async with open_scene(over_many_contacts()) as scene:
            await scene.started()
            resumed = await scene.started(contactId="call-2", conversationalFlowVersionId="version-9")
            assert resumed["command"] == "/resume"  # F13

    async def test_what_comes_late_of_the_one_before_leaves_its_language(self) -> None:  # F33
        async with open_scene(over_many_contacts(), answers=NO) as scene:
            await scene.started(language="it-IT")
            await scene.started(contactId="chat-2", channel="chat", language="en-US")
            late = (await scene.say("m-9", "il mio numero è 347 123 4567", language="it-IT")).json()
            assert (late["language"], (await scene.prompt())["revision"]) == ("en-US", late["revision"])
            ref = ConversationRef("default", "conv-1")
            (turn,) = (await scene.memory.conversations.load(ref, with_turns=True)).turns
            assert turn.language == "it-IT"
            said = await scene.say("m-1", "ciao", contactId="chat-2", language="it-IT")
            assert said.json()["language"] == "it-IT"

    async def test_it_may_bring_another_language(self) -> None:
        async with open_scene(over_many_contacts()) as scene:
            await scene.started()
            assert (await scene.started(contactId="call-2", language="it-IT"))["language"] == "it-IT"  # F28


class TestTimeLimit:
    @pytest.mark.parametrize(("seconds", "command"), [(7199, "/resume"), (7200, "/start"), (9999, "/start")])
    @pytest.mark.parametrize("ended", [True, False])
    async def test_past_the_limit_the_next_contact_starts_anew(
        self, seconds: int, command: str, ended: bool
    ) -> None:
        async with open_scene(over_many_contacts(), answers=NO) as scene:
            await scene.started()
            await scene.written(entry("var_number", 4))
            if ended:
                await scene.end()
            scene.clock.advance(seconds=seconds)
            assert (await scene.started(contactId="call-2"))["command"] == command  # F28
            assert (await memory_of(scene))["var_number"] == (4 if command == "/resume" else None)

    async def test_a_contact_that_is_still_there_past_the_limit_is_not_cut(self) -> None:
        async with open_scene(over_many_contacts()) as scene:
            await scene.started()
            scene.clock.advance(seconds=7200)
            assert (await scene.started())["command"] == "/resume"  # D1
            assert (await scene.end()).json()["status"] == "closed"  # D1
            assert "contact_superseded" not in subtypes(await scene.events())

    async def test_the_limit_counts_from_the_new_start(self) -> None:
        async with open_scene(over_many_contacts()) as scene:
            await scene.started()
            scene.clock.advance(seconds=7200)
            await scene.started(contactId="call-2")
            scene.clock.advance(seconds=7199)
            assert (await scene.started(contactId="call-3"))["command"] == "/resume"  # F28


class TestMedia:
    def document(self) -> JsonObject:
        audio = {
            "presetId": "default",
            "enableRecording": True,
            "llm": {"provider": "google", "model": "gemini-2.5-flash"},
            "stt": {
                "default": stt("google"),
                "fallback": stt("{{ $tenant.stt }}"),
                "languageCustomConfig": [{"language": "it", "config": stt("deepgram")}],
            },
            "tts": {
                "default": {"provider": "{{ $tenant.tts }}", "voice": "{{ $tenant.voice }}-{{ $language }}"},
                "fallback": {"provider": "google", "voice": "plain"},
            },
        }
        text = {"llm": {"provider": "openai", "model": "gpt-4.1"}, "userInteractionTimeout": 90}
        return over_many_contacts(mediaConfig={"audio": audio, "text": text})

    async def test_the_phone_takes_the_audio_settings(self) -> None:
        tenant = {"stt": "openai", "tts": "elevenlabs", "voice": "Ada"}
        async with open_scene(self.document()) as scene:
            reply = await scene.started(tenant=tenant)
            assert reply["llm"]["model"] == "gemini-2.5-flash"  # F28
            assert reply["stt"]["fallback"]["provider"] == "openai"  # F3: templates are rendered
            assert reply["tts"]["default"] == {"provider": "elevenlabs", "voice": "Ada-en-US", "speed": 1}
            assert reply["tts"]["active"] == reply["tts"]["default"]
            assert reply["stt"]["active"] == reply["stt"]["default"]
            assert reply["vad"]["activationThreshold"] == 0.5  # the preset's

    async def test_only_keys_that_the_document_holds_override_the_preset(self) -> None:
        async with open_scene(self.document()) as scene:
            reply = await scene.started()
            assert reply["enableRecording"] is True  # F3
            assert reply["userInteractionTimeout"] == 20
            assert reply["allowInterruptions"] is True

    async def test_what_the_document_holds_comes_whole_with_the_schemas_defaults(self) -> None:
        document = self.document()
        document["mediaConfig"]["audio"]["vad"] = {"activationThreshold": 0.4}
        async with open_scene(document) as scene:
            reply = await scene.started()
            assert reply["vad"] == {  # F2, F28
                "activationThreshold": 0.4,
                "maxBufferedSpeech": 60,
                "minSilenceDuration": 0.8,
                "minSpeechDuration": 0.08,
                "prefixPaddingDuration": 0.5,
            }

    async def test_the_active_entry_is_that_of_the_conversations_language(self) -> None:
        async with open_scene(self.document()) as scene:
            reply = await scene.started(language="it-IT", tenant={"tts": "elevenlabs", "voice": "Ada"})
            assert reply["stt"]["active"]["provider"] == "deepgram"  # F28
            assert reply["tts"]["active"]["voice"] == "Ada-it-IT"

    async def test_other_channels_take_the_text_settings(self) -> None:
        async with open_scene(self.document()) as scene:
            reply = await scene.started(channel="chat")
            assert (reply["tts"], reply["stt"], reply["vad"]) == (None, None, None)  # F28
            assert reply["llm"]["model"] == "gpt-4.1"
            assert reply["userInteractionTimeout"] == 90

    async def test_a_task_change_brings_the_same_settings(self) -> None:
        async with open_scene(self.document()) as scene:
            started = await scene.started(tenant={"voice": "Ada"})
            changed = await scene.changed("operator")
            media = (
                "llm",
                "tts",
                "stt",
                "vad",
                "courtesyMessages",
                "enableRecording",
                "userInteractionTimeout",
            )
            assert {k: changed[k] for k in media} == {k: started[k] for k in media}  # F29
            assert changed.keys() == started.keys() | {"result"}


@pytest.mark.parametrize(("language", "part"), [("en-US", "short sentence"), ("it-IT", "frase breve")])
async def test_courtesy_messages_of_a_model_have_a_prompt_also_where_the_flow_gives_none(
    language: str, part: str
) -> None:  # engine 7
    groq = {"provider": "groq", "timeout": 2.5, "silenceAfterMessage": 0.5, "providerParams": {}}
    own = {**groq, "providerParams": {"prompt": "Say one moment."}}
    audio = {"presetId": "default", "courtesyMessageConfig": groq}
    media = {"audio": audio, "text": {"courtesyMessageConfig": own}}
    async with open_scene(clinic(mediaConfig=media, systemPromptsLanguage=language)) as scene:
        phone = (await scene.started())["courtesyMessages"]["providerParams"]
        assert part in phone["prompt"]
        assert phone["historyMessages"] == 5
        chat = await scene.started(conversationId="conv-2", channel="chat")
        assert chat["courtesyMessages"]["providerParams"]["prompt"] == "Say one moment."


class TestEnding:
    async def test_a_single_contact_closes_the_conversation(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            reply = await scene.end(reason="hangup")
            assert reply.json() == {  # F30
                **CALL,
                "status": "closed",
                "revision": 2,
                "summary": None,
                "handlerError": None,
                "command": None,
            }
            assert subtypes(await scene.events())[-2:] == ["contact_ended", "conversation_closed"]
            refused = await scene.change("operator")
            assert (refused.status_code, refused.json()["code"]) == (409, "conversation_closed")

    async def test_a_closed_conversation_starts_anew_with_the_next_contact(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.written(entry("var_number", 4))
            await scene.end()
            fresh = await scene.started(contactId="call-2")
            assert (fresh["command"], fresh["revision"]) == ("/start", 3)  # F28
            assert (await memory_of(scene))["var_number"] is None
            assert (await scene.changed("operator", contactId="call-2"))["taskId"] == "operator"

    async def test_the_handler_is_asked_once_with_ids_channel_task_and_reason(self) -> None:
        async with open_scene(over_many_contacts(), answers=NO) as scene:
            await scene.started()
            await scene.changed("operator")
            await scene.end(reason="hangup")
            await scene.end(reason="hangup")
            (call,) = scene.outbound.calls
            assert call.timeout_s == 5  # F30
            assert call.json() == {
                "tenantId": "default",
                **CALL,
                "channel": "phone",
                "taskId": "operator",
                "taskName": "operator",
                "reason": "hangup",
            }

    @pytest.mark.parametrize(
        ("answer", "status"),
        [
            (OutboundReply(200, b"true"), "closed"),
            (OutboundReply(201, b" true\n"), "closed"),
            (OutboundReply(200, b"false"), "between_contacts"),
            (OutboundReply(200, b'"true"'), "between_contacts"),
            (OutboundReply(200, b'{"close":true}'), "between_contacts"),
            (OutboundReply(200, b""), "between_contacts"),
            (OutboundReply(500, b"true"), "between_contacts"),
            (OutboundReply(302, b"true"), "between_contacts"),
            (OutboundFailed("no answer within 5 s"), "between_contacts"),
            (OutboundRefused("a private address"), "between_contacts"),
        ],
        ids=str,
    )
    async def test_only_the_handlers_plain_true_closes(self, answer: Answer, status: str) -> None:
        async with open_scene(over_many_contacts(), answers={HANDLER: [answer]}) as scene:
            await scene.started()
            reply = await scene.end()
            assert (reply.status_code, reply.json()["status"]) == (200, status)  # F30

    async def test_the_active_tasks_closure_config_decides(self) -> None:
        document = over_many_contacts()
        document["tasks"][0]["closureConfig"] = {"multiContact": False}
        async with open_scene(document) as scene:
            await scene.started()
            assert (await scene.end()).json()["status"] == "closed"  # F30
            assert scene.outbound.calls == []

    async def test_the_summary_tells_the_contact_and_is_written_once(self) -> None:
        async with open_scene(over_many_contacts(), answers=NO) as scene:
            await scene.started()
            await scene.say("m-1", "I would like\nan appointment")
            await scene.say("m-2", "What for?", src="bot")
            await scene.written(entry("var_number", 4))
            await scene.changed("operator")
            first = await scene.end(reason="hangup")
            summary = first.json()["summary"]
            for part in ("reception → operator", "I would like an appointment", "a number = 4", "hangup"):
                assert part in summary  # F30
            assert "What for?" not in summary
            second = await scene.end(reason="again")
            assert second.json() == first.json()
            resumed = await scene.started(contactId="call-2")
            assert resumed["prompt"].count(summary) == 1  # F20
            assert "2026-01-15 09:30, phone:" in resumed["prompt"]

    async def test_a_second_summary_is_of_the_second_contact_alone(self) -> None:
        async with open_scene(over_many_contacts(), answers=NO) as scene:
            await scene.started()
            await scene.say("m-1", "first words")
            await scene.end()
            scene.clock.advance(minutes=5)
            await scene.started(contactId="call-2")
            await scene.say("m-2", "second words", contactId="call-2")
            summary = (await scene.end(contactId="call-2")).json()["summary"]
            assert "second words" in summary  # F30
            assert "first words" not in summary

    async def test_ending_again_changes_nothing(self) -> None:
        async with open_scene(over_many_contacts(), answers=NO) as scene:
            await scene.started()
            first = await scene.end()
            events = await scene.events()
            scene.clock.advance(minutes=1)
            assert (await scene.end()).content == first.content  # F30
            assert await scene.events() == events

    async def test_the_end_of_a_superseded_contact_leaves_the_active_one_alone(self) -> None:
        async with open_scene(over_many_contacts(), answers=NO) as scene:
            await scene.started()
            scene.clock.advance(seconds=1)
            before = await scene.started(contactId="call-2")
            reply = (await scene.end()).json()
            assert (reply["status"], reply["revision"]) == ("active", before["revision"])  # F30
            assert (await scene.change("operator", contactId="call-2")).json()["result"] is True

    async def test_a_change_of_task_after_the_end_is_409(self) -> None:
        async with open_scene(over_many_contacts(), answers=NO) as scene:
            await scene.started()
            await scene.end()
            reply = await scene.change("operator")
            assert (reply.status_code, reply.json()["code"]) == (409, "contact_not_active")  # F30
            assert reply.json()["state"]["phase"] == "between_contacts"

    @pytest.mark.parametrize(
        ("ids", "code"),
        [
            ({"contactId": "call-9"}, "contact_unknown"),
            ({"conversationId": "conv-9"}, "conversation_unknown"),
        ],
    )
    async def test_what_is_unknown_is_404(self, ids: JsonObject, code: str) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            reply = await scene.end(**ids)
            assert (reply.status_code, reply.json()["code"]) == (404, code)  # F30
