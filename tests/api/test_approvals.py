"""Human approval over the API: a text of the AI waits, a person decides, and everybody learns of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import orjson
import pytest

from tests.api.harness import CALL, Scene, clinic, entry, needs, open_scene
from tests.flow_engine.documents.samples import JsonObject, aio_task, hum_task, minimal_version

pytestmark = pytest.mark.anyio

DRAFT, BETTER = "We refund 20 €.", "We refund 25 €."


def desk(**changes: Any) -> JsonObject:
    """reception → answers (AIS with approval), where a text has 120 seconds, → done, which needs a value."""
    approving = {"type": "AIS", "approval": True, "approvalTimeout": 120, **changes}
    tasks = [
        aio_task(connectedTasks=["answers"]),
        hum_task("answers", connectedTasks=["reception", "done"], **approving),
        aio_task("done", transitionParameters=needs("var_string")),
    ]
    return minimal_version(tasks=tasks, systemPromptsLanguage="en-US")


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with open_scene(desk()) as opened:
        await opened.started(channel="chat")
        await opened.changed("answers")
        yield opened


async def waiting(scene: Scene, text: str = DRAFT) -> Any:
    reply = await scene.human("waiting", text=text)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def told(scene: Scene) -> list[Any]:
    """The events of the human part, without their subtype."""
    bodies = [event["body"] for event in await scene.events()]
    return [
        {name: value for name, value in body.items() if name != "subtype"}
        for body in bodies
        if body["subtype"] == "human_task"
    ]


async def journal(scene: Scene) -> list[Any]:
    return (await scene.http.get("/v1/conversations/conv-1/journal")).json()["entries"]


class TestTheWay:
    async def test_a_text_is_approved_and_the_agent_that_polls_learns_of_it(self, scene: Scene) -> None:
        submitted = await waiting(scene)
        assert (submitted["taskStatus"], submitted["command"]) == ("waiting", None)
        assert submitted["approvalRequired"] is True
        found = submitted["approval"]
        assert (found["status"], found["text"], found["until"]) == ("waiting", DRAFT, "2026-01-15T09:32:00Z")
        polled = await scene.prompt()
        assert (polled["approval"], polled["command"]) == (found, None)
        assert DRAFT in polled["parts"]["volatile"]

        scene.clock.advance(seconds=30)
        decided = (await scene.human("approved")).json()
        assert (decided["taskStatus"], decided["command"]) == ("approved", "/human_task_approved")
        polled = await scene.prompt()
        assert polled["command"] == "/human_task_approved"  # the person's reply has not taken it
        assert (polled["approval"]["status"], polled["approval"]["text"]) == ("approved", DRAFT)
        assert polled["approval"]["decidedAt"] == "2026-01-15T09:30:30Z"
        assert (await scene.prompt())["command"] is None
        number = found["approvalId"]
        assert await told(scene) == [  # F40
            {"outcome": "waiting", "approvalId": number, "text": DRAFT, "timeout": 120},
            {"outcome": "approved", "approvalId": number, "text": DRAFT},
        ]

    async def test_an_edited_text_takes_the_place_of_the_draft(self, scene: Scene) -> None:
        await waiting(scene)
        decided = (await scene.human("edited", text=BETTER, reason="rounded")).json()["approval"]
        assert (decided["status"], decided["text"], decided["draft"]) == ("edited", BETTER, DRAFT)
        assert (await told(scene))[-1] == {
            "outcome": "edited",
            "reason": "rounded",
            "approvalId": decided["approvalId"],
            "text": BETTER,
            "draft": DRAFT,
        }
        assert f"«{BETTER}»" in (await scene.prompt())["parts"]["volatile"]

    async def test_a_rejection_carries_its_reason_and_another_text_may_wait(self, scene: Scene) -> None:
        await waiting(scene)
        decided = (await scene.human("rejected", reason="no sums")).json()
        assert decided["command"] == "/human_task_rejected no sums"
        assert decided["approval"]["reason"] == "no sums"
        assert (await waiting(scene, "We shall see."))["approval"]["status"] == "waiting"

    async def test_nobody_decides_in_time(self, scene: Scene) -> None:
        await waiting(scene)
        scene.clock.advance(seconds=119)
        assert await scene.work() > 0
        assert (await scene.prompt())["approval"]["status"] == "waiting"
        scene.clock.advance(seconds=1)
        await scene.work()  # without any request (D4)
        assert (await journal(scene))[-1]["input"] == {"op": "routing"}
        polled = await scene.prompt()
        assert (polled["approval"]["status"], polled["command"]) == ("timeout", "/human_task_timeout")
        late = await scene.human("approved")
        assert late.status_code == 200
        assert (late.json()["result"], late.json()["code"]) == (False, "already_decided")

    async def test_a_late_decision_itself_finds_the_time_over(self, scene: Scene) -> None:
        await waiting(scene)
        scene.clock.advance(seconds=121)
        late = (await scene.human("edited", text=BETTER)).json()
        assert (late["code"], late["approval"]["status"], late["taskStatus"]) == (
            "already_decided",
            "timeout",
            "timeout",
        )
        assert [each["outcome"] for each in await told(scene)] == ["waiting", "timeout"]

    async def test_the_end_of_the_contact_withdraws_it(self, scene: Scene) -> None:
        await waiting(scene)
        await scene.end(reason="hangup")
        assert (await told(scene))[-1]["outcome"] == "withdrawn"
        late = await scene.human("approved")
        assert (late.status_code, late.json()["code"]) == (409, "conversation_closed")


class TestRefusals:
    async def test_the_task_is_not_left_while_a_text_waits(self, scene: Scene) -> None:
        await waiting(scene)
        await scene.written(entry("var_string", "x"))
        refused = await scene.change("done")
        assert refused.status_code == 200  # F12
        assert refused.json()["code"] == "waiting_for_approval"
        await scene.human("approved")
        assert (await scene.changed("done"))["taskName"] == "done"

    async def test_two_texts_do_not_wait(self, scene: Scene) -> None:
        first = await waiting(scene)
        second = await scene.human("waiting", text="Something else.")
        assert (second.status_code, second.json()["code"]) == (200, "already_waiting")
        assert second.json()["approval"] == first["approval"]
        again = await waiting(scene)
        assert (again["revision"], again["approval"]) == (first["revision"], first["approval"])

    async def test_a_decision_may_name_its_text(self, scene: Scene) -> None:
        number = (await waiting(scene))["approval"]["approvalId"]
        assert (await scene.human("approved", approvalId=number + 1)).json()["code"] == "another_text"
        assert (await scene.human("approved", text=BETTER)).json()["code"] == "another_text"
        assert (await scene.human("approved", approvalId=number, text=DRAFT)).json()[
            "taskStatus"
        ] == "approved"

    @pytest.mark.parametrize(
        ("body", "pointer"),
        [
            ({"outcome": "waiting"}, "/text"),
            ({"outcome": "waiting", "text": "  "}, "/text"),
            ({"outcome": "edited"}, "/text"),
            ({"outcome": "connected", "text": "x"}, "/text"),
            ({"outcome": "waiting", "text": "x" * 16_001}, "/text"),
            ({"outcome": "waiting", "text": 7}, "/text"),
            ({"outcome": "approved", "approvalId": 0}, "/approvalId"),
            ({"outcome": "approved", "draft": "x"}, "/draft"),
            ({"outcome": "withdrawn"}, "/outcome"),
        ],
    )
    async def test_what_cannot_be_taken_is_told_with_its_place(
        self, scene: Scene, body: JsonObject, pointer: str
    ) -> None:
        reply = await scene.post("/v1/handle-human-task", {**CALL, **body})
        assert reply.status_code == 422, reply.text
        assert [each["pointer"] for each in reply.json()["errors"]] == [pointer]

    @pytest.mark.parametrize("outcome", ["approved", "rejected", "timeout"])
    async def test_without_a_text_there_is_nothing_to_decide(self, scene: Scene, outcome: str) -> None:
        reply = await scene.human(outcome)
        assert (reply.status_code, reply.json()["code"]) == (409, "outcome_not_possible")  # F34
        assert reply.json()["accepted"] == ["waiting", "taken_over"]

    async def test_a_task_without_approval_takes_no_text(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.changed("supervised")
            assert (await scene.human("waiting", text=DRAFT)).status_code == 409
            assert "approval" not in await scene.prompt()


class TestOnce:
    async def test_a_repeated_request_gets_the_same_bytes(self, scene: Scene) -> None:  # F15
        async def asked(outcome: str, key: str, **body: Any) -> bytes:
            whole = {**CALL, "outcome": outcome, **body}
            return (await scene.post("/v1/handle-human-task", whole, Idempotency_Key=key)).content

        first = await asked("waiting", "k-1", text=DRAFT)
        assert await asked("waiting", "k-1", text=DRAFT) == first
        decided = await asked("approved", "k-2")
        assert await asked("approved", "k-2") == decided
        await waiting(scene, "Another one.")
        assert await asked("approved", "k-2") == decided
        assert (await scene.prompt())["approval"]["status"] == "waiting"

    async def test_a_decision_that_has_come_true_is_no_error(self, scene: Scene) -> None:
        await waiting(scene)
        first = (await scene.human("rejected", reason="no")).json()
        again = (await scene.human("rejected", reason="no, really")).json()
        assert (again["revision"], again["approval"]) == (first["revision"], first["approval"])
        assert [each["outcome"] for each in await told(scene)] == ["waiting", "rejected"]


class TestAfterwards:
    async def test_the_journal_tells_every_step_with_the_text_in_question(self, scene: Scene) -> None:
        number = (await waiting(scene))["approval"]["approvalId"]
        await scene.human("approved", approvalId=99)
        await scene.human("edited", text=BETTER, reason="rounded", approvalId=number)
        rows = (await journal(scene))[-3:]
        asked = {"op": "handle-human-task", "contactId": "call-1"}
        assert [row["input"] for row in rows] == [
            {**asked, "outcome": "waiting", "reason": None, "text": DRAFT},
            {**asked, "outcome": "approved", "reason": None, "approvalId": 99},
            {**asked, "outcome": "edited", "reason": "rounded", "text": BETTER, "approvalId": number},
        ]
        assert [(row["outcome"]["result"], row["outcome"].get("code")) for row in rows] == [
            (True, None),
            (False, "another_text"),
            (True, None),
        ]
        changed = rows[-1]["delta"]["session"]["approval"]
        assert (changed["status"], changed["text"], changed["draft"]) == ("edited", BETTER, DRAFT)

    async def test_every_moment_is_rebuilt_as_it_was_sent(self, scene: Scene) -> None:
        sent = [await scene.human("waiting", text=DRAFT)]
        scene.clock.advance(seconds=5)
        sent.append(await scene.human("waiting", text="Another."))
        sent.append(await scene.human("rejected", reason="no"))
        sent.append(await scene.human("waiting", text="Third."))
        scene.clock.advance(seconds=200)
        sent.append(await scene.human("approved"))  # too late
        rows = (await journal(scene))[-len(sent) :]
        for reply, row in zip(sent, rows, strict=True):
            moment = (await scene.http.get(f"/v1/conversations/conv-1/at/{row['seq']}")).json()
            assert moment["reply"].encode() == reply.content
            assert moment["replySha256"] == sha256(reply.content).hexdigest()
            assert moment["state"]["taskStatus"] == reply.json()["taskStatus"]
            if "prompt" in reply.json():
                assert moment["prompt"] == reply.json()["prompt"]

    async def test_a_fork_waits_as_the_original_did_and_is_decided_by_itself(self, scene: Scene) -> None:
        await waiting(scene)
        seq = (await journal(scene))[-1]["seq"]
        await scene.human("rejected", reason="no")
        body = {"atRevision": seq, "conversationId": "other"}
        assert (await scene.post("/v1/conversations/conv-1/fork", body)).status_code == 201
        assert (await scene.prompt("other"))["approval"]["status"] == "waiting"
        decided = await scene.human("approved", conversationId="other")
        assert decided.json()["taskStatus"] == "approved"
        assert (await scene.prompt())["approval"]["status"] == "rejected"

    async def test_a_fork_has_the_time_that_was_left(self, scene: Scene) -> None:  # journal: forks
        asked = (await waiting(scene))["approval"]
        scene.clock.advance(hours=1)
        body = {"atRevision": 3, "conversationId": "conv-2"}
        assert (await scene.post("/v1/conversations/conv-1/fork", body)).status_code == 201
        there = (await scene.http.get("/v1/prompt/conv-2")).json()["approval"]
        left = [datetime.fromisoformat(each["until"]) for each in (asked, there)]
        assert (there["status"], left[1] - left[0]) == ("waiting", timedelta(hours=1))

    async def test_it_is_replayed_on_another_version(self, scene: Scene) -> None:
        await waiting(scene)
        await scene.human("edited", text=BETTER)
        await waiting(scene, "Second.")
        scene.clock.advance(seconds=121)
        await scene.work()
        recording = (await scene.http.get("/v1/conversations/conv-1/recording")).json()
        asked = [each["input"].get("text") for each in recording["entries"]]
        assert [text for text in asked if text] == [DRAFT, BETTER, "Second."]
        flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
        reports: list[Any] = []
        for name, approval in (("same", True), ("without", False)):
            version = await scene.save(
                flow_id, {**desk(approval=approval), "_id": f"version-{name}"}, tag=name
            )
            path = f"/v1/flows/{flow_id}/versions/{version}/replays"
            reply = await scene.post(path, {"conversations": ["conv-1"]})
            assert reply.status_code == 200, reply.text
            reports.append(reply.json())
        assert reports[0]["summary"]["samePath"] == 1
        assert reports[1]["summary"]["otherPath"] == 1
        first = reports[1]["conversations"][0]["firstFork"]
        assert (first["recorded"]["taskStatus"], first["replayed"]["code"]) == (
            "waiting",
            "outcome_not_possible",
        )


NUMBER = "DE89 3704 0044"
CARD = "4111 1111 1111 1111"


class TestPrivacy:
    @staticmethod
    def document() -> JsonObject:
        secret = {"_id": "iban", "name": "iban", "type": "string", "prompt": "i", "sensitive": "identity"}
        card = {"_id": "card", "name": "card", "type": "string", "prompt": "c", "sensitive": "card"}
        document = desk()
        return {**document, "variables": [*document["variables"], secret, card]}

    async def test_only_the_agent_reads_a_sensitive_value_in_a_text(self) -> None:
        async with open_scene(self.document()) as scene:
            await scene.started(channel="chat")
            await scene.changed("answers")
            await scene.written(entry("iban", NUMBER))
            text = f"We send it to {NUMBER}."
            assert (await waiting(scene, text))["approval"]["text"] == text
            edited = await scene.human("edited", text=f"It goes to {NUMBER} today.", reason=NUMBER)
            assert NUMBER in edited.json()["approval"]["text"]
            prompt = await scene.prompt()
            assert NUMBER not in prompt["prompt"]
            assert NUMBER not in orjson.dumps(await scene.events()).decode()
            assert "[hidden identity]" in orjson.dumps(await told(scene)).decode()
            rows = await journal(scene)
            assert NUMBER not in orjson.dumps(rows).decode()
            moment = (await scene.http.get(f"/v1/conversations/conv-1/at/{rows[-2]['seq']}")).json()
            assert NUMBER not in orjson.dumps(moment).decode()
            assert moment["replySha256"] == sha256(edited.content).hexdigest()
            recording = await scene.http.get("/v1/conversations/conv-1/recording")
            assert NUMBER not in recording.text

    async def test_a_card_number_is_kept_of_no_text(self) -> None:
        async with open_scene(self.document()) as scene:
            await scene.started(channel="chat")
            await scene.changed("answers")
            found = await waiting(scene, f"Your card {CARD} is charged.")
            assert found["approval"]["text"] == "Your card [hidden card] is charged."
            edited = await scene.human("edited", text=f"{CARD} it is", reason=CARD)
            assert CARD not in edited.text
            assert CARD not in orjson.dumps([await scene.events(), await journal(scene)]).decode()


async def test_a_save_refuses_approval_where_nobody_supervises() -> None:
    async with open_scene() as scene:
        flow = {"name": "Desk", "campaignId": "campaign-1", "updatedBy": "ada"}
        flow_id = (await scene.post("/v1/flows", flow)).json()["id"]
        wrong = {**desk(), "tasks": [{**task, "approval": True} for task in desk()["tasks"]]}
        del wrong["conversationalFlowId"]
        reply = await scene.post(f"/v1/flows/{flow_id}/versions", wrong)
        assert reply.status_code == 422
        assert [(each["pointer"], each["code"]) for each in reply.json()["errors"]] == [
            ("/tasks/0/approval", "approval_not_supervised"),
            ("/tasks/2/approval", "approval_not_supervised"),
        ]
        assert "type 'AIS'" in reply.json()["errors"][0]["message"]
