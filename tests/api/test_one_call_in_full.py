"""One call from its start to its end, each reply written out as the agent reads it (F28–F34).

What a later release adds to a reply is passed over, as clients do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.api.harness import Scene, clinic, entry, open_scene
from tests.flow_engine.documents.samples import JsonObject

pytestmark = pytest.mark.anyio

MISSING = "task 'Visita Perché' needs variables that have no value yet: 'a string', 'a boolean'"
SAYS = "The caller says what the call is about"


def reachable(task_id: str, name: str, kind: str, *required: str, missing: bool = False) -> JsonObject:
    return {
        "taskId": task_id,
        "name": name,
        "type": kind,
        "description": "The caller wants a visit" if task_id == "visit" else SAYS,
        "requiredVariables": list(required),
        "missingVariables": list(required) if missing else [],
        "condition": None,
    }


def variable(var_id: str, name: str, kind: str, value: object = None) -> JsonObject:
    written = value is not None
    return {
        "varId": var_id,
        "name": name,
        "type": kind,
        "value": value,
        "updatedBy": "findVisit" if written else None,
        "updatedAt": "2026-01-15T09:30:00Z" if written else None,
        "contactId": "call-1",
        "descriptionForLLM": None,
        "provenance": {
            "source": "tool",
            "messageId": None,
            "at": "2026-01-15T09:30:00Z",
            "superseded": None,
        }
        if written
        else None,
    }


ENGINE_TOOLS = {
    "serverName": "flow-engine",
    "url": "http://127.0.0.1:8080/mcp",
    "tools": [{"toolName": name, "parameters": []} for name in ("change_task", "get_memory", "set_memory")],
}
RECOGNISER = {
    "recognitionTimeout": 2.5,
    "streaming": True,
    "interimResults": True,
    "hints": [],
    "hintsBoost": 1,
    "minEndpointingDelay": 1.5,
    "maxEndpointingDelay": 3,
    "minInterruptionDuration": 0.7,
}
VOICE = {"provider": "elevenlabs", "voice": "21m00Tcm4TlvDq8ikWAM", "speed": 1}
SHARED: JsonObject = {
    "conversationId": "conv-1",
    "contactId": "call-1",
    "tenantId": "default",
    "campaignId": "campaign-1",
    "channel": "phone",
    "language": "it-IT",
    "supportedLanguages": ["en-US", "it-IT"],
    "languageDetection": {
        "enableLanguageDetection": False,
        "minWordsForLanguageDetection": 2,
        "languageDetector": "fasttext",
    },
    "hideTranscriptionToHuman": False,
    "mcpServers": ["http://127.0.0.1:8080/mcp"],
    "mcpTools": [ENGINE_TOOLS],
    "llm": {"provider": "openai", "model": "gpt-4.1-mini", "temperature": 0.4},
    "tts": {
        "default": VOICE,
        "fallback": {"provider": "google", "voice": "it-IT-Neural2-A", "speed": 1},
        "languageCustomConfig": None,
        "active": VOICE,
    },
    "stt": {
        "default": {"provider": "deepgram", **RECOGNISER},
        "fallback": {"provider": "google", **RECOGNISER},
        "languageCustomConfig": None,
        "active": {"provider": "deepgram", **RECOGNISER},
    },
    "vad": {
        "activationThreshold": 0.5,
        "maxBufferedSpeech": 60,
        "minSilenceDuration": 0.8,
        "minSpeechDuration": 0.08,
        "prefixPaddingDuration": 0.5,
    },
    "courtesyMessages": None,
    "allowInterruptionsOnStart": False,
    "allowInterruptions": True,
    "enableRecording": False,
    "userInteractionTimeout": 20,
    "preemptiveGeneration": False,
}
"""What of an agent's data stays the same from the call's start to its end."""

BACK = [reachable("reception", "reception", "AIO")]
OPERATOR = {
    **SHARED,
    "taskId": "operator",
    "taskName": "operator",
    "taskType": "HUM",
    "routingParameters": {
        "timeout": 60,
        "agentSkills": ["radiology"],
        "agentOptionalSkills": [],
        "agentIds": [],
    },
    "reachableTasks": BACK,
}


def ways(*, missing: bool) -> list[JsonObject]:
    return [
        reachable("visit", "Visita Perché", "AIO", "a string", "a boolean", missing=missing),
        reachable("operator", "operator", "HUM"),
        reachable("supervised", "supervised", "AIS"),
    ]


def of(reply: Mapping[str, Any], expected: Mapping[str, Any]) -> JsonObject:
    return {name: reply.get(name, "is not there") for name in expected}


async def begun(scene: Scene) -> Any:
    return await scene.started(
        contact={"callerId": "+39"}, tenant={"timezone": "Europe/Rome"}, language="it-IT"
    )


async def test_a_new_contact_is_told_everything() -> None:
    async with open_scene(clinic()) as scene:
        reply = await begun(scene)
    expected = {
        **SHARED,
        "revision": 1,
        "command": "/start",
        "taskStatus": None,
        "taskId": "reception",
        "taskName": "reception",
        "taskType": "AIO",
        "routingParameters": None,
        "reachableTasks": ways(missing=True),
    }
    assert of(reply, expected) == expected  # F28
    assert not {"result", "leftTask", "returnsTo"} & reply.keys()


async def test_a_change_that_is_refused_is_data() -> None:
    async with open_scene(clinic()) as scene:
        await begun(scene)
        reply = (await scene.change("visit")).json()
    expected = {
        "result": False,
        "code": "missing_variables",
        "reason": MISSING,
        "command": f"/error {MISSING}",
        "from": "reception",
        "reachableTasks": ways(missing=True),
        "revision": 2,
    }
    assert of(reply, expected) == expected  # F12, F29
    wanted = {"varId": "var_string", "name": "a string", "type": "string", "fillableBy": ["convMiner"]}
    assert of(reply["missing"][0], wanted) == wanted
    assert [variable["varId"] for variable in reply["missing"]] == ["var_string", "var_boolean"]
    assert not {"condition", "prompt", "mcpTools"} & reply.keys()


async def test_the_memory_is_dumped_in_the_order_of_the_version() -> None:
    async with open_scene(clinic()) as scene:
        await begun(scene)
        written = await scene.written(entry("var_string", "ECG"), entry("a boolean", True))
        reply = (await scene.http.get("/v1/memory/conv-1")).json()
    assert written == {"revision": 1, "memoryRevision": 1}  # F32
    expected = {
        "tenant": {"campaignId": "campaign-1", "timezone": "Europe/Rome"},
        "vars": [
            variable("var_string", "a string", "string", "ECG"),
            variable("var_number", "a number", "number"),
            variable("var_boolean", "a boolean", "boolean", True),
            variable("var_date", "a date", "date"),
            variable("var_phone", "a phone", "phone"),
            variable("var_enum", "size", "enum"),
            variable("var_custom", "appointment", "custom"),
        ],
        "revision": 1,
        "memoryRevision": 1,
    }
    assert of(reply, expected) == expected  # F17, F32


async def test_a_change_that_is_made_brings_all_that_a_start_would() -> None:
    async with open_scene(clinic()) as scene:
        await begun(scene)
        await scene.written(entry("var_string", "ECG"), entry("var_boolean", True))
        reply = (await scene.change("visita perche")).json()
    expected = {
        **SHARED,
        "result": True,
        "revision": 2,
        "command": "/start_task Visita Perché AIO",
        "taskStatus": None,
        "taskId": "visit",
        "taskName": "Visita Perché",
        "taskType": "AIO",
        "routingParameters": None,
        "reachableTasks": BACK,
    }
    assert of(reply, expected) == expected  # F4, F29
    assert "Ask for memory->a string; known at the start: ECG." in reply["prompt"]


@pytest.mark.parametrize(
    ("outcomes", "command", "status", "revision"),
    [
        ((("connected", None),), None, "connected", 3),
        ((("connected", None), ("completed", None)), "/human_task_completed", "completed", 4),
        ((("failed", "cut off"),), "/human_task_failed cut off", "failed", 3),
    ],
    ids=["connected", "completed", "failed"],
)
async def test_a_transfer_and_what_came_of_it(
    outcomes: tuple[tuple[str, str | None], ...], command: str | None, status: str, revision: int
) -> None:
    async with open_scene(clinic()) as scene:
        await begun(scene)
        changed = await scene.changed("operator")
        for outcome, reason in outcomes:
            reply = (await scene.human(outcome, reason=reason)).json()
    routing = {
        **OPERATOR,
        "result": True,
        "revision": 2,
        "command": "/start_task operator HUM skills=radiology",
        "taskStatus": "routing",
    }
    assert of(changed, routing) == routing  # F25, F34
    expected = {**OPERATOR, "revision": revision, "command": command, "taskStatus": status}
    assert of(reply, expected) == expected
    assert "result" not in reply


@pytest.mark.parametrize("repeated", [False, True])
async def test_an_utterance_is_answered_at_once_and_a_repeated_one_is_none(repeated: bool) -> None:
    async with open_scene(clinic()) as scene:
        await begun(scene)
        for _ in range(2 if repeated else 1):
            reply = (await scene.say("m1", "Buongiorno")).json()
    expected = {
        "conversationId": "conv-1",
        "messageId": "m1",
        "duplicate": repeated,
        "revision": 1,
        "language": "it-IT",
        "command": None,
    }
    assert of(reply, expected) == expected  # F33


async def test_the_prompt_is_told_with_its_parts_and_both_revisions() -> None:
    async with open_scene(clinic()) as scene:
        started = await begun(scene)
        await scene.written(entry("var_string", "ECG"))
        reply = await scene.prompt()
    expected = {"revision": 1, "memoryRevision": 1, "memoryFresh": True, "command": None}
    assert of(reply, expected) == expected  # F31
    assert reply["prompt"] == f"{reply['parts']['prefix']}\n\n{reply['parts']['volatile']}"
    assert reply["prefixHash"] == started["prefixHash"]
    assert "|a string||ECG|" in reply["parts"]["volatile"]


async def test_the_end_of_a_single_contact_closes_the_conversation_once() -> None:
    async with open_scene(clinic()) as scene:
        await begun(scene)
        first = (await scene.end(reason="caller_hangup")).json()
        again = (await scene.end(reason="caller_hangup")).json()
        refused = await scene.change("operator")
    expected = {
        "conversationId": "conv-1",
        "contactId": "call-1",
        "status": "closed",
        "revision": 2,
        "handlerError": None,
        "command": None,
    }
    assert of(first, expected) == of(again, expected) == expected  # F30
    problem = refused.json()
    assert (refused.status_code, problem["code"]) == (409, "conversation_closed")
    assert problem["accepted"] == ["a new contact, which starts it anew"]
    assert problem["state"]["phase"] == "closed"


async def test_a_flow_and_its_versions_are_listed_for_their_designers() -> None:
    async with open_scene() as scene:
        version = await scene.publish(clinic(), tag="production")
        (flow,) = (await scene.http.get("/v1/flows?campaignId=campaign-1")).json()
        made = {"name": "Empty", "campaignId": "campaign-2", "updatedBy": "ada"}
        empty_id = (await scene.post("/v1/flows", made)).json()["id"]
        (empty,) = (await scene.http.get("/v1/flows?campaignId=campaign-2")).json()
        await scene.post(f"/v1/flows/{empty_id}/versions", {"draft": True})
        (drafted,) = (await scene.http.get("/v1/flows?campaignId=campaign-2")).json()
        rows = (await scene.http.get(f"/v1/flows/{flow['id']}/versions")).json()
    listed = {"name": "Clinic", "campaignId": "campaign-1", "templateId": None}
    assert of(flow, listed) == listed  # F27
    assert [(each["drafts"], each["savedAt"]) for each in (flow, empty)] == [
        (0, rows[0]["createdAt"]),
        (0, None),
    ]
    assert (drafted["drafts"], drafted["savedBy"]) == (1, "local")
    assert {tag["tag"] for tag in flow["tags"]} == {"latest", "production"}
    assert all(tag["versionId"] == version for tag in flow["tags"])
    assert {row["tag"] for row in rows} == {"latest", "production"}
