"""A tag is split, its outcomes are counted, and its guard rolls back: over HTTP, with the background work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from flow_engine.idempotency import FinalReply
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.flow_store import Guard
from flow_engine.ports.jobs import Job
from flow_engine.ports.outbound import OutboundReply
from flow_engine.use_cases.background import BackgroundWork
from flow_engine.use_cases.publishing import SplitOrder
from flow_engine.use_cases.splits import ShareOrder
from flows.sqlite_store import SqliteDatabase, SqliteFlowStore, SqliteVersionStore
from service.stores import FlowDatabase
from tests.api.harness import HANDLER, Scene, clinic, open_scene, over_many_contacts
from tests.api.test_privacy import sent_on
from tests.flow_engine.listening.test_mining import Model, says, working_on

pytestmark = pytest.mark.anyio
RESULTS = [{"name": name, "prompt": name, "resultTypes": ["Y"]} for name in ("booked", "gone")]


class Rollout:
    """A flow of two versions; the conversations of its tag `prod`, and the background work on them."""

    def __init__(self, scene: Scene, flow_id: str) -> None:
        self.scene = scene
        self.flow_id = flow_id
        self.work = working_on(scene)

    async def put(self, **body: Any) -> Any:
        url = f"/v1/flows/{self.flow_id}/tags/prod"
        return await self.scene.http.put(url, json={"updatedBy": "ada", **body})

    async def split(self, base: float = 50, other: float = 50, **body: Any) -> Any:
        sides = [{"versionId": "version-1", "weight": base}, {"versionId": "version-2", "weight": other}]
        reply = await self.put(split=sides, **body)
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def started(self, conversation: str, **changes: Any) -> str:
        """The version that a new conversation is on."""
        by_tag = {"conversationalFlowVersionId": ..., "flowId": self.flow_id, "tag": "prod"}
        own = {"conversationId": conversation, "contactId": f"call-{conversation}"}
        await self.scene.started(**{**by_tag, **own, **changes})
        seen = await self.scene.http.get(f"/v1/conversations/{conversation}")
        return seen.json()["versionId"]

    async def ended(self, conversation: str, work: BackgroundWork | None = None) -> None:
        contact = f"call-{conversation}"
        reply = await self.scene.end(conversationId=conversation, contactId=contact)
        assert reply.status_code == 200, reply.text
        await self.concluded(conversation, work)

    async def concluded(self, conversation: str, work: BackgroundWork | None = None) -> None:
        job = Job("conclude", ConversationRef("default", conversation), f"call-{conversation}")
        await (work or self.work).conclude(job)

    async def refused(self, conversation: str, task: str = "nowhere") -> None:
        own = {"conversationId": conversation, "contactId": f"call-{conversation}"}
        assert (await self.scene.change(task, **own)).json()["result"] is False

    async def outcomes(self) -> Any:
        reply = await self.scene.http.get(f"/v1/flows/{self.flow_id}/tags/prod/outcomes")
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def side(self, version_id: str) -> Any:
        return next(each for each in (await self.outcomes())["versions"] if each["versionId"] == version_id)

    async def events(self, *conversations: str) -> list[Mapping[str, Any]]:
        """Those of a rollback in these conversations' outboxes."""
        found = [event for each in conversations for event in await self.scene.events(each)]
        return [e for e in found if e.get("body", {}).get("subtype") == "rollout_rolled_back"]

    async def told(self) -> list[Any]:
        """Word of a rollback in the reporting stream."""
        sent = await sent_on(self.scene)
        return [e for e in sent if e["body"]["subtype"] == "rollout_rolled_back"]


@asynccontextmanager
async def rolling(document: Any = None, **options: Any) -> AsyncIterator[Rollout]:
    document = document or clinic(results=RESULTS)
    async with open_scene(document, **options) as scene:
        flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
        await scene.save(flow_id, {**document, "_id": "version-2"}, tag="next")
        yield Rollout(scene, flow_id)


