"""What events say, checked against the documented examples; ids; hidden and suspended dialogue (F40)."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.webhook import signature
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import Job
from flow_engine.ports.outbound import OutboundFailed, OutboundReply
from flow_engine.runtime import events as events_module
from flow_engine.runtime.events import ended_by
from tests.api.harness import HANDLER, Scene, clinic, entry, multi_contact, open_scene, over_many_contacts
from tests.api.test_old_and_contradicted import heard, on
from tests.flow_engine.documents.samples import JsonObject
from tests.flow_engine.listening.test_mining import (
    CONVERSATION,
    MINE,
    Model,
    says,
    with_checkpoints,
    working_on,
)

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")
SHOWN: list[dict[str, Any]] = [
    orjson.loads(block) for block in re.findall(r"^```json\n(.*?)^```$", DOCS, re.MULTILINE | re.DOTALL)
]
SHOWN_BODIES: Mapping[str, dict[str, Any]] = {s["subtype"]: s for s in SHOWN if "subtype" in s}
SHOWN_MESSAGE = next(s for s in SHOWN if s.get("type") == "message")
SHOWN_CHECKPOINT = next(s for s in SHOWN if s.get("type") == "checkpoint")


def open_to_more(document: JsonObject) -> JsonObject:
    for task in document["tasks"]:
        task["closureConfig"] = multi_contact()
    return document


def staffed(**changes: Any) -> JsonObject:
    """The clinic, with skills asked for, checkpoints to be reached, and a scorecard."""
    criteria = [{"name": name, "prompt": name} for name in ("greeting", "clarity")]
    card = {"name": "service", "criteria": criteria, "scale": {"min": 1, "max": 5}}
    document = with_checkpoints() | {"scorecards": [card]} | changes
    operator = next(task for task in document["tasks"] if task["_id"] == "operator")
    operator["routingParameters"] |= {
        "agentSkills": ["cardiology"], "agentOptionalSkills": ["italian"], "agentIds": ["agent-7"]
    }  # fmt: skip
    return document


async def eventful_life(scene: Scene) -> None:
    """Everything that can be told of conversations, in three of them."""
    told = {"reasonOfContact": "booking", "result": "done", "why": "said so"}
    judge = Model(lambda call: {**told, "scores": {"service": {"greeting": 4, "clarity": 5}}})
    await scene.started(contact={"room": "r", "callerId": "+39", "calleeId": "+40"})
    await scene.change("visit")
    await scene.say("m1", "Good morning")
    await working_on(scene, says({}, "greeted")).mine(MINE)
    await scene.say("s1", "poor line", type="system", src="bot")
    await scene.written(entry("var_string", "ECG"), entry("var_boolean", True))
    for number in range(4):
        await scene.say(f"w{number}", "And the weather?")
        await working_on(scene, says({})).mine(MINE)
    await scene.changed("operator")
    await scene.human("failed", reason="nobody there")
    await scene.started(contactId="call-2")
    await scene.say("m2", "Book me an ECG", contactId="call-2")
    await scene.end(contactId="call-2", reason="user_hangup")
    await working_on(scene, judge).conclude(Job("conclude", CONVERSATION, "call-2"))


async def migrated_life(scene: Scene) -> None:
    await scene.started(conversationId="conv-2")
    flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
    next_version = {k: v for k, v in staffed().items() if k != "conversationalFlowId"} | {"_id": "version-2"}
    saved = await scene.post(f"/v1/flows/{flow_id}/versions?parentVersionId=version-1", next_version)
    assert saved.status_code == 201, saved.text
    order = {"fromVersionId": "version-1", "toVersionId": "version-2"}
    assert (await scene.post(f"/v1/flows/{flow_id}/migrations?dryRun=false", order)).status_code == 200


async def rolled_back_life(scene: Scene) -> list[Any]:
    """The last events of two conversations, one on each side of a split whose guard gives the second up."""
    flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
    sides = [{"versionId": f"version-{number}", "weight": 1} for number in (1, 2)]
    guard = {"metric": "refused", "worseBy": 1, "minimum": 1}
    put = {"split": sides, "guard": guard, "updatedBy": "ada"}
    assert (await scene.http.put(f"/v1/flows/{flow_id}/tags/prod", json=put)).status_code == 200
    by_tag = {"conversationalFlowVersionId": ..., "flowId": flow_id, "tag": "prod"}
    told: list[Any] = []
    for number in range(12):
        own = {"conversationId": f"split-{number}", "contactId": "call-1"}
        await scene.started(**own, **by_tag)
        seen = await scene.http.get(f"/v1/conversations/{own['conversationId']}")
        if seen.json()["versionId"] == "version-2":
            await scene.change("nowhere", **own)
        await scene.end(**own)
        ref = ConversationRef("default", own["conversationId"])
        await working_on(scene).conclude(Job("conclude", ref, "call-1"))
        told += await scene.events(own["conversationId"])
    return [event for event in told if event["body"]["subtype"] == "rollout_rolled_back"]


class TestShapes:
    async def test_everything_that_is_told_has_the_documented_shape(self) -> None:  # F40
        async with open_scene(staffed()) as scene:
            await eventful_life(scene)
            await migrated_life(scene)
            told = await scene.events() + await scene.events("conv-2") + await rolled_back_life(scene)
        async with open_scene(over_many_contacts(), answers={HANDLER: [OutboundFailed("slow")]}) as scene:
            await scene.started()
            await scene.end()
            failed = [e for e in await scene.events() if e["body"]["subtype"] == "handler_failed"]
            told += failed
        async with on(city={"precedence": "latest"}) as scene:
            await scene.written(entry("city", "Turin", updatedBy="crm"))
            await heard(scene, "m1", city="Rome")
            told += [e for e in await scene.events() if e["type"] == "system"]
        seen: dict[str, dict[str, Any]] = {}
        for event in told:
            if event["type"] == "checkpoint":
                assert_like(event, SHOWN_CHECKPOINT)
                continue
            assert_like({**event, "body": ""}, SHOWN_MESSAGE)
            assert isinstance(event["body"], dict) == (event["type"] == "system")
            if event["type"] == "system":
                seen.setdefault(event["body"]["subtype"], {}).update(event["body"])
        for subtype, body in seen.items():
            assert_like({**SHOWN_BODIES[subtype], **body}, SHOWN_BODIES[subtype])
        assert set(seen) == set(SHOWN_BODIES)
        assert seen["contact_ended"] == {
            "subtype": "contact_ended", "by": "user", "reason": "user_hangup", "status": "closed"
        }  # fmt: skip
        assert seen["routing_requested"] == {
            "subtype": "routing_requested", "skills": ["cardiology"], "optionalSkills": ["italian"],
            "agents": ["agent-7"], "timeout": 60,
        }  # fmt: skip

    async def test_a_change_of_task_is_told_before_the_routing_that_it_starts(self) -> None:  # F40
        async with open_scene(staffed()) as scene:
            await scene.started()
            await scene.changed("operator")
            told = [e["body"]["subtype"] for e in await scene.events()]
        assert told == ["contact_started", "task_changed", "routing_requested"]

    async def test_a_checkpoint_names_the_caller_and_the_room(self) -> None:  # F40
        async with open_scene(staffed()) as scene:
            await eventful_life(scene)
            (told,) = [e for e in await scene.events() if e["type"] == "checkpoint"]
        assert (told["room"], told["callerId"], told["calleeId"]) == ("r", "+39", "+40")

    def test_the_table_the_source_and_the_documentation_list_the_same_subtypes(self) -> None:
        listed = set(re.findall(r"^    (\w+) +\{", events_module.__doc__ or "", re.MULTILINE))
        in_table = set(re.findall(r"^\| `(\w+)` \| .+ \| .*`\w+", DOCS, re.MULTILINE))
        assert listed == set(SHOWN_BODIES)
        assert listed <= in_table
        for subtype in listed:
            files = (ROOT / "flow_engine").rglob("*.py")
            assert any(f'"{subtype}"' in file.read_text(encoding="utf-8") for file in files), subtype


def assert_like(actual: Any, shown: Any) -> None:
    """The same fields, in each a value of the same kind; null may stand for anything."""
    assert actual.keys() == shown.keys()
    for key, value in actual.items():
        if isinstance(value, dict) and isinstance(shown[key], dict):
            assert_like(value, shown[key])
        elif value is not None and shown[key] is not None:
            assert type(value) is type(shown[key]) or {type(value), type(shown[key])} == {int, float}, key


class TestIds:
    async def test_no_two_events_share_an_id_not_even_after_a_start_anew(self) -> None:  # F40
        async with open_scene(staffed()) as scene:
            await eventful_life(scene)
            scene.clock.advance(seconds=1)
            await scene.started(contactId="call-3")
            await scene.say("m1", "Good morning again", contactId="call-3")
            ids = [e["eventId"] for e in await scene.events()]
        assert len(ids) > 15
        assert len(set(ids)) == len(ids)
        assert all(i.isascii() and i.isprintable() and " " not in i for i in ids)

    async def test_a_repeated_request_adds_no_event(self) -> None:  # F15, F40
        async with open_scene(clinic()) as scene:
            await scene.started()
            for _ in range(3):
                await scene.say("m1", "hello")
                await scene.post(
                    "/v1/change-task",
                    {"contactId": "call-1", "conversationId": "conv-1", "task": "operator"},
                    Idempotency_Key="k",
                )
            told = [
                e["body"] if e["type"] == "message" else e["body"]["subtype"] for e in await scene.events()
            ]
        assert told == ["contact_started", "hello", "task_changed", "routing_requested"]

    async def test_ids_cannot_forge_one_another(self) -> None:
        async with open_scene(clinic()) as scene:
            for conversation in ("a", "a:b", "a%3Ab", "é"):
                await scene.started(conversationId=conversation)
                for message in ("x", "y:x", "y%3Ax", "日本"):
                    await scene.say(message, "hello", conversationId=conversation)
            found = [
                e["eventId"] for tag in ("a", "a%3Ab", "a%253Ab", "%C3%A9") for e in await scene.events(tag)
            ]
        assert len(found) == len(set(found)) == 4 * 5


class TestWhatPeopleSaid:
    def hiding(self) -> JsonObject:
        document = staffed()
        document["tasks"][0]["hideTranscriptionToHuman"] = True
        return document

    async def test_a_task_that_hides_its_transcription_marks_messages_and_nothing_else(self) -> None:  # F40
        async with open_scene(self.hiding()) as scene:
            await scene.started()
            await scene.say("m1", "my password is 1234")
            await scene.say("m2", "slots", type="tool", src="bot", srcId="findVisit", srcName="Find")
            await scene.changed("operator")
            await scene.say("m3", "hello")
            told = {(e["type"], e["taskName"]): e["meta"] for e in await scene.events()}
            sources = [
                (e["src"], e["srcId"], e["srcName"]) for e in await scene.events() if e["type"] == "tool"
            ]
        assert told[("message", "reception")] == told[("tool", "reception")] == {"visible": False}
        assert told[("system", "reception")] is None
        assert told[("message", "operator")] is None
        assert sources == [("bot", "findVisit", "Find")]

    def suspending(self, task_type: str = "HUM") -> JsonObject:
        document = staffed()
        for task in document["tasks"]:
            if task["type"] == task_type:
                task["suspendTranscription"] = True
        return document

    async def said(self, scene: Scene) -> list[str]:
        return [e["body"] for e in await scene.events() if e["type"] in ("message", "tool")]

    async def test_while_a_human_is_connected_nothing_that_is_said_leaves_but_it_is_remembered(
        self,
    ) -> None:  # F40
        async with open_scene(self.suspending()) as scene:
            await scene.started()
            await scene.changed("operator")
            await scene.say("m1", "still ringing")
            await scene.human("connected")
            for number, kind in enumerate(("message", "tool", "system")):
                reply = await scene.say(f"h{number}", "between us", type=kind, src="agent")
                assert reply.status_code == 200
            assert (await scene.say("h0", "between us", src="agent")).json()["duplicate"] is True
            await scene.human("completed")
            await scene.say("m2", "back again")
            assert await self.said(scene) == ["still ringing", "back again"]
            subtypes = [e["body"]["subtype"] for e in await scene.events() if e["type"] == "system"]
            assert subtypes[-2:] == ["human_task", "human_task"]
            stored = (await scene.memory.conversations.load(CONVERSATION, with_turns=True)).turns
        assert [turn.body for turn in stored].count("between us") == 3

    async def test_what_comes_late_after_such_a_contact_does_not_leave_either(self) -> None:  # F40
        document = open_to_more(self.suspending())
        async with open_scene(document, answers={HANDLER: [OutboundReply(200, b"false")]}) as scene:
            await scene.started()
            await scene.changed("operator")
            await scene.human("connected")
            assert (await scene.end()).json()["status"] == "between_contacts"
            await scene.say("m1", "said before")
            assert await self.said(scene) == []

    async def test_only_human_tasks_can_suspend(self) -> None:
        async with open_scene(self.suspending("AIS")) as scene:
            await scene.started()
            await scene.changed("supervised")
            await scene.human("taken_over")
            await scene.say("m1", "hello", src="agent", srcName="Ada")
            (event,) = [e for e in await scene.events() if e["type"] == "message"]
        assert (event["taskType"], event["taskStatus"], event["src"]) == ("AIS", "HUM", "agent")  # F40


class TestWhoEnded:
    @pytest.mark.parametrize(
        ("reason", "by"),
        [
            ("user_hangup", "user"), ("hangup:user", "user"), ("Caller hung up", "user"),
            ("user left", "user"),
            ("botDisconnected", "bot"), ("hangup by agent", "agent"), ("OPERATOR", "agent"), ("user", "user"),
            ("hangup", None), ("timeout", None), ("user_timeout", None), ("no user input", None),
            ("user transferred to agent", None), ("user hangup agent", None), ("", None), (None, None),
        ],
    )  # fmt: skip
    def test_a_reason_that_says_who_is_understood(self, reason: str | None, by: str | None) -> None:  # F40
        assert ended_by(reason) == by

    @given(st.text())
    def test_any_reason_is_read(self, reason: str) -> None:
        assert ended_by(reason) in (None, "user", "bot", "agent")


class TestTheDocumentedCheck:
    def checker(self) -> Any:
        code = re.findall(r"^```python\n(.*?)^```$", DOCS, re.MULTILINE | re.DOTALL)[0]
        names: dict[str, Any] = {}
        exec(compile(code, "docs/events.md", "exec"), names)
        return names["is_genuine"]

    def test_it_accepts_what_the_webhook_signs_and_nothing_else(self) -> None:  # F40
        is_genuine, body, secret = self.checker(), '{"body":"é"}'.encode(), "sixteen characters"
        header = signature(secret.encode(), int(time.time()), body)
        assert is_genuine(secret, header, body)
        assert not is_genuine(secret, header, body + b" ")
        assert not is_genuine("another secret!!", header, body)
        assert not is_genuine(secret, signature(secret.encode(), int(time.time()) - 301, body), body)

    @given(st.text())
    def test_no_header_breaks_it(self, header: str) -> None:
        assert not self.checker()("sixteen characters", header, b"{}")
