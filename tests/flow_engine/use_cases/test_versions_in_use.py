"""A conversation goes on with the very version that it was started on (F13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from fakeredis import FakeServer

from flow_engine.errors import CallTheOperator, LookElsewhere, RetryLater
from flow_engine.ports.flow_store import DefinitionStore, StoredVersion, VersionStore
from flow_engine.use_cases.flow_service import FlowService
from flow_engine.use_cases.versions_in_use import StartableVersion, VersionChoice, VersionsInUse
from memory.in_process import embedded
from tests.api.harness import (
    Scene,
    SettableClock,
    clinic,
    entry,
    multi_contact,
    open_scene,
    over_many_contacts,
    sqlite_in_memory,
)
from tests.flow_engine.documents.samples import JsonObject

pytestmark = pytest.mark.anyio
DAY_S = 86_400


@asynccontextmanager
async def two_processes(
    document: JsonObject, *, flows_of_second: JsonObject | None = None
) -> AsyncIterator[tuple[Scene, Scene]]:
    """A service with a conversation, and a second one on the same Redis that has compiled nothing yet.

    The second one's flow store lacks the version, or holds `flows_of_second` instead.
    """
    server = FakeServer()
    others = [] if flows_of_second is None else [flows_of_second]
    async with open_scene(document, server=server) as first, open_scene(*others, server=server) as second:
        await first.started()
        yield first, second


def fresh(
    scene: Scene, *, versions: VersionStore | None = None, definitions: DefinitionStore | None = None
) -> VersionsInUse:
    """Those of a process that has compiled nothing yet."""
    flow_service = FlowService(
        flows=scene.flows.flows,
        versions=versions or scene.flows.versions,
        clock=scene.clock,
        new_id=lambda: "id",
    )
    return VersionsInUse(flow_service, definitions or scene.memory.definitions)


async def definition_key(scene: Scene) -> bytes:
    keys = [key async for key in scene.memory.driver.client.scan_iter("*definition*")]
    assert len(keys) == 1
    return keys[0]


async def rewrite(scene: Scene, change: Callable[[Any], None]) -> bytes:
    """Change the stored snapshot behind the service's back."""
    key = "{default:conv-1}::snapshot"
    stored = orjson.loads(await scene.memory.driver.client.hget(key, "session"))
    change(stored)
    written = orjson.dumps(stored)
    await scene.memory.driver.client.hset(key, mapping={"session": written, "stamp": "by hand"})
    return written