def _in_file(directory: Path) -> FlowDatabase:
    database = SqliteDatabase(directory)
    return FlowDatabase(database, SqliteFlowStore(database), SqliteVersionStore(database))


class TestSplit:
    async def test_a_tag_shows_its_split_wherever_it_is_shown(self) -> None:
        guard = {"metric": "refused", "worseBy": 0.2, "minimum": 40}
        async with rolling() as rollout:
            tag = await rollout.split(90, 10, guard=guard)
            assert tag["versionId"] == "version-1"
            assert tag["split"] == [
                {"versionId": "version-1", "weight": 90},
                {"versionId": "version-2", "weight": 10},
            ]
            assert (tag["guard"], tag["rolledBack"]) == (guard, None)
            listed = (await rollout.scene.http.get("/v1/flows")).json()[0]["tags"]
            assert tag in listed
            assert [each["split"] for each in listed if each["tag"] != "prod"] == [None, None]
            rows = (await rollout.scene.http.get(f"/v1/flows/{rollout.flow_id}/versions")).json()
            weights = [(row["versionId"], row["weight"]) for row in rows if row["tag"] == "prod"]
            assert weights == [("version-1", 90), ("version-2", 10)]

    async def test_one_version_ends_it(self) -> None:
        async with rolling() as rollout:
            await rollout.split(1, 99)
            moved = (await rollout.put(versionId="version-1")).json()
            assert (moved["versionId"], moved["split"], moved["guard"]) == ("version-1", None, None)
            assert {await rollout.started(f"c{n}") for n in range(12)} == {"version-1"}
            assert await rollout.outcomes() == {"tag": "prod", "versions": [], "rolledBack": None}

    async def test_everything_that_is_wrong_is_told_with_its_place(self) -> None:
        async with rolling() as rollout:
            flow = rollout.flow_id
            await rollout.scene.save(flow, clinic(_id="draft-1", draft=True), tag="try")
            await rollout.scene.save(
                flow, clinic(_id="no-phone", channels=["chat"], mandatoryChannels=["chat"]), tag="chat"
            )
            sides = ["version-1", "nobody", "draft-1", "version-1", "no-phone"]
            reply = await rollout.put(split=[{"versionId": each, "weight": 20} for each in sides])
            assert (reply.status_code, reply.json()["code"]) == (422, "split_invalid")
            assert [(e["pointer"], e["code"]) for e in reply.json()["errors"]] == [
                ("/split/1/versionId", "version_unknown"),
                ("/split/2/versionId", "version_is_draft"),
                ("/split/3/versionId", "version_repeated"),
                ("/split/4/versionId", "channels_missing"),
            ]

    async def test_a_tag_in_place_of_a_version_is_told_with_its_version(self) -> None:  # F6, F36
        async with rolling() as rollout:
            tag = "'next' is a tag, of version 'version-2'"
            reply = await rollout.put(split=[{"versionId": v, "weight": 1} for v in ("version-1", "next")])
            assert reply.json()["errors"][0]["message"].endswith(tag)
            assert (await rollout.put(versionId="next")).json()["detail"].endswith(tag)

    @pytest.mark.parametrize(
        ("body", "pointers"),
        [
            ({"split": [{"versionId": "version-1", "weight": 0}, {"versionId": "", "weight": -1}]},
             ["/split/0/weight", "/split/1/versionId", "/split/1/weight"]),
            ({"split": [{"versionId": "a", "weight": -1}, {"versionId": "b", "weight": 1}]},
             ["/split/0/weight"]),
            ({"split": [{"versionId": "a", "weight": -1}]}, ["/split/0/weight", "/split"]),
            ({"split": [{"versionId": "version-1", "weight": 1}]}, ["/split"]),
            ({"split": []}, ["/split"]),
            ({}, [""]),
            ({"versionId": "version-1", "split": None, "guard": None, "sides": 1}, ["/sides"]),
            ({"versionId": "version-1", "guard": {"metric": "refused", "worseBy": 0.1, "minimum": 1}}, [""]),
            ({"versionId": "version-1", "split": [{"versionId": v, "weight": 1} for v in "ab"]}, [""]),
            ({"split": [{"versionId": v, "weight": 1} for v in "ab"],
              "guard": {"metric": "joy", "worseBy": 0, "minimum": 0}},
             ["/guard/metric", "/guard/worseBy", "/guard/minimum"]),
        ],
    )  # fmt: skip
    async def test_a_body_of_another_shape_is_refused(self, body: Any, pointers: list[str]) -> None:
        async with rolling() as rollout:
            reply = await rollout.put(**body)
            assert reply.status_code == 422, reply.text
            assert [error["pointer"] for error in reply.json()["errors"]] == pointers

    async def test_people_stay_on_their_side_also_after_a_restart_with_an_empty_redis(
        self, tmp_path: Path
    ) -> None:
        people = [f"person-{number}" for number in range(12)]

        async def sides(rollout: Rollout, turn: str) -> list[str]:
            return [
                await rollout.started(f"{turn}-{who}", contact={"personId": who, "callerId": turn})
                for who in people
            ]

        async with rolling(flows=_in_file(tmp_path)) as rollout:
            await rollout.split()
            first = await sides(rollout, "first")
            assert set(first) == {"version-1", "version-2"}
            assert await sides(rollout, "again") == first
        async with open_scene(flows=_in_file(tmp_path)) as restarted:
            assert await sides(Rollout(restarted, rollout.flow_id), "restarted") == first

    async def test_the_callers_number_counts_where_no_person_is_known(self) -> None:
        async with rolling() as rollout:
            await rollout.split()
            for number in range(6):
                of_caller = {"contact": {"callerId": f"+39 06 {number}"}}
                one = await rollout.started(f"a{number}", **of_caller)
                assert await rollout.started(f"b{number}", **of_caller) == one


