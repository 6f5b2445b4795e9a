"""The model learns what another has written into the memory, without being asked to look (F31, V2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from flow_engine.ports.dialogue import ConversationRef
from memory.keys import ConversationKeys
from service.memory_notices import RedisNotices
from tests.api.harness import entry
from tests.channels.voice.flow.flow_call import eventually, flow_call, health_booking
from tests.channels.voice.flow.test_prompt_refresh import looked, prompt, watched
from tests.ports import free_port
from tests.redis_fixture import RedisServer

pytestmark = pytest.mark.anyio


class Told:
    """Implements `MemoryNotices`: tells what the test tells."""

    def __init__(self) -> None:
        self.followers: dict[str, Callable[[], None]] = {}

    async def follow(self, conversation_id: str, changed: Callable[[], None]) -> None:
        self.followers[conversation_id] = changed

    async def unfollow(self, conversation_id: str, changed: Callable[[], None]) -> None:
        assert self.followers.pop(conversation_id) == changed


async def test_a_value_that_another_has_written_reaches_the_model_during_silence() -> None:  # F31, V2
    told = Told()
    async with flow_call(health_booking(), notices=told) as call:
        await call.opened()
        [(conversation_id, changed)] = told.followers.items()
        before = call.reconfigurations()
        await call.scene.written(entry("nomePaziente", "Ada"), conversation=conversation_id)
        changed()
        await eventually(lambda: call.reconfigurations() > before)
        assert "Ada" in call.settings.instructions
        await call.over()
        assert told.followers == {}


async def test_many_notices_at_once_are_one_look_more() -> None:  # F31
    watch, engine, model = watched()
    for _ in range(5):
        watch.noticed()
    await engine.asked(1)
    watch.noticed()
    engine.waiting[0].set_result(prompt("a"))
    await engine.asked(2)
    engine.waiting[1].set_result(prompt("b", revision=2, memory=2))
    await eventually(lambda: model.prompts == ["a", "b"])
    await looked(watch, engine, prompt("c", revision=3, memory=3))
    assert model.prompts == ["a", "b", "c"]
    await watch.stop()


@asynccontextmanager
async def notices(url: str) -> AsyncGenerator[RedisNotices]:
    made = RedisNotices(url, "acme", cluster=False)
    try:
        yield made
    finally:
        await made.aclose()


async def test_each_conversation_hears_of_its_own_changes(redis_server: RedisServer) -> None:  # F31
    heard: list[str] = []

    def first() -> None:
        heard.append("c 1")

    def second() -> None:
        heard.append("c 2")

    async with notices(redis_server.url) as followed, Redis.from_url(redis_server.url) as client:
        await followed.follow("c 1", first)
        await followed.follow("c 2", second)
        for conversation_id in ("c 1", "c 2", "c 3"):
            channel = ConversationKeys.of(ConversationRef("acme", conversation_id)).notices
            await client.publish(channel, b"{}")
        await eventually(lambda: sorted(heard) == ["c 1", "c 2"])
        await followed.unfollow("c 1", first)
        for conversation_id in ("c 1", "c 2"):
            await client.publish(ConversationKeys.of(ConversationRef("acme", conversation_id)).notices, b"{}")
        await eventually(lambda: sorted(heard) == ["c 1", "c 2", "c 2"])


async def test_without_redis_a_call_goes_on(capsys: pytest.CaptureFixture[str]) -> None:  # F31
    async with notices(f"redis://127.0.0.1:{free_port()}") as followed:
        async with asyncio.timeout(10):
            await followed.follow("c 1", lambda: None)
    told = capsys.readouterr().out
    assert "memory_not_followed" in told
    assert "Error 111 connecting" in told  # F46


async def test_a_redis_that_refuses_ends_no_call_either(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:  # F31
    async with notices(f"{redis_server.url}/99999") as followed:
        await followed.follow("c 1", lambda: None)
    assert "memory_not_followed" in capsys.readouterr().out
