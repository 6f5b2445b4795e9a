"""Several replicas on one store: clients move, replicas die, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest
from websockets.asyncio.client import connect

from adapters.models.scripted import Says, Stalls
from flow_engine.errors import RetryLater
from flow_engine.ports.chat import LEASE_S, SessionRef
from memory.chat_in_process import InProcessChat
from tests.channels.chat.harness import WEATHER, running_chat
from tests.redis_fixture import RedisServer, StartRedis

pytestmark = pytest.mark.anyio

QUESTION = "What is the weather in Rome?"
TEXT = "It is sunny in Rome, and it will stay so until the weekend at least."


@pytest.fixture
def on_redis(redis_server: RedisServer) -> dict[str, object]:
    return {"redis_url": redis_server.url, "redis_unsafe": True}


async def test_a_client_comes_back_on_another_replica(
    tmp_path: Path, on_redis: dict[str, object]
) -> None:  # C12
    script = [Stalls(0.3, Says(TEXT))]
    async with (
        running_chat(tmp_path, script, settings=on_redis) as one,
        running_chat(tmp_path, script, settings=on_redis) as other,
    ):
        await one.add(WEATHER)
        while len((await other.http.get("/v1/ai-agents")).json()) < 3:  # live there within 2 s
            await asyncio.sleep(0.05)
        async with one.client(user="mover") as client:
            await client.send(type="message", id="m-1", content=QUESTION)
        async with other.client(user="mover", session=client.session, after=0) as back:
            final = await back.final("m-1")
            assert (final["state"], back.text("m-1")) == ("done", TEXT)
            assert back.numbers == list(range(1, final["seq"] + 1))
            await back.send(type="message", id="m-1", content=QUESTION)
            assert (await back.next())["content"]["code"] == "duplicate"
            assert (len(one.model.requests), len(other.model.requests)) == (1, 0)
            assert (await back.say("m-2", QUESTION))["state"] == "done"
            assert len(await one.decisions(client.session)) == 2


async def test_a_connection_on_another_replica_takes_over(
    tmp_path: Path, on_redis: dict[str, object]
) -> None:  # C12
    async with (
        running_chat(tmp_path, settings=on_redis) as one,
        running_chat(tmp_path, settings=on_redis) as other,
        one.client(user="twice") as older,
        other.client(user="twice"),
    ):
        assert (await older.next())["content"]["event"] == "taken_over"


async def test_replicas_from_before_and_after_a_new_redis_know_each_others_tokens(
    tmp_path: Path, redis_server: RedisServer, on_redis: dict[str, object]
) -> None:  # C12
    async with running_chat(tmp_path, settings=on_redis) as one:
        with redis_server.client() as redis:
            redis.flushall()
        async with running_chat(tmp_path, settings=on_redis) as other:
            for maker, taker in (one, other), (other, one):
                token = (await maker.http.post("/v1/chat/tokens", json={"user": "u1"})).json()["token"]
                async with taker.client(query=f"?token={token}") as client:
                    assert client.frames[0]["content"]["event"] == "welcome"


async def test_while_redis_is_away_who_has_a_token_is_told_to_come_later(
    tmp_path: Path, start_redis: StartRedis
) -> None:  # C12, F44
    server = start_redis()
    settings = {"redis_url": server.url, "redis_unsafe": True}
    async with running_chat(tmp_path, settings=settings) as chat:
        token = (await chat.http.post("/v1/chat/tokens", json={"user": "u1"})).json()["token"]
        server.kill()
        async with connect(f"{chat.url}?token={token}", proxy=None) as socket:
            assert orjson.loads(await socket.recv())["content"]["code"] == "memory_unavailable"
            await socket.wait_closed()
            assert socket.close_code == 1013
        refused = await chat.http.post("/v1/chat/tokens", json={"user": "u1"})
        assert (refused.status_code, refused.json()["code"]) == (503, "memory_unavailable")


async def test_a_connection_outlasts_a_restart_of_redis(
    tmp_path: Path, start_redis: StartRedis
) -> None:  # C12
    server = start_redis()
    settings = {"redis_url": server.url, "redis_unsafe": True}
    async with running_chat(tmp_path, [Says(TEXT)], settings=settings) as chat:
        await chat.add(WEATHER)
        async with chat.client(user="patient") as client:
            assert (await client.say("m-1", QUESTION))["state"] == "done"
            with server.client() as redis:
                while any(redis.hexists(key, "holder") for key in redis.keys("*::hold")):
                    await asyncio.sleep(0.01)
            server.kill()
            await client.send(type="message", id="m-2", content=QUESTION)
            refused = await client.next()
            assert (refused["seq"], refused["content"]["code"]) == (None, "memory_unavailable")
            server.start()
            server.wait_until_ready()
            frame = refused
            while not frame["final"]:
                number = len(client.frames)
                await client.send(type="message", id=f"m-{number}", content=QUESTION)
                frame = await client.until(lambda f: f["final"] or f["type"] == "error")
            assert (frame["state"], client.text(frame["id"])) == ("done", TEXT)
            assert client.numbers == list(range(1, frame["seq"] + 1))


class Forgetful(InProcessChat):
    """Answers are whole before it is away, for once, when the first of them is to be taken off the queue."""

    was_away = False

    async def done(self, ref: SessionRef, holder: str, state: bytes) -> None:
        if not self.was_away:
            self.was_away = True
            raise RetryLater("memory_unavailable", "away")
        await super().done(ref, holder, state)


async def test_an_answer_that_was_whole_when_its_replica_died_is_not_begun_again(
    tmp_path: Path,
) -> None:  # C12, C13
    clock = Clock()
    store = Forgetful(monotonic=clock)
    async with running_chat(tmp_path, [Says(TEXT)], shared=(store, store)) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            await client.say("m-1", QUESTION)
            while not store.was_away:
                await asyncio.sleep(0.01)
            clock.ahead += LEASE_S
            assert (await client.say("m-2", QUESTION))["state"] == "done"
            assert (client.text("m-1"), client.text("m-2")) == (TEXT, TEXT)
            assert [frame["id"] for frame in client.frames if frame["final"]] == ["m-1", "m-2"]
            assert client.numbers == list(range(1, len(client.numbers) + 1))
        assert len(chat.model.requests) == 2


async def test_a_message_that_was_cancelled_while_it_waited_is_skipped_by_who_takes_over(
    tmp_path: Path,
) -> None:  # C12, C14
    clock = Clock()
    store = InProcessChat(monotonic=clock)
    async with running_chat(tmp_path, [Stalls(120, Says(TEXT))], shared=(store, store)) as chat:
        await chat.add(WEATHER)
        async with chat.client() as client:
            for message_id in ("m-1", "m-2"):
                await client.send(type="message", id=message_id, content=QUESTION)
            while not chat.model.requests:
                await asyncio.sleep(0.01)
            await client.send(type="cancel", id="m-2")
            await client.final("m-2")
    clock.ahead += LEASE_S
    async with (
        running_chat(tmp_path, [Says(TEXT)], shared=(store, store)) as chat,
        chat.client(session=client.session, after=0) as back,
    ):
        assert (await back.say("m-3", QUESTION))["state"] == "done"
        assert [frame["id"] for frame in back.frames if frame["final"]] == ["m-2", "m-1", "m-3"]
        assert len(chat.model.requests) == 2


async def test_cancelling_reaches_the_replica_that_answers(
    tmp_path: Path, on_redis: dict[str, object]
) -> None:  # C12
    script = [Stalls(120, Says(TEXT))]
    async with (
        running_chat(tmp_path, script, settings=on_redis) as one,
        running_chat(tmp_path, script, settings=on_redis) as other,
    ):
        await one.add(WEATHER)
        async with one.client(user="canceller") as client:
            await client.send(type="message", id="m-1", content=QUESTION)
            while not one.model.requests:
                await asyncio.sleep(0.01)
        async with other.client(user="canceller", session=client.session, after=0) as back:
            await back.send(type="cancel", id="m-1")
            async with asyncio.timeout(30):
                assert (await back.final("m-1"))["state"] == "refused"


@dataclass
class Clock:
    ahead: float = 0.0

    def __call__(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead


async def test_answers_of_a_replica_that_died_end_on_another(tmp_path: Path) -> None:  # C12
    clock = Clock()
    store = InProcessChat(monotonic=clock)
    shared = (store, store)
    slow = [Stalls(9, Says("never")), Stalls(9, Says("never"))]
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(running_chat(tmp_path, [Says(TEXT)], shared=shared))
        await other.add(WEATHER)
        dying = AsyncExitStack()
        one = await dying.enter_async_context(running_chat(tmp_path, slow, shared=shared))
        clients = []
        for user in ("unseen", "seen"):
            async with one.client(user=user) as client:
                await client.send(type="message", id="m-1", content=QUESTION)
                await asyncio.sleep(0.05)
            clients.append(client)
        ref = next(ref for ref in await _held(store) if ref.session_id == clients[1].session)
        frame = b'{"type":"dialogue","state":"acting","content":"It is","id":"m-1","final":false}'
        await store.append(ref, frame, None)
        await dying.aclose()
        clock.ahead += LEASE_S
        async with other.client(user="unseen", session=clients[0].session, after=0) as back:
            assert ((await back.final("m-1"))["state"], back.text("m-1")) == ("done", TEXT)
        async with other.client(user="seen", session=clients[1].session, after=0) as back:
            final = await back.final("m-1")
            assert (final["state"], back.of("m-1", "error")[0]["content"]["code"]) == (
                "refused",
                "interrupted",
            )
            assert back.numbers == [1, 2, 3]
        assert len(other.model.requests) == 1


async def _held(store: InProcessChat) -> list:  # type: ignore[type-arg]
    return list(store._sessions)