class TestOutcomes:
    async def test_a_conversation_counts_when_its_contact_ends(self) -> None:
        async with rolling() as rollout:
            await rollout.split()
            version = await rollout.started("c1")
            await rollout.refused("c1")
            own = {"conversationId": "c1", "contactId": "call-c1"}
            await rollout.scene.say("m1", "Hello", **own)
            await rollout.scene.say("m2", "Hello?", **own)
            await rollout.scene.changed("operator", **own)
            rollout.scene.clock.advance(seconds=90)
            assert (await rollout.side(version))["conversations"] == 0
            await rollout.ended("c1")
            side = await rollout.side(version)
            assert (side["conversations"], side["tooFew"], side["weight"]) == (1, True, 50)
            metrics = side["metrics"]
            assert [metrics[name]["value"] for name in ("refused", "stalled", "humanTransfers")] == [1, 0, 1]
            assert metrics["turns"] == {"value": 2, "low": None, "high": None, "n": 1}
            assert metrics["durationS"]["value"] == 90
            assert metrics["refused"]["n"] == 1
            assert metrics["results"] == {}
            other = next(v for v in (await rollout.outcomes())["versions"] if v["versionId"] != version)
            assert other["metrics"]["refused"] == {"value": None, "low": None, "high": None, "n": 0}

    async def test_a_task_that_a_person_takes_over_is_a_transfer_for_good(self) -> None:
        async with rolling() as rollout:  # journal: humanTransfers
            await rollout.split()
            person = {"contact": {"personId": "ada"}}  # who stays on one side
            versions = [await rollout.started(name, **person) for name in ("c1", "c2")]
            for name, outcomes in (("c1", ("taken_over", "released")), ("c2", ())):
                own = {"conversationId": name, "contactId": f"call-{name}"}
                await rollout.scene.changed("supervised", **own)
                for outcome in outcomes:
                    assert (await rollout.scene.human(outcome, **own)).status_code == 200
                await rollout.scene.changed("reception", **own)
                await rollout.ended(name)
            shares = (await rollout.side(versions[0]))["metrics"]["humanTransfers"]
            assert (shares["value"], shares["n"]) == (0.5, 2)

    async def test_its_result_is_counted_once_a_model_has_told_it_and_nothing_twice(self) -> None:
        async with rolling() as rollout:
            await rollout.split()
            version = await rollout.started("c1")
            own = {"conversationId": "c1", "contactId": "call-c1"}
            await rollout.scene.say("m1", "Book it", **own)
            await rollout.ended("c1")
            assert (await rollout.side(version))["metrics"]["results"] == {}
            judging = working_on(rollout.scene, Model(lambda call: {"result": "booked", "why": "said so"}))
            for _ in range(3):
                await rollout.concluded("c1", judging)
            side = await rollout.side(version)
            assert side["conversations"] == 1
            assert side["metrics"]["results"]["booked"]["value"] == 1
            assert side["metrics"]["results"]["booked"]["n"] == 1

    async def test_later_contacts_of_a_conversation_replace_what_it_has_counted(self) -> None:
        async with rolling(
            over_many_contacts(), answers={HANDLER: [OutboundReply(200, b"false")]}
        ) as rollout:
            await rollout.split()
            version = await rollout.started("c1")
            await rollout.ended("c1")
            rollout.scene.clock.advance(seconds=60)
            assert await rollout.started("c1", contactId="call-2") == version
            again = {"conversationId": "c1", "contactId": "call-2"}
            assert (await rollout.scene.change("nowhere", **again)).json()["result"] is False
            await rollout.scene.end(**again)
            await rollout.work.conclude(Job("conclude", ConversationRef("default", "c1"), "call-2"))
            side = await rollout.side(version)
            assert (side["conversations"], side["metrics"]["refused"]["value"]) == (1, 1)

    async def test_one_that_was_started_anew_under_its_id_counts_as_two(self) -> None:
        async with rolling() as rollout:
            await rollout.split()
            version = await rollout.started("c1")
            await rollout.refused("c1")
            await rollout.scene.end(conversationId="c1", contactId="call-c1")
            assert await rollout.started("c1", contactId="call-2") == version
            await rollout.scene.end(conversationId="c1", contactId="call-2")
            for contact in ("", "call-2"):
                await rollout.work.conclude(Job("conclude", ConversationRef("default", "c1"), contact))
            side = await rollout.side(version)
            assert (side["conversations"], side["metrics"]["refused"]["value"]) == (2, 0.5)

    async def test_a_fork_is_nobodys_conversation_and_counts_for_nothing(self) -> None:
        async with rolling() as rollout:
            await rollout.split()
            version = await rollout.started("c1")
            fork = {"atRevision": 1, "conversationId": "fork"}
            assert (await rollout.scene.post("/v1/conversations/c1/fork", fork)).status_code == 201
            assert (await rollout.scene.end(conversationId="fork", contactId="call-c1")).status_code == 200
            await rollout.work.conclude(Job("conclude", ConversationRef("default", "fork"), "call-c1"))
            assert (await rollout.side(version))["conversations"] == 0
            await rollout.ended("c1")
            assert (await rollout.side(version))["conversations"] == 1

    async def test_one_that_was_migrated_counts_for_no_version(self) -> None:  # journal: outcomes
        async with rolling() as rollout:
            await rollout.split(guard={"metric": "refused", "worseBy": 0.5, "minimum": 1})
            base = [f"c{n}" for n in range(12) if await rollout.started(f"c{n}") == "version-1"]
            await rollout.refused(base[0])
            order = {"fromVersionId": "version-1", "toVersionId": "version-2", "limit": 1}
            moved, rest = base[0], base[1:]
            for each in rest:
                await rollout.ended(each)
            url = f"/v1/flows/{rollout.flow_id}/migrations?dryRun=false"
            report = (await rollout.scene.post(url, order)).json()
            assert [row["conversationId"] for row in report["conversations"]] == [moved]
            await rollout.ended(moved)
            assert (await rollout.side("version-1"))["conversations"] == len(rest)
            assert (await rollout.side("version-2"))["conversations"] == 0
            assert (await rollout.outcomes())["rolledBack"] is None

    async def test_new_weights_keep_the_counts_and_another_base_begins_anew(self) -> None:
        async with rolling() as rollout:
            await rollout.split()
            version = await rollout.started("c1")
            await rollout.ended("c1")
            await rollout.split(70, 30)
            assert (await rollout.side(version))["conversations"] == 1
            sides = [{"versionId": "version-2", "weight": 1}, {"versionId": "version-1", "weight": 1}]
            assert (await rollout.put(split=sides)).status_code == 200
            assert [v["conversations"] for v in (await rollout.outcomes())["versions"]] == [0, 0]

    async def test_without_a_split_nothing_is_counted_or_kept(self) -> None:
        async with rolling() as rollout:
            await rollout.put(versionId="version-1")
            await rollout.started("c1")
            await rollout.ended("c1")
            keys = [key async for key in rollout.scene.memory.driver.client.scan_iter("*rollout*")]
            assert keys == []
            unknown = await rollout.scene.http.get(f"/v1/flows/{rollout.flow_id}/tags/never/outcomes")
            assert (unknown.status_code, unknown.json()["code"]) == (404, "tag_unknown")


