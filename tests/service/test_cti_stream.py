"""What a core CTI writes into its stream has the effect of the same requests, at least once (F40)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from adapters.jobs import JobRunner, Tuning, Worker
from api.conversations import CtiIntake
from flow_engine.errors import CallTheOperator, RetryLater
from flow_engine.ports.clock import SystemClock
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import Claim, Job
from flow_engine.ports.telemetry import IDS_LOGGED, Unobserved
from flow_engine.use_cases.conversations import Conversations
from flow_engine.use_cases.dialogue import DialogueService
from flow_engine.use_cases.transactor import Transactor
from memory.connection import RedisMemory, connect
from memory.streams import CtiStream, buried_key
from service.settings import Settings
from service.wiring import build_service
from tests.api.harness import Scene, clinic, open_scene
from tests.flow_engine.listening.test_mining import dependencies_of
from tests.redis_fixture import RedisServer, StartRedis

pytestmark = pytest.mark.anyio
STREAM = "cti"
LEASE_S = 60.0
UTTERANCE = {
    "contactId": "call-1",
    "conversationId": "conv-1",
    "messageId": "m1",
    "ts": "2026-01-15T09:31:00Z",
    "type": "message",
    "src": "user",
    "body": "Good morning",
}
END = {"contactId": "call-1", "conversationId": "conv-1", "reason": "user_hangup"}
NOW = datetime(2026, 1, 15, tzinfo=UTC)


@dataclass
class Exchange:
    """A service on a real Redis, the CTI's end of the stream, and two processes that read it."""

    scene: Scene
    memory: RedisMemory
    readers: list[CtiStream]
    runners: list[JobRunner]

    async def told(self, kind: str, body: object, **more: str) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        await self.memory.driver.client.xadd(STREAM, {"kind": kind, "body": text, **more})

    async def claimed(self, reader: int = 0, at_most: int = 9) -> list[Claim]:
        return list(await self.readers[reader].claim(NOW, at_most=at_most, lease_s=LEASE_S))

    async def read(self, reader: int = 0) -> None:
        """Run all that is waiting, in order."""
        for claim in await self.claimed(reader):
            await self.runners[reader].run(claim)

    async def time_passes(self, seconds: float) -> None:
        """For what is held: Redis counts from when an entry was touched last."""
        redis = self.memory.driver.client
        for held in await redis.xpending_range(STREAM, "flow-engine", "-", "+", 99):
            await redis.xclaim(
                STREAM,
                "flow-engine",
                held["consumer"],
                0,
                [held["message_id"]],
                idle=held["time_since_delivered"] + int(seconds * 1_000),
                retrycount=held["times_delivered"],
                justid=True,
            )

    async def buried(self) -> list[dict[str, str]]:
        found = await self.memory.driver.client.xrange(buried_key(STREAM))
        return [{name.decode(): value.decode() for name, value in fields.items()} for _, fields in found]

    async def pending(self) -> int:
        return (await self.memory.driver.client.xpending(STREAM, "flow-engine"))["pending"]


@asynccontextmanager
async def exchange(server: RedisServer, attempts: int = 3) -> AsyncIterator[Exchange]:
    memory = connect(server.url)
    async with open_scene(clinic(), memory=memory) as scene:
        await scene.started()
        shared = dependencies_of(scene)
        agents = Conversations(Transactor(shared), shared), DialogueService(Transactor(shared), shared)
        readers = [CtiStream(memory.driver, STREAM) for _ in range(2)]
        tuning = Tuning(lease_s=LEASE_S, attempts=attempts, first_pause_s=0.0)
        runners = [
            JobRunner(
                stream,
                {"cti": CtiIntake(*agents, stream.fields).take},
                SystemClock(),
                Unobserved(),
                tuning,
            )
            for stream in readers
        ]
        yield Exchange(scene, memory, readers, runners)


async def test_utterances_and_ends_have_the_effect_of_requests(
    start_redis: StartRedis,
) -> None:  # F40, weakness a
    async with exchange(start_redis()) as cti:
        await cti.told("utterance", UTTERANCE, tenant="default")
        await cti.told("contact_ended", END)
        await cti.read()
        events = await cti.scene.events()
        assert [e["body"] for e in events if e["type"] == "message"] == ["Good morning"]
        ended = [e["body"] for e in events if isinstance(e["body"], dict)]
        assert {
            "subtype": "contact_ended",
            "by": "user",
            "reason": "user_hangup",
            "status": "closed",
        } in ended
        assert (await cti.pending(), await cti.buried()) == (0, [])
        await cti.told("utterance", UTTERANCE)  # what comes twice has its effect once
        await cti.read()
        assert [e["body"] for e in await cti.scene.events() if e["type"] == "message"] == ["Good morning"]


