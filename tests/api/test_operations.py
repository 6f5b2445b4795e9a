"""What operators see by the API: processes, jobs, dead letters, events, model calls, latency, and changes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from fakeredis import FakeServer

from adapters.models.audit import LoggedCalls, ModelCallRecord
from adapters.models.prices import price
from api.operations import quantile_ms, route_latencies
from flow_engine.errors import RetryLater
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.flow_store import Guard, RolledBack
from flow_engine.ports.jobs import DueJob, Job
from flow_engine.use_cases.publishing import roll_back
from memory.connection import connect
from memory.operations import OwnProcess
from memory.schedule import RedisJobSchedule
from service.observing import KeptCalls, own_observer
from tests.api.harness import T0, Scene, clinic, keyring_of, open_scene
from tests.redis_fixture import StartRedis

pytestmark = pytest.mark.anyio

KEYS = [
    {"key": f"{tenant}-key", "tenant": tenant, "scopes": ["admin"], "name": f"{tenant}'s"}
    for tenant in ("acme", "other")
]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with open_scene(clinic()) as opened:
        yield opened


@pytest.fixture
async def tenants() -> AsyncIterator[Scene]:
    async with open_scene(authenticator=keyring_of(json.dumps({"keys": KEYS}))) as opened:
        yield opened


async def get(scene: Scene, path: str, tenant: str | None = None) -> Any:
    headers = {} if tenant is None else {"Authorization": f"Bearer {tenant}-key"}
    reply = await scene.http.get(f"/v1/{path}", headers=headers)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def flow_of(scene: Scene) -> str:
    return (await get(scene, "flows"))[0]["id"]


async def test_a_page_of_nothing_is_refused(scene: Scene) -> None:
    for path in ("jobs", "dead-letters", "events", "model-calls", f"flows/{await flow_of(scene)}/history"):
        reply = await scene.http.get(f"/v1/{path}?limit=0")
        assert (reply.status_code, reply.json()["code"]) == (422, "limit_invalid"), path


async def buried(scene: Scene, tenant: str = "default", conversation: str = "conv-1") -> None:
    schedule = RedisJobSchedule(scene.memory.driver)
    job = Job("mine", ConversationRef(tenant, conversation))
    await schedule.schedule(DueJob(job, scene.clock.now()))
    claims = await schedule.claim(scene.clock.now(), at_most=10, lease_s=15)
    for claim in claims:
        if claim.job == job:
            await schedule.bury(claim, "the model was away", scene.clock.now())


class TestProcesses:
    async def test_stores_and_what_waits_are_told_with_the_release(self, scene: Scene) -> None:
        found = await get(scene, "operations")
        assert [(each["name"], each["status"]) for each in found["stores"]] == [
            ("memory", "ok"),
            ("flows", "ok"),
        ]
        assert found["backlog"] == {"due": 0, "oldestS": 0.0, "deadLetters": 0}
        assert found["release"]
        assert found["processes"] == []

    async def test_one_that_is_not_seen_for_twenty_seconds_is_silent_and_forgotten_later(
        self, scene: Scene
    ) -> None:
        operations = scene.memory.operations
        lost = OwnProcess("a:1", "worker", "0.1.0", T0 - timedelta(hours=1))
        await operations.note_process(lost, T0 - timedelta(seconds=21))
        await operations.note_process(OwnProcess("a:2", "serve", "0.1.0", T0), T0)
        rows = (await get(scene, "operations"))["processes"]
        assert [(row["name"], row["kind"], row["status"]) for row in rows] == [
            ("a:2", "serve", "working"),
            ("a:1", "worker", "silent"),
        ]
        assert rows[1]["startedAt"] == "2026-01-15T08:30:00Z"
        await operations.note_process(OwnProcess("a:2", "serve", "0.1.0", T0), T0 + timedelta(minutes=11))
        assert [seen.name for seen in await operations.processes()] == ["a:2"]

    async def test_while_the_memory_is_away_the_reply_tells_it_and_stays_a_200(self) -> None:
        server = FakeServer()
        async with open_scene(server=server) as scene:
            server.connected = False
            found = await get(scene, "operations")
            server.connected = True
        assert [each["status"] for each in found["stores"]] == ["unavailable", "ok"]
        assert found["stores"][0]["detail"]
        assert found["backlog"] is None

    async def test_a_memory_that_takes_no_writes_tells_of_what_is_at_work_all_the_same(
        self, start_redis: StartRedis
    ) -> None:  # F36, F44
        memory = connect(start_redis().url)
        async with open_scene(memory=memory) as scene:
            await memory.operations.note_process(OwnProcess("a:1", "worker", "0.1.0", T0), T0)
            await buried(scene)
            await memory.driver.client.config_set("maxmemory", 1)
            found = await get(scene, "operations")
        assert [each["status"] for each in found["stores"]] == ["unavailable", "ok"]
        assert [each["name"] for each in found["processes"]] == ["a:1"]
        assert found["backlog"]["deadLetters"] == 1


class TestJobs:
    async def test_jobs_tell_whether_they_wait_are_due_or_are_held(self, scene: Scene) -> None:
        schedule = RedisJobSchedule(scene.memory.driver)
        for number, seconds in enumerate((-5, 60)):
            job = Job("expire", ConversationRef("default", f"conv-{number}"))
            await schedule.schedule(DueJob(job, T0 + timedelta(seconds=seconds)))
        assert [(row["conversationId"], row["status"]) for row in (await get(scene, "jobs"))["jobs"]] == [
            ("conv-0", "due"),
            ("conv-1", "waiting"),
        ]
        await schedule.claim(T0, at_most=1, lease_s=15)
        found = await get(scene, "jobs?limit=1")
        assert found["jobs"][0]["status"] == "held"
        assert found["cut"]

    async def test_a_dead_letter_is_replayed_once(self, scene: Scene) -> None:
        await buried(scene)
        (letter,) = (await get(scene, "dead-letters"))["deadLetters"]
        assert (letter["kind"], letter["reason"], letter["attempts"]) == ("mine", "the model was away", 1)
        reply = await scene.post(f"/v1/dead-letters/{letter['id']}/replay", {})
        assert (reply.status_code, reply.json()["dueAt"]) == (200, "2026-01-15T09:30:00Z")
        assert (await get(scene, "dead-letters"))["deadLetters"] == []
        assert [row["status"] for row in (await get(scene, "jobs"))["jobs"]] == ["due"]
        again = await scene.post(f"/v1/dead-letters/{letter['id']}/replay", {})
        assert (again.status_code, again.json()["code"]) == (404, "dead_letter_unknown")

    async def test_another_tenants_jobs_and_letters_are_neither_seen_nor_replayed(
        self, tenants: Scene
    ) -> None:
        await buried(tenants, "acme")
        (letter,) = (await get(tenants, "dead-letters", "acme"))["deadLetters"]
        assert (await get(tenants, "dead-letters", "other"))["deadLetters"] == []
        reply = await tenants.post(
            f"/v1/dead-letters/{letter['id']}/replay", {}, Authorization="Bearer other-key"
        )
        assert reply.json()["code"] == "dead_letter_unknown"
        job = Job("expire", ConversationRef("acme", "conv-9"))
        await RedisJobSchedule(tenants.memory.driver).schedule(DueJob(job, T0))
        assert (await get(tenants, "jobs", "other"))["jobs"] == []
        assert len((await get(tenants, "jobs", "acme"))["jobs"]) == 1


class TestEvents:
    async def test_events_are_paged_from_the_newest_to_the_first(self, scene: Scene) -> None:
        await scene.started()
        await scene.changed("operator")
        await scene.end()
        await scene.work()
        rows, before = [], ""
        while True:
            page = await get(scene, f"events?limit=1{before}")
            rows += page["events"]
            if page["nextBefore"] is None:
                break
            before = f"&before={page['nextBefore']}"
        assert rows == (await get(scene, "events"))["events"]
        assert len(rows) >= 3
        assert {row["conversationId"] for row in rows} == {"conv-1"}
        assert [row["id"] for row in rows] == sorted((row["id"] for row in rows), reverse=True)
        assert all(row["event"] and row["at"] and row["kind"] for row in rows)

    @pytest.mark.parametrize("before", ["x", "1", "99999999999999999999-1", "9999999999999999999-0", "-1-1"])
    async def test_a_cursor_that_is_none_is_refused(self, scene: Scene, before: str) -> None:
        for path in ("events", "model-calls"):
            reply = await scene.http.get(f"/v1/{path}?before={before}")
            assert (reply.status_code, reply.json()["code"]) == (422, "before_invalid")

    async def test_a_cursor_that_is_none_is_told_beside_other_parameters(self, scene: Scene) -> None:  # F36
        for path in ("events", "model-calls"):
            reply = await scene.http.get(f"/v1/{path}?before=zz&limit=0")
            assert [each["code"] for each in reply.json()["errors"]] == ["before_invalid", "limit_invalid"]

    async def test_another_tenants_events_are_passed_over(self, tenants: Scene) -> None:
        headers = {"Authorization": "Bearer acme-key"}
        flow = {"name": "Clinic", "campaignId": "c", "updatedBy": "ada"}
        flow_id = (await tenants.http.post("/v1/flows", json=flow, headers=headers)).json()["id"]
        document = {k: v for k, v in clinic().items() if k != "conversationalFlowId"}
        await tenants.http.post(f"/v1/flows/{flow_id}/versions", json=document, headers=headers)
        contact = {"contactId": "c-1", "conversationId": "conv-1", "channel": "phone", "flowId": flow_id}
        await tenants.post("/v1/handle-new-contact", {**contact, "tag": "latest"}, **headers)
        await tenants.work()
        assert (await get(tenants, "events", "acme"))["events"]
        assert (await get(tenants, "events", "other")) == {"events": [], "nextBefore": None}


def attempt(**changes: Any) -> ModelCallRecord:
    record = {
        "id": "call-1",
        "at": T0,
        "tenant": "default",
        "conversation": "conv-1",
        "purpose": "mining",
        "model": "openai:gpt-4o",
        "status": "ok",
        "reason": None,
        "input_tokens": 1_000,
        "output_tokens": 100,
        "duration_ms": 420,
    }
    return ModelCallRecord(**{**record, **changes})


class TestModelCalls:
    async def test_calls_are_told_with_their_cost_and_without_the_conversation(self, scene: Scene) -> None:
        log = KeptCalls(LoggedCalls(), scene.memory.operations, own_observer())
        await log.write(attempt())
        await log.write(attempt(id="call-2", model="local:llama", status="failed", reason="timeout"))
        await log.write(attempt(id="call-3", tenant=None))
        await log.write(attempt(id="call-4", tenant="other"))
        second, first = (await get(scene, "model-calls"))["calls"]
        assert (first["id"], second["id"]) == ("call-1", "call-2")
        assert first["costUsd"] == price("openai:gpt-4o", 1_000, 100)
        assert first["costUsd"] > 0
        assert (second["costUsd"], second["reason"]) == (None, "timeout")
        assert "conv-1" not in json.dumps([first, second])
        page = await get(scene, "model-calls?limit=1")
        following = await get(scene, f"model-calls?limit=1&before={page['nextBefore']}")
        assert [each["id"] for each in following["calls"]] == ["call-1"]

    async def test_a_call_goes_on_while_the_store_is_away(self, scene: Scene) -> None:
        class Away:
            async def note_call(self, tenant_id: str, call: object) -> None:
                raise RetryLater("memory_unavailable", "no answer")

        observer = own_observer()
        await KeptCalls(LoggedCalls(), Away(), observer).write(attempt())  # type: ignore[arg-type]
        counted = observer.registry.get_sample_value("flow_engine_store_errors_total", {"store": "memory"})
        assert counted == 1


class TestLatency:
    async def test_every_route_that_was_asked_for_is_told(self, scene: Scene) -> None:
        await scene.started()
        await scene.contact(conversationalFlowVersionId="nothing")
        rows = (await get(scene, "operations/latency"))["routes"]
        (row,) = [row for row in rows if row["route"] == "/handle-new-contact"]
        assert (row["method"], row["requests"], row["errors"]) == ("POST", 2, 0)
        assert 0 < row["p50Ms"] <= row["p95Ms"] <= row["p99Ms"]
        assert [each["requests"] for each in rows] == sorted((r["requests"] for r in rows), reverse=True)

    def test_a_quantile_lies_within_its_bucket(self) -> None:
        buckets = [(0.01, 50.0), (0.1, 90.0), (float("inf"), 100.0)]
        assert quantile_ms(buckets, 0.25) == 5.0
        assert quantile_ms(buckets, 0.7) == 55.0
        assert quantile_ms(buckets, 0.99) == 100.0, "beyond the last end that is finite"
        assert quantile_ms([(0.01, 0.0), (float("inf"), 0.0)], 0.5) is None

    def test_replies_of_500_and_above_are_errors(self) -> None:
        labels = 'method="GET",route="/flows"'
        text = (
            "# TYPE flow_engine_http_requests_total counter\n"
            f'flow_engine_http_requests_total{{{labels},status="200"}} 3\n'
            f'flow_engine_http_requests_total{{{labels},status="503"}} 2\n'
            "# TYPE flow_engine_http_request_seconds histogram\n"
            f'flow_engine_http_request_seconds_bucket{{{labels},le="0.01"}} 5\n'
            f'flow_engine_http_request_seconds_bucket{{{labels},le="+Inf"}} 5\n'
            f"flow_engine_http_request_seconds_count{{{labels}}} 5\n"
            f"flow_engine_http_request_seconds_sum{{{labels}}} 0.02\n"
        )
        (row,) = route_latencies(text)
        assert (row["requests"], row["errors"], row["meanMs"], row["p50Ms"]) == (5, 2, 4.0, 5.0)


class TestLive:
    async def test_conversations_that_are_not_closed_are_counted_by_version(self, scene: Scene) -> None:
        for number in (1, 2, 3):
            await scene.started(conversationId=f"conv-{number}", contactId=f"call-{number}")
        await scene.end(conversationId="conv-3", contactId="call-3")
        flow_id = await flow_of(scene)
        counted = {"flowId": flow_id, "versionId": "version-1", "conversations": 2}
        assert await get(scene, "live-conversations") == {"versions": [counted], "cut": False}
        await scene.started(conversationId="conv-4", contactId="call-4")
        assert (await get(scene, "live-conversations"))["versions"] == [counted], "a count is kept"
        scene.clock.advance(seconds=6)
        assert (await get(scene, "live-conversations"))["versions"][0]["conversations"] == 3


class TestHistory:
    async def test_saves_moves_and_splits_are_told_with_who_did_them(self, scene: Scene) -> None:
        flow_id = await flow_of(scene)
        scene.clock.advance(minutes=1)
        await scene.save(flow_id, clinic(_id="version-2"))
        scene.clock.advance(minutes=1)
        for body in (
            {"versionId": "version-1", "updatedBy": "bob"},
            {"split": [{"versionId": "version-1", "weight": 9}, {"versionId": "version-2", "weight": 1}]}
            | {"updatedBy": "eve"},
        ):
            scene.clock.advance(minutes=1)
            reply = await scene.http.put(f"/v1/flows/{flow_id}/tags/prod", json=body)
            assert reply.status_code == 200, reply.text
        found = await get(scene, f"flows/{flow_id}/history")
        split, moved, *saved = found["changes"]
        assert (split["action"], split["by"], split["tag"]) == ("tag_split", "eve", "prod")
        assert [side["versionId"] for side in split["split"]] == ["version-1", "version-2"]
        assert split["fromVersionId"] == "version-1"
        assert (moved["action"], moved["by"], moved["fromVersionId"]) == ("tag_moved", "bob", None)
        assert [(each["action"], each["versionId"]) for each in saved] == [
            ("tag_moved", "version-2"),
            ("version_saved", "version-2"),
            ("tag_moved", "version-1"),
            ("version_saved", "version-1"),
            ("flow_named", None),
        ]
        assert saved[0]["fromVersionId"] == "version-1"
        cut = await get(scene, f"flows/{flow_id}/history?limit=2")
        assert (cut["changes"], cut["cut"]) == ([split, moved], True)

    async def test_a_rollback_by_the_guard_is_told_as_its_own(self, scene: Scene) -> None:
        flow_id = await flow_of(scene)
        await scene.save(flow_id, clinic(_id="version-2"))
        sides = [{"versionId": "version-1", "weight": 1}, {"versionId": "version-2", "weight": 1}]
        guard = {"metric": "refused", "worseBy": 0.2, "minimum": 1}
        body = {"split": sides, "guard": guard, "updatedBy": "eve"}
        await scene.http.put(f"/v1/flows/{flow_id}/tags/prod", json=body)
        record = await scene.flows.flows.get("default", flow_id)
        assert record is not None
        split = next(entry.split for entry in record.tags if entry.tag == "prod")
        assert split is not None
        assert split.guard == Guard("refused", 0.2, 1)
        rolled_back = RolledBack("version-2", "refused", T0 + timedelta(minutes=3), "somebody")
        after = roll_back(record, "prod", split.split_id, rolled_back)
        assert after is not None
        assert await scene.flows.flows.replace("default", after, record.revision)
        latest = (await get(scene, f"flows/{flow_id}/history"))["changes"][0]
        assert (latest["action"], latest["by"], latest["metric"]) == ("rolled_back", "guard", "refused")
        assert (latest["fromVersionId"], latest["versionId"]) == ("version-2", "version-1")