GUARD = {"metric": "refused", "worseBy": 0.2, "minimum": 3}


class TestGuard:
    async def _until_worse(self, rollout: Rollout, work: BackgroundWork | None = None) -> list[str]:
        """Conversations, of which those on version-2 are all refused something: three a side, or more."""
        counts, conversations = {"version-1": 0, "version-2": 0}, list[str]()
        while min(counts.values()) < 3:
            name = f"g{len(conversations)}"
            assert len(conversations) < 40
            version = await rollout.started(name)
            if version == "version-2":
                await rollout.refused(name)
            counts[version] += 1
            conversations.append(name)
            await rollout.ended(name, work)
        return conversations

    async def _guard_quietly(self, rollout: Rollout) -> None:
        """As a process does that dies before it judges."""
        flows = rollout.work._dependencies.rollouts._flow_service
        sides = tuple(ShareOrder(version, 50) for version in ("version-1", "version-2"))
        order = SplitOrder("prod", sides, "ada", Guard("refused", 0.2, 3))
        await flows.split_tag("default", rollout.flow_id, order, respond=lambda flow: FinalReply(200, b""))

    async def test_a_worse_version_is_rolled_back_once_and_told(self) -> None:  # shown 4
        async with rolling() as rollout:
            await rollout.split(guard=GUARD)
            conversations = await self._until_worse(rollout)
            outcomes = await rollout.outcomes()
            assert outcomes["rolledBack"] == {
                "versionId": "version-2",
                "metric": "refused",
                "at": "2026-01-15T09:30:00Z",
            }
            after = [f"after-{number}" for number in range(10)]
            assert {await rollout.started(each) for each in after} == {"version-1"}
            for each in conversations:
                await rollout.concluded(each)
            [event] = await rollout.events(*conversations, *after)
            assert event["body"] == {
                "subtype": "rollout_rolled_back",
                "flowId": rollout.flow_id,
                "tag": "prod",
                "versionId": "version-2",
                "metric": "refused",
            }
            tag = (await rollout.scene.http.get("/v1/flows")).json()[0]["tags"]
            assert [each["rolledBack"] for each in tag if each["tag"] == "prod"] == [outcomes["rolledBack"]]

    async def test_a_guard_that_is_set_judges_what_was_counted_before(self) -> None:  # journal: guard
        async with rolling() as rollout:
            await rollout.split()
            conversations = await self._until_worse(rollout)
            await rollout.split(guard=GUARD)
            assert (await rollout.outcomes())["rolledBack"]["versionId"] == "version-2"
            assert {await rollout.started(f"after-{number}") for number in range(8)} == {"version-1"}
            assert await rollout.events(*conversations) == []
            await rollout.scene.work()
            assert len(await rollout.told()) == 1
            rollout.scene.clock.advance(seconds=5)
            for each in conversations:
                await rollout.concluded(each)
            await rollout.scene.work()
            assert len(await rollout.told()) == 1

    async def test_a_guard_that_nothing_breaches_changes_nothing(self) -> None:  # journal: guard
        async with rolling() as rollout:
            await rollout.split()
            await self._until_worse(rollout)
            await rollout.split(guard={**GUARD, "minimum": 400})
            assert (await rollout.outcomes())["rolledBack"] is None

    async def test_it_is_rolled_back_also_where_no_conversation_is_left_to_tell_it(self) -> None:
        async with rolling() as rollout:  # journal: guard
            await rollout.split()
            for each in await self._until_worse(rollout):
                await rollout.scene.http.delete(f"/v1/conversations/{each}")
            await rollout.split(guard=GUARD)
            assert (await rollout.outcomes())["rolledBack"]["versionId"] == "version-2"

    async def test_several_processes_that_notice_it_at_once_roll_back_once(self) -> None:
        async with rolling() as rollout:
            await rollout.split()
            conversations = await self._until_worse(rollout)
            await self._guard_quietly(rollout)
            works = [working_on(rollout.scene) for _ in conversations]
            at_once = zip(conversations, works, strict=True)
            await asyncio.gather(*(rollout.concluded(each, work) for each, work in at_once))
            assert len(await rollout.events(*conversations)) == 1

    async def test_one_who_died_before_telling_tells_when_the_job_comes_again(self) -> None:
        async with rolling() as rollout:
            await rollout.split()
            conversations = await self._until_worse(rollout)
            await self._guard_quietly(rollout)
            memory, last = rollout.scene.memory.conversations, ConversationRef("default", conversations[-1])
            loaded = await memory.load(last, with_turns=True)
            runner = await rollout.work._transactor.resume(last, loaded)
            rollouts = rollout.work._dependencies.rollouts
            assert await rollouts.count(runner, {}) is not None
            assert await rollout.events(*conversations) == []
            for _ in range(2):
                await rollout.concluded(conversations[-1])
            assert len(await rollout.events(*conversations)) == 1

    async def test_a_split_after_a_rollback_is_a_new_one_with_the_same_sides(self) -> None:
        async with rolling() as rollout:
            await rollout.split(guard=GUARD)
            conversations = await self._until_worse(rollout)
            version = (await rollout.scene.http.get(f"/v1/conversations/{conversations[0]}")).json()
            again = await rollout.split(guard=GUARD)
            assert again["rolledBack"] is None
            outcomes = await rollout.outcomes()
            assert [v["conversations"] for v in outcomes["versions"]] == [0, 0]
            await rollout.scene.http.delete(f"/v1/conversations/{conversations[0]}")
            assert await rollout.started(conversations[0]) == version["versionId"]


async def test_a_stall_counts_among_the_outcomes() -> None:
    document = clinic(results=RESULTS)
    async with rolling(document) as rollout:
        await rollout.split()
        version = await rollout.started("c1")
        own = {"conversationId": "c1", "contactId": "call-c1"}
        reading = working_on(rollout.scene, says({"var_string": "x", "var_boolean": True}))
        for number in range(6):
            await rollout.scene.say(f"m{number}", "Well", **own)
            await reading.mine(Job("mine", ConversationRef("default", "c1")))
        await rollout.ended("c1")
        stalled = (await rollout.side(version))["metrics"]["stalled"]["value"]
        told = [e["body"] for e in await rollout.scene.events("c1") if e.get("type") == "system"]
        assert [body["task"] for body in told if body["subtype"] == "task_stalled"] == ["Visita Perché"]
        assert stalled == 1
