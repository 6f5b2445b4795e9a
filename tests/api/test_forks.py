"""Forks: a new conversation that begins as another one was, and goes its own way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.outbound import OutboundReply
from flow_engine.use_cases.dialogue import DialogueService
from flow_engine.use_cases.transactor import Transactor
from memory.erasing import Eraser
from memory.manager import MemoryManager
from tests.api.harness import Scene, aio_task, clinic, entry, needs, open_scene, over_many_contacts
from tests.api.test_digressions import shop
from tests.api.test_migrations import with_task
from tests.flow_engine.listening.test_mining import dependencies_of
from tests.scripted.rebuilding import outside

pytestmark = pytest.mark.anyio

OPEN = OutboundReply(200, b"false")
FORK = ConversationRef("default", "other")


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with open_scene(clinic()) as opened:
        yield opened


async def fork(scene: Scene, seq: int, target: str = "other", key: str = "", **more: Any) -> httpx.Response:
    body = {"atRevision": seq, "conversationId": target, **more}
    return await scene.post(
        "/v1/conversations/conv-1/fork", body, **({"Idempotency_Key": key} if key else {})
    )


async def forked(scene: Scene, seq: int, **more: Any) -> Any:
    reply = await fork(scene, seq, **more)
    assert reply.status_code == 201, reply.text
    return reply.json()


async def read(scene: Scene, path: str) -> Any:
    reply = await scene.http.get(f"/v1/conversations{path}")
    assert reply.status_code == 200, reply.text
    return reply.json()


class TestMakingOne:
    async def test_it_begins_as_the_original_was_and_is_told_as_any_conversation(self, scene: Scene) -> None:
        await scene.started(contact={"callerId": "+390612345678"})  # journal: fork
        await scene.written(entry("var_string", "cardio"), entry("var_boolean", True))
        await scene.changed("visit")
        await scene.written(entry("var_string", "neuro"))
        scene.clock.advance(hours=1)
        made = await forked(scene, 3)
        assert (made["conversationId"], made["forkedFrom"]) == (
            "other",
            {"conversationId": "conv-1", "seq": 3},
        )
        assert (made["task"], made["status"], made["contactId"]) == ("Visita Perché", "active", "call-1")
        assert {each["varId"]: each["value"] for each in made["vars"]}["var_string"] == "cardio"
        assert made == await read(scene, "/other")
        then, now = await read(scene, "/conv-1/at/3"), await read(scene, "/other/at/1")
        assert now["state"] == then["state"]
        assert (now["revision"], now["memoryRevision"]) == (then["revision"], then["memoryRevision"])

    async def test_its_first_entry_tells_where_from_and_its_reply_is_rebuilt(self, scene: Scene) -> None:
        await scene.started()
        reply = await fork(scene, 1)
        (first,) = (await read(scene, "/other/journal"))["entries"]
        assert (first["seq"], first["by"], first["delta"]) == (1, "local", {})
        assert first["input"] == {
            "op": "fork",
            "conversationId": "conv-1",
            "seq": 1,
            "versionId": "version-1",
            "tag": None,
        }
        assert (await read(scene, "/other/at/1"))["reply"] == reply.text

    async def test_nothing_goes_out_and_no_work_is_left(self, scene: Scene) -> None:
        await scene.started()
        await scene.changed("operator")  # a transfer, with its time limit
        await scene.say("m-1", "Good morning")
        before = await outside(scene)
        await forked(scene, 3)
        await forked(scene, 2, target="another")
        assert await outside(scene) == before
        assert await scene.events("other") == []

    async def test_lists_show_it_with_the_tag_that_chose_its_version(self, scene: Scene) -> None:
        flow = (await scene.http.get("/v1/flows")).json()[0]["id"]
        await scene.started(conversationalFlowVersionId=..., flowId=flow, tag="latest")
        await forked(scene, 1)
        rows = {row["conversationId"]: row for row in (await read(scene, "?tag=latest"))["conversations"]}
        assert rows["other"]["forkedFrom"] == {"conversationId": "conv-1", "seq": 1}
        assert (rows["conv-1"]["forkedFrom"], rows["other"]["seq"]) == (None, 1)

    async def test_of_one_started_anew_it_has_the_tag_of_before(self, scene: Scene) -> None:
        flow = (await scene.http.get("/v1/flows")).json()[0]["id"]
        await scene.started(conversationalFlowVersionId=..., flowId=flow, tag="latest")
        await scene.end()
        await scene.started(contactId="call-2")
        assert [(await forked(scene, seq, target=f"at-{seq}"))["tag"] for seq in (1, 2, 3)] == [
            "latest",
            "latest",
            None,
        ]

    async def test_a_repetition_under_its_key_gets_the_same_and_makes_no_other(self, scene: Scene) -> None:
        await scene.started()
        first = await fork(scene, 1, key="k")
        again = await fork(scene, 1, key="k")
        assert (again.status_code, again.content) == (201, first.content)
        assert again.headers["Idempotency-Replayed"] == "true"
        reused = await fork(scene, 2, key="k")
        assert (reused.status_code, reused.json()["code"]) == (422, "idempotency_key_reused")

    @pytest.mark.parametrize(
        ("seq", "more", "status", "code"),
        [
            (1, {"target": "conv-1"}, 409, "conversation_exists"),
            (9, {}, 404, "entry_unknown"),
            (0, {}, 422, "body_invalid"),
            (1, {"versionId": "nothing"}, 404, "version_unknown"),
            (1, {"versionId": "elsewhere"}, 404, "version_unknown"),
            (1, {"unknown": 1}, 422, "body_invalid"),
        ],
    )
    async def test_what_cannot_be_forked_is_refused(
        self, scene: Scene, seq: int, more: dict[str, Any], status: int, code: str
    ) -> None:
        await scene.publish(clinic(_id="elsewhere"), flow_name="Another")
        await scene.started()
        refused = await fork(scene, seq, **more)
        assert (refused.status_code, refused.json()["code"]) == (status, code)
        body = {"atRevision": 1, "conversationId": "other"}
        nobody = await scene.post("/v1/conversations/nobody/fork", body)
        assert (nobody.status_code, nobody.json()["code"]) == (404, "conversation_unknown")


class TestWhileTheOriginalIsErased:
    """A fork and an erasure of its original in the same instant, in every order of their steps."""

    @pytest.mark.parametrize(
        ("step", "after"), [("_note_fork", False), ("_note_fork", True), ("commit", True)]
    )
    async def test_a_fork_within_which_it_is_erased_is_none(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
    ) -> None:  # journal: DELETE
        await scene.started()
        original_step, erasures = getattr(MemoryManager, step), list[int]()

        async def interrupted(self: Any, conversation: ConversationRef, *args: Any, **named: Any) -> Any:
            done = await original_step(self, conversation, *args, **named) if after else None
            if conversation == FORK and not erasures:
                erasures.append((await scene.http.delete("/v1/conversations/conv-1")).status_code)
            return done if after else await original_step(self, conversation, *args, **named)

        monkeypatch.setattr(MemoryManager, step, interrupted)
        refused = await fork(scene, 1)
        assert erasures == [200]
        assert (refused.status_code, refused.json()["code"]) == (404, "conversation_unknown")
        await self._nothing_is_left(scene)

    @pytest.mark.parametrize(("step", "after"), [("_erase_forks", True), ("_erase_keys", False)])
    async def test_a_fork_within_an_erasure_goes_along(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
    ) -> None:  # journal: DELETE
        await scene.started()
        original_step, forks = getattr(Eraser, step), list[int]()

        async def interrupted(self: Any, *args: Any) -> Any:
            done = await original_step(self, *args) if after else None
            if not forks:
                forks.append((await fork(scene, 1)).status_code)
            return done if after else await original_step(self, *args)

        monkeypatch.setattr(Eraser, step, interrupted)
        assert (await scene.http.delete("/v1/conversations/conv-1")).status_code == 200
        assert forks == [201]
        await self._nothing_is_left(scene)

    async def _nothing_is_left(self, scene: Scene) -> None:
        for gone in ("conv-1", "other"):
            assert (await scene.http.get(f"/v1/conversations/{gone}")).status_code == 404
        names = [name async for name in scene.memory.driver.scan("*")]
        assert {name.rpartition("}::")[2] for name in names if "}::" in name} <= {"outbox", "index"}
        assert (await read(scene, ""))["conversations"] == []


class TestGoingOn:
    async def test_both_go_their_own_way(self, scene: Scene) -> None:
        await scene.started()
        await scene.written(entry("var_string", "cardio"), entry("var_boolean", True))
        await forked(scene, 2)
        await scene.changed("visit", conversationId="other")
        await scene.written(entry("var_string", "neuro"), conversation="other")
        assert [event["body"]["subtype"] for event in await scene.events("other")] == ["task_changed"]
        original = await read(scene, "/conv-1")
        assert (original["task"], original["seq"]) == ("reception", 2)
        assert {each["varId"]: each["value"] for each in original["vars"]}["var_string"] == "cardio"
        assert (await scene.end(conversationId="other")).json()["status"] == "closed"
        assert (await read(scene, "/conv-1"))["status"] == "active"
        assert [(await read(scene, f"/other/at/{seq}"))["reply"] is None for seq in range(1, 5)] == [
            False
        ] * 4

    async def test_what_was_said_before_is_known_to_it(self, scene: Scene) -> None:
        await scene.started()
        await scene.say("m-1", "Buongiorno", language="it-IT")
        await scene.say("m-2", "Good morning", src="bot")
        await scene.say("m-3", "After")
        await forked(scene, 3)
        before = await scene.memory.conversations.load(ConversationRef("default", "conv-1"), with_turns=True)
        after = await scene.memory.conversations.load(FORK, with_turns=True)
        assert after.turns == before.turns[:2]
        assert after.last_user_turn == "call-1/m-1"
        assert (await scene.say("m-2", "Good morning", conversationId="other")).json()["duplicate"] is True
        assert (await scene.say("m-3", "Another", conversationId="other")).json()["duplicate"] is False

    async def test_so_it_is_to_a_fork_of_it(self, scene: Scene) -> None:  # journal: fork
        await scene.started()
        await scene.say("m-1", "Buongiorno", language="it-IT")
        await forked(scene, 2)
        await scene.say("m-2", "Good morning", conversationId="other")
        body = {"atRevision": 2, "conversationId": "third"}
        assert (await scene.post("/v1/conversations/other/fork", body)).status_code == 201
        before = await scene.memory.conversations.load(FORK, with_turns=True)
        third = ConversationRef("default", "third")
        after = await scene.memory.conversations.load(third, with_turns=True)
        assert [turn.message_id for turn in after.turns] == ["m-1", "m-2"]
        assert after.turns == before.turns

    async def test_nobody_waits_for_a_reading_that_is_not_under_way(self, scene: Scene) -> None:  # F31
        async def pause(seconds: float) -> None:
            pytest.fail(f"waits {seconds} s for what no job does")

        await scene.started()
        await scene.say("m-1", "An ECG, please")
        await forked(scene, 2)
        shared = replace(dependencies_of(scene), pause=pause)
        view = await DialogueService(Transactor(shared), shared).prompt(FORK, wait_s=10.0)
        assert not view.fresh
        await scene.say("m-2", "Cardio", conversationId="other")
        scene.clock.advance(minutes=1)
        await scene.work()
        reply = await scene.http.get("/v1/prompt/other")
        assert reply.json()["memoryFresh"] is True

    async def test_of_one_started_anew_only_what_came_since_is_known(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            await scene.say("m-1", "Before")
            await scene.end()
            await scene.started(contactId="call-2")
            await scene.say("m-1", "Since", contactId="call-2")
            await forked(scene, 5)
            kept = (await scene.memory.conversations.load(FORK, with_turns=True)).turns
            assert [turn.body for turn in kept] == ["Since"]

    async def test_a_transfer_has_the_time_that_was_left(self, scene: Scene) -> None:
        await scene.started()
        await scene.changed("operator")  # found within 60 s
        scene.clock.advance(hours=1)
        await forked(scene, 2)
        scene.clock.advance(seconds=59)
        assert (await read(scene, "/other/at/1"))["state"]["taskStatus"] == "routing"
        assert (await scene.human("connected", conversationId="other")).status_code == 200

    async def test_between_contacts_the_next_contact_takes_it_up(self) -> None:
        async with open_scene(over_many_contacts(), answers={"https://hooks.example.com/close": [OPEN]}) as s:
            await s.started()
            await s.written(entry("var_string", "cardio"))
            assert (await s.end()).json()["status"] == "between_contacts"
            made = await forked(s, 3)
            assert made["status"] == "between_contacts"
            again = await s.started(conversationId="other", contactId="call-2")
            assert (again["command"], again["conversationId"]) == ("/resume", "other")


class TestOnAnotherVersion:
    async def test_a_digression_returns_to_what_became_of_its_task(self) -> None:  # A11, journal: fork
        async with open_scene(shop()) as scene:
            await scene.started()
            await scene.changed("order")
            await scene.changed("hours")
            flow = (await scene.http.get("/v1/flows")).json()[0]["id"]
            await scene.save(flow, {**with_task(shop(), "order", "purchase"), "_id": "version-2"})
            refused = await fork(scene, 3, versionId="version-2")
            assert (refused.status_code, refused.json()["code"]) == (422, "fork_not_possible")
            await forked(scene, 3, versionId="version-2", mapping={"order": "purchase"})
            back = await scene.changed("back", conversationId="other")
            assert back["taskId"] == "purchase"

    async def test_its_task_is_rendered_anew_and_new_variables_are_empty(self, scene: Scene) -> None:
        flow = (await scene.http.get("/v1/flows")).json()[0]["id"]
        document = clinic(_id="version-2")
        document["tasks"][0]["prompt"] = "Say hello in verse."
        document["variables"].append({"_id": "fresh", "name": "fresh", "type": "string", "prompt": "New."})
        await scene.save(flow, document)
        await scene.started()
        await scene.written(entry("var_string", "cardio"))
        made = await forked(scene, 2, versionId="version-2")
        assert (made["versionId"], made["tag"], made["revision"]) == ("version-2", None, 2)
        values = {each["varId"]: each["value"] for each in made["vars"]}
        assert (values["var_string"], values["fresh"]) == ("cardio", None)
        assert "Say hello in verse." in (await scene.prompt("other"))["prompt"]
        await scene.written(entry("fresh", "x"), conversation="other")

    async def test_one_without_the_task_is_refused_until_it_is_mapped(self, scene: Scene) -> None:
        flow = (await scene.http.get("/v1/flows")).json()[0]["id"]
        tasks = [aio_task("desk", transitionParameters=needs("var_date", required=False))]
        await scene.save(flow, clinic(_id="version-2", tasks=tasks, firstTask="desk"))
        await scene.started()
        refused = await fork(scene, 1, versionId="version-2")
        assert (refused.status_code, refused.json()["code"]) == (422, "fork_not_possible")
        assert refused.json()["errors"][0]["pointer"] == "/mapping"
        assert "no task 'reception'; map it to one" in refused.json()["detail"]
        assert "'desk'" in refused.json()["detail"]
        wrong = await fork(scene, 1, versionId="version-2", mapping={"reception": "nowhere"})
        assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (422, "/mapping/reception")
        for same in ({}, {"versionId": "version-1"}):
            unknown = await fork(scene, 1, **same, mapping={"nobody": "reception", "reception": "nowhere"})
            assert (unknown.status_code, unknown.json()["code"]) == (422, "body_invalid")
            assert [error["pointer"] for error in unknown.json()["errors"]] == [
                *("/mapping/nobody", "/mapping/reception")
            ]
        made = await forked(scene, 1, versionId="version-2", mapping={"reception": "desk"})
        assert made["task"] == "desk"