class TestGoingOn:
    async def test_another_process_needs_no_flow_store(self) -> None:
        async with two_processes(clinic()) as (_, second):
            await second.flows.connection.close()
            assert (await second.http.get("/health/ready")).status_code == 503
            assert (await second.changed("operator"))["taskId"] == "operator"  # F13
            assert (await second.started())["command"] == "/resume"
            assert (await second.end()).json()["status"] == "closed"

    async def test_it_goes_on_although_the_version_is_gone(self) -> None:
        async with two_processes(over_many_contacts()) as (_, second):
            assert (await second.started(contactId="call-2"))["command"] == "/resume"  # F13
            new = await second.contact(conversationId="conv-2")
            assert (new.status_code, new.json()["code"]) == (404, "version_unknown")

    async def test_what_is_saved_later_under_the_same_id_elsewhere_is_not_taken(self) -> None:
        other = clinic(globalPrompt="Another text.")
        async with two_processes(clinic(), flows_of_second=other) as (_, second):
            assert "Another text." not in (await second.changed("operator"))["prompt"]  # F13

    async def test_a_start_that_needs_the_flow_store_is_503_while_it_is_away(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.flows.connection.close()
            reply = await scene.contact()
            assert (reply.status_code, reply.json()["code"]) == (503, "flow_store_unavailable")  # F44
            assert reply.headers["Retry-After"] == "1"


class TestDuringAnUpdate:
    async def test_a_version_of_a_newer_release_is_retried_not_refused(self) -> None:
        """A replica of the release before sees a type of variable that it does not know."""
        async with two_processes(clinic()) as (first, second):
            key = await definition_key(first)
            newer = orjson.loads(await first.memory.driver.client.get(key))
            newer["variables"][0]["type"] = "money"
            await first.memory.driver.client.set(key, orjson.dumps(newer))
            reply = await second.change("operator")
            assert (reply.status_code, reply.json()["code"]) == (503, "version_of_newer_release")  # D4
            assert reply.headers["Retry-After"] == "1"


class TestTheDefinitionsKey:
    @pytest.mark.parametrize(
        ("document", "lifetime"),
        [
            (clinic(), DAY_S),
            (over_many_contacts(), DAY_S),
            (clinic(closureConfig=multi_contact(conversationTimeLimit=30 * DAY_S)), 30 * DAY_S),
        ],
    )
    async def test_it_lives_twice_as_long_as_a_conversation(
        self, document: JsonObject, lifetime: int
    ) -> None:
        async with open_scene(document) as scene:
            await scene.started()
            client = scene.memory.driver.client
            assert lifetime - 10 < await client.ttl("{default:conv-1}::snapshot") <= lifetime  # F16
            assert await client.ttl(await definition_key(scene)) >= 2 * lifetime - 10  # F13

    async def test_every_use_moves_its_expiry(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            client, key = scene.memory.driver.client, await definition_key(scene)
            uses: list[Callable[[], Any]] = [
                lambda: scene.changed("operator"),
                lambda: scene.written(entry("size", "S")),
                lambda: scene.say("m-1", "hello"),
                scene.started,
                scene.end,
            ]
            for use in uses:
                await client.expire(key, 50)
                await use()
                assert await client.ttl(key) >= 2 * DAY_S - 10  # F13

    async def test_it_is_put_back_by_the_next_change_when_it_has_gone(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            client, key = scene.memory.driver.client, await definition_key(scene)
            document = await client.get(key)
            await client.delete(key)
            await scene.changed("operator")
            assert await client.get(key) == document  # F13
            assert await client.ttl(key) >= 2 * DAY_S - 10

    async def test_a_restarted_process_finds_it_in_the_shared_flow_store(self) -> None:
        server, flows = FakeServer(), sqlite_in_memory()
        async with open_scene(clinic(), server=server, flows=flows) as first:
            await first.started()
            await first.memory.driver.client.delete(await definition_key(first))
            flow_service = FlowService(
                flows=flows.flows, versions=flows.versions, clock=SettableClock(), new_id=lambda: "unused"
            )
            fresh = VersionsInUse(flow_service, embedded(server).definitions)
            stored = orjson.loads(
                await first.memory.driver.client.hget("{default:conv-1}::snapshot", "session")
            )
            found = await fresh.pinned("default", stored["versionId"], stored["contentHash"])
            assert found.flow.version_id == "version-1"  # F13
            assert await definition_key(first)

    async def test_in_neither_store_it_is_lost_and_an_operator_is_called(self) -> None:
        async with two_processes(clinic()) as (first, second):
            await first.memory.driver.client.delete(await definition_key(first))
            for reply in (await second.change("operator"), await second.contact(), await second.end()):
                assert (reply.status_code, reply.json()["code"]) == (500, "definition_lost")  # F13

    async def test_while_the_flow_store_is_away_nobody_says_that_it_is_lost(self) -> None:
        async with two_processes(clinic()) as (first, second):
            await first.memory.driver.client.delete(await definition_key(first))
            await second.flows.connection.close()
            assert (await second.change("operator")).status_code == 503  # F13, F44

    async def test_another_tenants_definition_is_not_found(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            stored = orjson.loads(
                await scene.memory.driver.client.hget("{default:conv-1}::snapshot", "session")
            )
            flow_service = FlowService(
                flows=scene.flows.flows,
                versions=scene.flows.versions,
                clock=scene.clock,
                new_id=lambda: "unused",
            )
            versions = VersionsInUse(flow_service, scene.memory.definitions)
            with pytest.raises(CallTheOperator, match="definition_lost"):
                await versions.pinned("other", stored["versionId"], stored["contentHash"])  # F43
            with pytest.raises(LookElsewhere, match="version_unknown"):
                await versions.to_start("other", VersionChoice("version-1"))

    async def test_more_versions_than_are_kept_compiled_still_run(self) -> None:
        documents = [clinic(_id=f"version-{number}") for number in range(5)]
        async with open_scene(*documents) as scene:
            flow_service = FlowService(
                flows=scene.flows.flows,
                versions=scene.flows.versions,
                clock=scene.clock,
                new_id=lambda: "unused",
            )
            versions = VersionsInUse(flow_service, scene.memory.definitions, capacity=2)
            for _ in range(2):
                for number in range(5):
                    found = await versions.to_start("default", VersionChoice(f"version-{number}"))
                    flow = found.version.flow
                    again = await versions.pinned("default", flow.version_id, flow.content_hash)
                    assert again.flow.version_id == f"version-{number}"  # F13


class TestSnapshotsThatDoNotFit:
    @pytest.mark.parametrize(
        ("change", "code"),
        [
            (lambda s: s.update(configuration=["active", "active/gone"]), "snapshot_unusable"),
            (lambda s: s.update(configuration=["active", "active/operator"]), "snapshot_unusable"),
            (lambda s: s.update(configuration=["active", "active/island"]), "snapshot_unusable"),
            (lambda s: s.update(configuration=[]), "snapshot_unusable"),
            (lambda s: s.update(configuration=["between_contacts"]), "snapshot_unusable"),
            (lambda s: s["task"].update(taskId="gone"), "snapshot_unusable"),
            (lambda s: s.update(activeContactId="call-9"), "snapshot_unreadable"),
            (lambda s: s.update(contacts={}, activeContactId=None), "snapshot_unreadable"),
            (lambda s: s.pop("revision"), "snapshot_unreadable"),
            (lambda s: s.update(format=99), "snapshot_too_new"),
        ],
    )
    async def test_they_are_refused_at_load_and_never_reset(
        self, change: Callable[[Any], None], code: str
    ) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            written = await rewrite(scene, change)
            replies = [
                await scene.contact(),
                await scene.contact(contactId="call-2"),
                await scene.change("operator"),
                await scene.end(),
                await scene.human("connected"),
                await scene.say("m-1", "hello"),
                await scene.write(entry("size", "S")),
                await scene.http.get("/v1/prompt/conv-1"),
                await scene.http.get("/v1/memory/conv-1"),
            ]
            assert {(reply.status_code, reply.json()["code"]) for reply in replies} == {(500, code)}  # F13
            assert await scene.memory.driver.client.hget("{default:conv-1}::snapshot", "session") == written


class TestConcurrentStarts:
    async def test_many_conversations_at_once_on_a_version_that_nobody_has_compiled(self) -> None:
        async with open_scene(clinic()) as scene:
            replies = await asyncio.gather(
                *(scene.started(conversationId=f"conv-{number}") for number in range(25))
            )
            assert {reply["command"] for reply in replies} == {"/start"}  # F13
            assert len({reply["prefixHash"] for reply in replies}) == 1

    async def test_the_same_contact_at_once_starts_once(self) -> None:
        async with open_scene(clinic()) as scene:
            replies = await asyncio.gather(*(scene.started() for _ in range(10)))
            assert sorted(reply["command"] for reply in replies) == ["/resume"] * 9 + ["/start"]  # F15, F28
            assert {reply["revision"] for reply in replies} == {1}
            assert len(await scene.events()) == 1

    async def test_two_contacts_at_once_leave_one_active_and_one_superseded(self) -> None:
        async with open_scene(over_many_contacts()) as scene:
            await asyncio.gather(*(scene.started(contactId=f"call-{number}") for number in range(6)))
            stored = orjson.loads(
                await scene.memory.driver.client.hget("{default:conv-1}::snapshot", "session")
            )
            states = sorted(contact["status"] for contact in stored["contacts"].values())
            assert states == ["active"] + ["superseded"] * 5  # F15, F28
            assert stored["revision"] == 6

    async def test_writers_of_different_variables_lose_nothing(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            values = {"var_string": "Ada", "var_number": 4, "var_boolean": False, "size": "S"}
            writes = [scene.written(entry(var, value)) for var, value in values.items()]
            moves = [scene.change("operator"), scene.change("island")]
            replies = await asyncio.gather(*writes, *moves)
            assert sorted(reply["memoryRevision"] for reply in replies[:4]) == [1, 2, 3, 4]  # F19, F32
            dump = (await scene.http.get("/v1/memory/conv-1")).json()
            assert {v["varId"] for v in dump["vars"] if v["value"] is not None} == {
                *("var_string", "var_number", "var_boolean", "var_enum"),
            }

    async def test_the_loser_of_a_race_is_decided_again_on_fresh_state(self) -> None:
        async with open_scene(clinic()) as scene:
            await scene.started()
            replies = await asyncio.gather(*(scene.change("operator") for _ in range(4)))
            codes = sorted(reply.json().get("code", "moved") for reply in replies)
            assert codes == ["already_in_task"] * 3 + ["moved"]  # F15


class SecondReaderWaits:
    """Implements `VersionStore` over another: the second read ends when it may."""

    def __init__(self, versions: VersionStore) -> None:
        self._versions = versions
        self.reads = 0
        self.may_end = asyncio.Event()

    async def insert(self, tenant_id: str, version: StoredVersion) -> bool:
        return await self._versions.insert(tenant_id, version)

    async def get(self, tenant_id: str, version_id: str) -> StoredVersion | None:
        self.reads += 1
        if self.reads == 2:
            await self.may_end.wait()
        return await self._versions.get(tenant_id, version_id)

    async def remove(self, tenant_id: str, version: StoredVersion) -> bool:
        return await self._versions.remove(tenant_id, version)


class TestCompiling:
    async def test_who_reads_a_version_late_finds_it_compiled(self) -> None:  # A3
        async with open_scene(clinic()) as scene:
            store = SecondReaderWaits(scene.flows.versions)
            versions = fresh(scene, versions=store)
            early, late = (
                asyncio.ensure_future(versions.to_start("default", VersionChoice("version-1")))
                for _ in range(2)
            )
            first = await early
            store.may_end.set()
            assert (await late).version is first.version
            assert (versions.kept, versions.compiling) == (1, 0)

    async def test_a_version_is_compiled_once_for_all_who_wait(self) -> None:  # A3
        async with open_scene(clinic()) as scene:
            versions = fresh(scene)
            waiting = [
                asyncio.ensure_future(versions.to_start("default", VersionChoice("version-1")))
                for _ in range(3)
            ]
            while not versions.compiling:
                await asyncio.sleep(0)
            waiting[0].cancel()
            _, *others = await asyncio.gather(*waiting, return_exceptions=True)
            one, other = (startable for startable in others if isinstance(startable, StartableVersion))
            assert one.version.flow is other.version.flow
            assert (versions.kept, versions.compiling) == (1, 0)


class CountedDefinitions:
    """Implements `DefinitionStore` over another, and counts; it is away as long as `away`."""

    def __init__(self, definitions: DefinitionStore) -> None:
        self._definitions = definitions
        self.reads = self.writes = 0
        self.away = False

    async def get(self, tenant_id: str, content_hash: str) -> bytes | None:
        self.reads += 1
        await asyncio.sleep(0)
        if self.away:
            raise RetryLater("redis_unavailable", "Redis does not answer")
        return await self._definitions.get(tenant_id, content_hash)

    async def put(self, tenant_id: str, content_hash: str, document: bytes, lifetime_s: int) -> None:
        self.writes += 1
        await self._definitions.put(tenant_id, content_hash, document, lifetime_s)


class TestManyAtOnce:
    """A process that has just been started gets many requests for the same version."""

    async def test_a_version_is_prepared_once_for_all_who_start_on_it(self) -> None:  # F13
        async with open_scene(clinic()) as scene:
            definitions = CountedDefinitions(scene.memory.definitions)
            versions = fresh(scene, definitions=definitions)
            startable = await asyncio.gather(
                *(versions.to_start("default", VersionChoice("version-1")) for _ in range(20))
            )
            assert len({id(each.version) for each in startable}) == 1
            assert (definitions.writes, versions.kept, versions.compiling) == (1, 1, 0)
            assert {each.campaign_id for each in startable} == {"campaign-1"}

    async def test_a_definition_is_read_once_for_all_who_go_on(self) -> None:  # F13
        async with open_scene(clinic()) as scene:
            await scene.started()
            started = (await fresh(scene).to_start("default", VersionChoice("version-1"))).version.flow
            definitions = CountedDefinitions(scene.memory.definitions)
            versions = fresh(scene, definitions=definitions)
            wanted = ("default", "version-1", started.content_hash)
            pinned = await asyncio.gather(*(versions.pinned(*wanted) for _ in range(20)))
            assert len({id(each) for each in pinned}) == 1
            assert (definitions.reads, versions.kept) == (1, 1)

    async def test_a_failure_is_that_of_those_who_waited_for_it(self) -> None:  # F44
        async with open_scene(clinic()) as scene:
            await scene.started()
            started = (await fresh(scene).to_start("default", VersionChoice("version-1"))).version.flow
            definitions = CountedDefinitions(scene.memory.definitions)
            versions = fresh(scene, definitions=definitions)
            wanted = ("default", "version-1", started.content_hash)
            definitions.away = True
            replies = await asyncio.gather(
                *(versions.pinned(*wanted) for _ in range(3)), return_exceptions=True
            )
            assert [type(reply) for reply in replies] == [RetryLater] * 3
            definitions.away = False
            assert (await versions.pinned(*wanted)).flow.content_hash == started.content_hash

    async def test_what_was_saved_meanwhile_is_found_beside_a_search_that_began_before(self) -> None:  # F6
        async with open_scene(clinic()) as scene:
            store = SecondReaderWaits(scene.flows.versions)
            versions = fresh(scene, versions=store)
            await versions.to_start("default", VersionChoice("version-1"))  # the first read
            early = asyncio.ensure_future(versions.to_start("default", VersionChoice("version-2")))
            while store.reads < 2:
                await asyncio.sleep(0)
            await scene.publish(clinic(_id="version-2"))
            assert (
                await versions.to_start("default", VersionChoice("version-2"))
            ).version.flow.version_id == "version-2"
            store.may_end.set()
            await early

    async def test_versions_that_differ_in_texts_share_a_chart(self) -> None:  # F13
        async with open_scene(clinic()) as scene:
            await scene.publish(clinic(_id="version-2", globalPrompt="Another text."))
            versions = fresh(scene)
            first, second = [
                (await versions.to_start("default", VersionChoice(f"version-{number}"))).version.flow
                for number in (1, 2)
            ]
            assert second.content_hash != first.content_hash
            assert second.chart is first.chart