async def test_a_command_waits_on_where_the_stream_brings_the_message(
    start_redis: StartRedis,
) -> None:  # F25, F40
    async with exchange(start_redis()) as cti:
        await cti.scene.changed("operator")
        cti.scene.clock.advance(minutes=2)  # nobody was found
        await cti.told("utterance", UTTERANCE)
        await cti.read()
        moment = (await cti.scene.http.get("/v1/conversations/conv-1/at/3")).json()
        assert orjson.loads(moment["reply"])["command"] is None  # stepped again, it waits on as well
        assert (await cti.scene.prompt())["command"] == "/human_task_failed timeout"


async def test_an_entry_whose_reader_is_killed_is_read_by_another(start_redis: StartRedis) -> None:
    async with exchange(start_redis()) as cti:
        await cti.told("utterance", UTTERANCE)
        (held,) = await cti.claimed(0)
        assert await cti.claimed(1) == []
        await cti.time_passes(1.2 * LEASE_S)
        (again,) = await cti.claimed(1)
        assert (again.job.subject, again.attempt) == (held.job.subject, 2)
        assert not await cti.readers[0].renew(held, NOW, lease_s=LEASE_S)
        await cti.readers[0].finish(held)
        assert await cti.pending() == 1  # whoever was late settles nothing
        await cti.runners[1].run(again)
        assert await cti.pending() == 0


async def test_one_that_is_held_for_long_is_not_taken_over(start_redis: StartRedis) -> None:
    async with exchange(start_redis()) as cti:
        await cti.told("utterance", UTTERANCE)
        (held,) = await cti.claimed(0)
        for _ in range(4):
            await cti.time_passes(LEASE_S / 3)
            assert await cti.readers[0].renew(held, NOW, lease_s=LEASE_S)
        assert await cti.claimed(1) == []
        await cti.readers[0].retry(held, datetime.now(UTC) - timedelta(seconds=1))
        assert len(await cti.claimed(1)) == 1


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        (
            "contact_started",
            END,
            "kind 'contact_started' is unknown; accepted are contact_ended and",
        ),
        ("contact_ended", "{", "json_invalid"),
        ("contact_ended", {**END, "raeson": "x"}, "/raeson"),
        ("utterance", {**UTTERANCE, "ts": "0001-01-01T00:00:00Z"}, "/ts"),
        ("utterance", {**UTTERANCE, "body": "x" * 40_000}, "utterance_too_long"),
        ("utterance", "\udcff", "json_invalid"),
    ],
)
async def test_what_nobody_can_take_is_buried_at_once_and_holds_up_nothing(
    start_redis: StartRedis, kind: str, body: Any, reason: str
) -> None:
    async with exchange(start_redis()) as cti:
        if body == "\udcff":
            await cti.memory.driver.client.xadd(STREAM, {"kind": kind, "body": b"\xff\xfe"})
        else:
            await cti.told(kind, body, origin="pbx-7")
        await cti.told("contact_ended", END)
        with capture_logs(processors=[merge_contextvars]) as logs:
            claims = await cti.claimed()
            for claim in claims:
                await cti.runners[0].run(claim)
        (line,) = [line for line in logs if line["log_level"] == "error"]
        assert (line["event"], line["subject"]) == ("job_buried", claims[0].job.subject)  # F46
        assert "conversation_id" not in line
        (buried,) = await raw_buried(cti)
        assert reason in buried[b"reason"].decode()
        assert (buried[b"kind"].decode(), buried[b"attempts"]) == (kind, b"1")
        assert buried[b"id"].decode() == claims[0].job.subject
        assert await cti.pending() == 0
        assert (await cti.scene.end()).json()["status"] == "closed"


async def test_what_was_buried_is_kept_for_a_month(start_redis: StartRedis) -> None:  # F46
    async with exchange(start_redis()) as cti:
        redis = cti.memory.driver.client
        now = (await redis.time())[0]
        for days in (31, 29):
            old = {"kind": "utterance", "id": days}
            await redis.xadd(buried_key(STREAM), old, f"{now - days * 86_400}000-0")
        await cti.told("utterance", "{")
        await cti.read()
        kept, new = await cti.buried()
        assert (kept["id"], new["reason"].partition(":")[0]) == ("29", "json_invalid")
        assert 29 < await redis.ttl(buried_key(STREAM)) / 86_400 <= 30


