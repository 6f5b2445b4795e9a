"""Reporting in a whole service: from a request to the stream and the webhook (F40-F42, F45)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from adapters.jobs import Worker
from flow_engine.errors import CallTheOperator
from flow_engine.ports.jobs import DueJob, Job
from flow_engine.runtime.storage import NewMemory
from memory.connection import connect
from memory.keys import JOBS_KEY
from memory.manager import MemoryManager
from memory.redis_py import RedisPyDriver
from service.background import dead_letters
from service.settings import Settings
from service.wiring import build_service
from tests.adapters.outbound.local_server import ok, serving
from tests.memory.conversation_samples import T0, Conversation, empty_memory, session
from tests.redis_fixture import RedisServer, StartRedis

pytestmark = pytest.mark.anyio
SECRET = "sixteen characters"


async def test_what_happens_in_a_conversation_reaches_the_webhook_by_itself(tmp_path: Path) -> None:
    # F40, F42
    async with serving(ok(b"", status=b"503 Busy"), ok()) as receiver:
        settings = Settings.model_validate(
            {
                "data_dir": tmp_path,
                "outbound_allow": f"127.0.0.1:{receiver.port}",
                "webhook_url": f"http://127.0.0.1:{receiver.port}/",
                "webhook_secret": SECRET,
            }
        )
        bodies = await lived_through(settings, receiver)
    told = [body["body"]["subtype"] for body in bodies]
    assert told == ["contact_started", "contact_started", "contact_ended", "conversation_closed"]
    assert bodies[0]["eventId"] == bodies[1]["eventId"]


async def lived_through(settings: Settings, receiver: Any) -> list[Any]:
    """A contact starts and ends; what was posted of it, the attempt that met a 503 first. What nobody could
    judge is told later."""
    service = build_service(settings, host="127.0.0.1", port=8080)
    transport = httpx.ASGITransport(app=service.app)
    async with service.opened(), Worker(service.jobs[0]).running():
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            ids = {"contactId": "c-1", "conversationId": "conv-1"}
            start = {**ids, "conversationalFlowVersionId": "health-booking-v1", "channel": "chat"}
            assert (await http.post("/v1/handle-new-contact", json=start)).status_code == 200
            end = {**ids, "reason": "user_hangup"}
            assert (await http.post("/v1/handle-end-contact", json=end)).status_code == 200
        async with asyncio.timeout(15):
            while len(receiver.requests) < 4:
                await asyncio.sleep(0.02)
    return [orjson.loads(request.partition(b"\r\n\r\n")[2]) for request in receiver.requests[:4]]


async def test_what_is_answered_with_5xx_becomes_a_dead_letter_and_holds_up_no_other(
    start_redis: StartRedis, tmp_path: Path
) -> None:  # A8, contract 15
    heard: list[str] = []

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        conversation = orjson.loads(request.partition(b"\r\n\r\n")[2])["conversationId"]
        heard.append(conversation)
        writer.write(ok(b"", status=b"500 Broken" if conversation == "conv-bad" else b"204 Taken"))
        await writer.drain()

    async with serving(answer) as receiver:
        settings = Settings.model_validate(
            {
                "data_dir": tmp_path,
                "redis_url": start_redis().url,
                "job_attempts": 2,
                "outbound_allow": f"127.0.0.1:{receiver.port}",
                "webhook_url": f"http://127.0.0.1:{receiver.port}/",
                "webhook_secret": SECRET,
            }
        )
        service = build_service(settings, host="127.0.0.1", port=8080)
        transport = httpx.ASGITransport(app=service.app)
        async with (
            service.opened(),
            Worker(service.jobs[0]).running(),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
        ):
            for name in ("conv-bad", "conv-good"):
                ids = {"contactId": "c-1", "conversationId": name}
                start = {**ids, "conversationalFlowVersionId": "health-booking-v1", "channel": "chat"}
                assert (await http.post("/v1/handle-new-contact", json=start)).status_code == 200
            async with asyncio.timeout(30):
                while "conv-good" not in heard:
                    await asyncio.sleep(0.02)
                while not (letters := await dead_letters(settings, 9)):
                    await asyncio.sleep(0.05)
    (letter,) = letters
    assert (letter.job.kind, letter.job.conversation.conversation_id) == ("deliver", "conv-bad")
    assert (letter.attempts, letter.reason) == (2, "the webhook answered with status 500")
    assert heard.count("conv-bad") == 2


async def test_nothing_has_waited_since_before_a_service_began(tmp_path: Path) -> None:  # F36, F41
    began = datetime.now(UTC)
    service = build_service(Settings(data_dir=tmp_path), host="127.0.0.1", port=8080)
    transport = httpx.ASGITransport(app=service.app)
    async with (
        service.opened(),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
    ):
        backlog = (await http.get("/v1/operations")).json()["backlog"]
    assert backlog["due"] == 1, "what was to be removed while nothing ran"
    assert backlog["oldestS"] <= (datetime.now(UTC) - began).total_seconds()


def test_a_webhook_without_a_secret_does_not_start(tmp_path: Path) -> None:  # F40
    settings = Settings.model_validate({"data_dir": tmp_path, "webhook_url": "https://cti.example.com/"})
    with pytest.raises(CallTheOperator, match="webhook_secret_missing"):
        build_service(settings, host="127.0.0.1", port=8080)


def test_the_secret_is_never_shown() -> None:  # F46
    settings = Settings.model_validate({"webhook_url": "https://x.example/", "webhook_secret": SECRET})
    assert SECRET not in f"{settings!r} {settings.webhook_secret}"


class EagerWorker:
    """A client on which a worker does every job, finding nothing, just before each script runs."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def evalsha(self, *args: Any) -> Any:
        await self._client.delete(JOBS_KEY)
        return await self._client.evalsha(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


async def test_on_a_cluster_a_worker_that_looks_too_early_forgets_no_job(redis_cluster: RedisServer) -> None:
    # F41
    memory = connect(redis_cluster.url, cluster=True)
    talk = Conversation.fresh(memory)
    job = Job("relay", talk.ref)
    driver = RedisPyDriver(EagerWorker(memory.driver.client))
    driver.single_node = False
    manager = MemoryManager(driver)
    changes = talk.changes(
        0,
        session=session(talk.ref),
        events=(b"{}",),
        jobs=(DueJob(job, T0),),
        new_memory=NewMemory({}, empty_memory()),
    )
    await manager.commit(talk.ref, changes)
    assert await memory.driver.client.zscore(JOBS_KEY, job.name) is not None
    await memory.close()
