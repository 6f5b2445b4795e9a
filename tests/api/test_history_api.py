"""What operators see of conversations: lists, one of them, its journal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.use_cases import listing
from flow_engine.use_cases.listing import ConversationFilter
from tests.api.harness import Scene, clinic, entry, open_scene, over_many_contacts

pytestmark = pytest.mark.anyio


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with open_scene(clinic()) as opened:
        yield opened


async def journal(scene: Scene, conversation: str = "conv-1", query: str = "") -> Any:
    reply = await scene.http.get(f"/v1/conversations/{conversation}/journal{query}")
    assert reply.status_code == 200, reply.text
    return reply.json()


async def listed(scene: Scene, query: str = "") -> list[str]:
    reply = await scene.http.get(f"/v1/conversations{query}")
    assert reply.status_code == 200, reply.text
    return [row["conversationId"] for row in reply.json()["conversations"]]


class TestJournal:
    async def test_each_call_that_commits_is_an_entry_with_its_input_and_outcome(self, scene: Scene) -> None:
        await scene.started(contact={"callerId": "+390612345678"})  # journal: journal
        refused = await scene.change("visit", reason="The caller wants a visit.")
        assert refused.json()["result"] is False
        await scene.written(entry("var_string", "cardio"), entry("var_boolean", True))
        await scene.changed("visit")
        await scene.say("m-1", "Good morning")
        await scene.say("m-1", "Good morning")  # known already: no commit
        await scene.changed("reception")
        await scene.changed("operator")
        assert (await scene.human("connected")).status_code == 200
        assert (await scene.end(reason="hangup")).status_code == 200
        found = (await journal(scene))["entries"]
        assert [each["seq"] for each in found] == list(range(1, 10))
        assert [each["input"]["op"] for each in found] == [
            "handle-new-contact",
            "change-task",
            "memory",
            "change-task",
            "handle-utterance",
            "change-task",
            "change-task",
            "handle-human-task",
            "handle-end-contact",
        ]
        assert {each["by"] for each in found} == {"local"}
        start, refusal, write, *_, end = found
        assert start["input"]["contact"] == {"callerId": "+390612345678"}
        assert refusal["rationale"] == "The caller wants a visit."
        assert refusal["outcome"] == {"result": False, "task": "reception", "code": "missing_variables"}
        assert refusal["delta"]["session"] == {"revision": 2, "refused": {"visit": 1}}
        assert (write["revision"], write["memoryRevision"]) == (2, 1)
        assert [each["varId"] for each in write["input"]["writes"]] == ["var_string", "var_boolean"]
        assert write["delta"]["tools"]["var_string"]["value"] == "cardio"
        assert found[3]["outcome"] == {"result": True, "task": "Visita Perché"}
        assert end["outcome"]["closes"] is True

    async def test_a_reading_of_the_dialogue_is_the_miners(self) -> None:
        async with open_scene(over_many_contacts()) as scene:
            await scene.started()
            await scene.say("m-1", "It is on 3 March 2026")
            found = (await journal(scene))["entries"]
            assert found[-1]["input"]["body"] == "It is on 3 March 2026"
            assert found[-1]["delta"] == {"lastUserTurn": "call-1/m-1"}

    async def test_it_is_read_page_by_page(self, scene: Scene) -> None:
        await scene.started()
        for _ in range(4):
            await scene.written(entry("var_string", "x"))
        first = await journal(scene, query="?limit=2")
        assert ([each["seq"] for each in first["entries"]], first["next"]) == ([1, 2], 2)
        rest = await journal(scene, query="?after=2")
        assert ([each["seq"] for each in rest["entries"]], rest["next"]) == ([3, 4, 5], None)
        assert await journal(scene, query="?after=5") == {"entries": [], "next": None}

    async def test_of_nobody_there_is_none(self, scene: Scene) -> None:
        for path in ("nobody", "nobody/journal", "nobody/journal?after=7"):
            reply = await scene.http.get(f"/v1/conversations/{path}")
            assert (reply.status_code, reply.json()["code"]) == (404, "conversation_unknown")

    async def test_a_conversation_that_was_erased_begins_again_at_one(self, scene: Scene) -> None:
        await scene.started()
        await scene.changed("operator")
        assert (await scene.http.delete("/v1/conversations/conv-1")).status_code == 200
        assert (await scene.http.get("/v1/conversations/conv-1/journal")).status_code == 404
        assert await listed(scene) == []
        await scene.started()
        assert [each["seq"] for each in (await journal(scene))["entries"]] == [1]


class TestOne:
    async def test_it_tells_what_is_known_with_its_provenance(self, scene: Scene) -> None:  # journal: lists
        await scene.started()
        scene.clock.advance(minutes=1)
        await scene.written(entry("var_string", "cardio"))
        found = (await scene.http.get("/v1/conversations/conv-1")).json()
        variables = {each.pop("varId"): each for each in found.pop("vars")}
        assert found == {
            "conversationId": "conv-1",
            "flowId": found["flowId"],
            "versionId": "version-1",
            "tag": None,
            "task": "reception",
            "status": "active",
            "channel": "phone",
            "startedAt": "2026-01-15T09:30:00Z",
            "updatedAt": "2026-01-15T09:31:00Z",
            "seq": 2,
            "forkedFrom": None,
            "revision": 1,
            "memoryRevision": 1,
            "language": "en-US",
            "contactId": "call-1",
        }
        provenance = {
            "source": "tool",
            "messageId": None,
            "at": "2026-01-15T09:31:00Z",
            "superseded": None,
        }
        assert variables["var_string"]["value"] == "cardio"
        assert variables["var_string"]["provenance"] == provenance
        assert variables["var_date"]["provenance"] is None

    async def test_ids_with_slashes_are_found(self, scene: Scene) -> None:
        await scene.started(conversationId="a/b c")
        found = await scene.http.get("/v1/conversations/a%2Fb%20c")
        assert (found.status_code, found.json()["conversationId"]) == (200, "a/b c")
        assert [each["seq"] for each in (await journal(scene, "a%2Fb%20c"))["entries"]] == [1]

    @pytest.mark.parametrize("end", ["journal", "at/3", "x/at/3/journal"])
    async def test_ids_that_end_like_a_path_are_told_by_their_encoded_slashes(
        self, scene: Scene, end: str
    ) -> None:
        await scene.started(conversationId=f"a/{end}")
        encoded = f"a/{end}".replace("/", "%2F")
        found = await scene.http.get(f"/v1/conversations/{encoded}")
        assert (found.status_code, found.json()["conversationId"]) == (200, f"a/{end}")
        assert [each["seq"] for each in (await journal(scene, encoded))["entries"]] == [1]
        assert (await scene.http.get(f"/v1/conversations/{encoded}/at/1")).status_code == 200
        assert (await scene.http.get(f"/v1/conversations/a/{end}")).json()["code"] == "conversation_unknown"


class TestLists:
    async def test_the_newest_come_first_with_what_a_reader_looks_for(self, scene: Scene) -> None:
        for number in range(3):  # journal: lists
            await scene.started(conversationId=f"conv-{number}", contactId=f"call-{number}")
            scene.clock.advance(seconds=1)
        reply = (await scene.http.get("/v1/conversations")).json()
        assert [row["conversationId"] for row in reply["conversations"]] == ["conv-2", "conv-1", "conv-0"]
        assert (reply["nextCursor"], reply["cut"]) == (None, False)
        assert set(reply["conversations"][0]) == {
            *("conversationId", "flowId", "versionId", "tag", "task", "status", "channel"),
            *("startedAt", "updatedAt", "seq", "forkedFrom"),
        }

    async def test_every_filter_leaves_out_what_it_does_not_name(self, scene: Scene) -> None:
        flow = (await scene.http.get("/v1/flows")).json()[0]["id"]
        by_tag = {"conversationalFlowVersionId": ..., "flowId": flow, "tag": "latest"}
        await scene.started(conversationId="old", contactId="call-old")
        scene.clock.advance(minutes=1)
        await scene.started(conversationId="new", contactId="call-new", channel="chat", **by_tag)
        await scene.changed("operator", conversationId="new", contactId="call-new")
        await scene.end(conversationId="old", contactId="call-old")
        for query, expected in (
            (f"flowId={flow}", ["new", "old"]),
            ("flowId=other", []),
            ("versionId=version-1", ["new", "old"]),
            ("tag=latest", ["new"]),
            ("task=operator", ["new"]),
            ("task=reception", ["old"]),
            ("task=RECEPTION", ["old"]),  # F4
            ("status=closed", ["old"]),
            ("status=active&channel=chat", ["new"]),
            ("channel=phone", ["old"]),
            ("from=2026-01-15T09:30:30Z", ["new"]),
            ("to=2026-01-15T09:30:30Z", ["old"]),
            ("from=2026-01-15T10:30:00%2B01:00&to=2026-01-15T09:30:00Z", ["old"]),
            ("q=ne", ["new"]),
            ("q=call-o", ["old"]),
            ("q=all-o", []),
        ):
            assert await listed(scene, f"?{query}") == expected, query

    async def test_a_long_name_is_looked_for_in_many_conversations_soon(self, scene: Scene) -> None:
        await scene.started()
        listed = await scene.memory.listing.one(ConversationRef("default", "conv-1"))
        head = listed.head
        assert head is not None
        wanted = ConversationFilter(task="\ufdfa" * 7_000)  # of 18 letters each, in 63 KB of a query
        started = time.process_time()
        assert not any(wanted.takes("conv-1", head) for _ in range(200))
        assert time.process_time() - started < 2

    async def test_it_goes_on_where_a_page_ended(self, scene: Scene) -> None:
        for number in range(5):  # all in one millisecond
            await scene.started(conversationId=f"conv-{number}", contactId=f"call-{number}")
        found, cursor = list[str](), ""
        for _ in range(3):
            reply = (await scene.http.get(f"/v1/conversations?limit=2{cursor}")).json()
            found += [row["conversationId"] for row in reply["conversations"]]
            cursor = f"&cursor={reply['nextCursor']}"
        assert (sorted(found), cursor) == ([f"conv-{number}" for number in range(5)], "&cursor=None")

    async def test_one_that_would_look_at_too_many_says_that_it_was_cut(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listing, "EXAMINED_AT_ONCE", 2)
        monkeypatch.setattr(listing, "EXAMINED_AT_MOST", 4)
        for number in range(6):
            await scene.started(conversationId=f"conv-{number}", contactId=f"call-{number}")
            scene.clock.advance(seconds=1)
        cut = (await scene.http.get("/v1/conversations?q=conv-1")).json()
        assert (cut["conversations"], cut["cut"]) == ([], True)
        rest = (await scene.http.get(f"/v1/conversations?q=conv-1&cursor={cut['nextCursor']}")).json()
        assert ([row["conversationId"] for row in rest["conversations"]], rest["cut"]) == (["conv-1"], False)

    async def test_hundreds_are_begun_listed_and_counted_at_once_on_the_embedded_memory(
        self, scene: Scene
    ) -> None:  # F42, F44
        own = [{"conversationId": f"c{number}", "contactId": f"call-{number}"} for number in range(160)]
        await asyncio.gather(*(scene.started(**each) for each in own))
        assert sorted(await listed(scene, "?limit=200")) == sorted(each["conversationId"] for each in own)
        counted = (await scene.http.get("/v1/live-conversations")).json()
        assert [row["conversations"] for row in counted["versions"]] == [160]

    async def test_what_redis_has_forgotten_leaves_it(self, scene: Scene) -> None:
        await scene.started(conversationId="gone", contactId="a")
        await scene.started(conversationId="here", contactId="b")
        await scene.memory.driver.client.delete("{default:gone}::snapshot")
        assert await listed(scene) == ["here"]
        part = await scene.memory.listing.newest("default", until_ms=None, after=None, at_most=9)
        assert [each.conversation_id for each in part.conversations] == ["here"]

    @pytest.mark.parametrize(
        ("query", "code"),
        [
            ("from=yesterday", "from_invalid"),
            ("to=2026-13-01T00:00:00Z", "to_invalid"),
            ("status=open", "status_invalid"),
            ("channel=fax", "channel_invalid"),
            ("limit=1000", "limit_invalid"),
            ("limit=0", "limit_invalid"),
            ("cursor=x", "cursor_invalid"),
            ("cursor=WzEsMl0=", "cursor_invalid"),
            ("cursor=W251bGwsIHRydWVd", "cursor_invalid"),  # [null, true]
            ("before=1", "parameter_unknown"),
        ],
    )
    async def test_what_cannot_be_meant_is_refused(self, scene: Scene, query: str, code: str) -> None:
        reply = await scene.http.get(f"/v1/conversations?{query}")
        assert (reply.status_code, reply.json()["code"]) == (422, code)

    async def test_a_moment_that_cannot_be_read_is_refused_with_one_that_can(self, scene: Scene) -> None:
        plus_is_a_space = await scene.http.get("/v1/conversations?from=2026-01-15T09:30:00+01:00")
        assert plus_is_a_space.json()["detail"] == (
            "'from' is an RFC 3339 date-time such as 2026-01-15T09:30:00Z; "
            "the '+' of an offset is written %2B here"
        )
        assert (await scene.http.get("/v1/conversations?from=2026-01-15T09:30:00%2B01:00")).status_code == 200

    async def test_all_that_is_wrong_is_told_at_once(self, scene: Scene) -> None:  # F36
        query = "status=open&from=yesterday&tag=prod&limit=many&before=1"
        reply = await scene.http.get(f"/v1/conversations?{query}")
        assert [error["code"] for error in reply.json()["errors"]] == [
            "status_invalid",
            "from_invalid",
            "limit_invalid",
            "parameter_unknown",
        ]
        assert reply.json()["errors"][2]["message"] == "'limit' is a whole number from 1 to 200"
        paged = await scene.http.get("/v1/conversations?cursor=zz&limit=0")
        assert [error["code"] for error in paged.json()["errors"]] == ["cursor_invalid", "limit_invalid"]
        flag = await scene.http.get("/v1/conversations/conv-1?reveal=perhaps&after=1")
        assert [error["code"] for error in flag.json()["errors"]] == ["reveal_invalid", "parameter_unknown"]