@pytest.mark.parametrize(
    "fields", [{b"\xff": "x"}, {f"field {number}": "x" for number in range(5_000)}], ids=["no text", "many"]
)
async def test_an_entry_of_any_fields_is_buried_and_holds_up_nothing(
    start_redis: StartRedis, fields: dict[str | bytes, str]
) -> None:  # F40, F41
    async with exchange(start_redis()) as cti:
        await cti.memory.driver.client.xadd(STREAM, {"kind": "hangup", **fields})
        await cti.told("contact_ended", END)
        await cti.read()
        (buried,) = await raw_buried(cti)
        assert buried[b"kind"] == b"hangup"
        assert buried[b"reason"].startswith(b"kind 'hangup' is unknown")
        assert await cti.pending() == 0
        assert (await cti.scene.end()).json()["status"] == "closed"


@pytest.mark.parametrize(("kind", "body"), [("utterance", UTTERANCE), ("contact_ended", END)])
async def test_what_is_logged_of_an_entry_has_the_ids_that_it_names(
    start_redis: StartRedis, kind: str, body: Any
) -> None:
    async with exchange(start_redis()) as cti:
        shared = dependencies_of(cti.scene)
        agents = Conversations(Transactor(shared), shared), DialogueService(Transactor(shared), shared)
        entry = {"kind": kind.encode(), "body": json.dumps(body).encode()}
        job = Job("cti", ConversationRef("default", ""), "1-0")
        await CtiIntake(*agents, lambda job: entry).take(job)
        assert IDS_LOGGED.get() == {"conversation_id": "conv-1", "contact_id": "call-1"}  # F46


async def raw_buried(cti: Exchange) -> list[dict[bytes, bytes]]:
    return [fields for _, fields in await cti.memory.driver.client.xrange(buried_key(STREAM))]


async def test_a_contact_that_is_not_there_yet_is_waited_for(start_redis: StartRedis) -> None:
    async with exchange(start_redis()) as cti:
        await cti.told("utterance", {**UTTERANCE, "conversationId": "conv-2"})
        await cti.read()
        assert (await cti.pending(), await cti.buried()) == (1, [])
        await cti.scene.started(conversationId="conv-2")
        await cti.time_passes(1.2 * LEASE_S)
        await cti.read()
        assert await cti.pending() == 0
        told = await cti.scene.events("conv-2")
        assert [e["body"] for e in told if e["type"] == "message"] == ["Good morning"]


async def test_one_that_never_comes_is_buried_after_its_attempts(start_redis: StartRedis) -> None:
    async with exchange(start_redis(), attempts=2) as cti:
        await cti.told("contact_ended", {**END, "conversationId": "nobody"}, tenant="other")
        for _ in range(2):
            await cti.read()
            await cti.time_passes(1.2 * LEASE_S)
        (buried,) = await cti.buried()
        assert (buried["reason"], buried["attempts"], buried["tenant"]) == (
            "conversation_unknown",
            "2",
            "other",
        )
        ref = ConversationRef("other", "nobody")
        assert (await cti.memory.conversations.load(ref)).session is None


async def test_one_whose_store_is_away_is_waited_for_without_end(start_redis: StartRedis) -> None:  # F41
    async def away(_: Job) -> None:
        raise RetryLater("memory_unavailable", "away")

    async with exchange(start_redis(), attempts=2) as cti:
        await cti.told("contact_ended", END)
        runner = JobRunner(cti.readers[0], {"cti": away}, SystemClock(), Unobserved(), cti.runners[0].tuning)
        for _ in range(4):
            (claim,) = await cti.claimed()
            assert claim.attempt == 1
            await runner.run(claim)
            assert await cti.claimed() == []
            await cti.time_passes(1.2 * LEASE_S)
        assert await cti.buried() == []
        await cti.read()
        assert (await cti.pending(), await cti.buried()) == (0, [])


async def test_the_service_reads_the_stream_that_is_set(start_redis: StartRedis, tmp_path: Path) -> None:
    server = start_redis()
    settings = Settings(redis_url=server.url, data_dir=tmp_path, cti_stream=STREAM)
    service = build_service(settings, host="127.0.0.1", port=8080)
    memory = connect(server.url)
    transport = httpx.ASGITransport(app=service.app)
    async with (
        service.opened(),
        Worker(service.jobs[1]).running(),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
    ):
        start = {**END, "conversationalFlowVersionId": "health-booking-v1", "channel": "chat"}
        started = await http.post(
            "/v1/handle-new-contact", json={k: v for k, v in start.items() if k != "reason"}
        )
        assert started.status_code == 200, started.text
        await memory.driver.client.xadd(STREAM, {"kind": "contact_ended", "body": json.dumps(END)})
        async with asyncio.timeout(20):
            while (await http.get("/v1/prompt/conv-1")).status_code != 409:
                await asyncio.sleep(0.05)
    await memory.close()


def test_it_needs_a_redis_of_its_own() -> None:
    with pytest.raises(CallTheOperator) as refused:
        build_service(Settings(cti_stream=STREAM, samples=False), host="127.0.0.1", port=0)
    assert refused.value.code == "redis_needed"
