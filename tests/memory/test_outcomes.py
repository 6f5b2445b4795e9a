"""The sums of a split on Redis: added to, replaced, bounded; the same on one server and on a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from flow_engine.ports.outcomes import CountedConversation, OutcomeCounts
from memory.connection import RedisMemory, connect
from memory.designing import LIFETIME_S, RedisOutcomes
from memory.in_process import embedded
from memory.keys import outcome_keys
from tests.redis_fixture import RedisServer, client_of

pytestmark = pytest.mark.anyio
VERSION = "versión 1:a|b="


@pytest.fixture(params=["embedded", "server", "cluster"])
async def memory(request: pytest.FixtureRequest) -> AsyncIterator[RedisMemory]:
    if request.param == "embedded":
        opened = embedded()
    else:
        fixture = "redis_server" if request.param == "server" else "redis_cluster"
        server: RedisServer = request.getfixturevalue(fixture)
        opened = connect(server.url, cluster=request.param == "cluster")
    yield opened
    await opened.close()


def counted(split: str, conversation: str, order: int, **counts: int) -> CountedConversation:
    return CountedConversation(split, VERSION, conversation, order, counts)


async def sums(store: OutcomeCounts, split: str) -> dict[str, int]:
    found = await store.read("acme", split)
    return {name: number for name, number in found.get(VERSION, {}).items() if number}


async def test_what_was_counted_of_a_conversation_is_replaced(memory: RedisMemory) -> None:
    split, store = uuid4().hex, memory.outcomes
    for _ in range(2):
        await store.put("acme", counted(split, "a", 3, conversations=1, turns=4))
    await store.put("acme", counted(split, "b", 1, conversations=1, turns=1))
    assert await sums(store, split) == {"conversations": 2, "turns": 5}
    await store.put("acme", counted(split, "a", 4, conversations=1, turns=6, refused=1))
    assert await sums(store, split) == {"conversations": 2, "turns": 7, "refused": 1}
    await store.put("acme", counted(split, "a", 3, conversations=1, turns=99))
    assert await sums(store, split) == {"conversations": 2, "turns": 7, "refused": 1}
    assert await store.read("other", split) == {}
    keys = outcome_keys("acme", split)
    for key in keys.values():
        assert 0 < await client_of(memory).ttl(key) <= LIFETIME_S
    await client_of(memory).delete(*keys.values())


async def test_versions_and_results_of_any_name_are_kept_apart(memory: RedisMemory) -> None:
    split, store = uuid4().hex, memory.outcomes
    names = {"result:sì = 5": 1, "result:a:b c": 1, "turns²": 9}
    await store.put("acme", counted(split, "a", 1, **names))
    await store.put("acme", CountedConversation(split, "v2", "b", 1, {"result:a:b c": 1}))
    assert await store.read("acme", split) == {VERSION: names, "v2": {"result:a:b c": 1}}
    await client_of(memory).delete(*outcome_keys("acme", split).values())


async def test_numbers_beyond_a_lua_number_stay_exact() -> None:
    split, store = uuid4().hex, embedded().outcomes
    await store.put("acme", counted(split, "a", 1, durations=2**60 + 1))
    await store.put("acme", counted(split, "b", 1, durations=2**60 + 1))
    await store.put("acme", counted(split, "b", 2, durations=1))
    assert await sums(store, split) == {"durations": 2**60 + 2}


async def test_only_the_newest_conversations_can_be_replaced(memory: RedisMemory) -> None:
    split, store = uuid4().hex, RedisOutcomes(memory.driver, kept=4)
    for number in range(9):
        await store.put("acme", counted(split, f"c{number}", 1, conversations=1))
    keys = outcome_keys("acme", split)
    assert 2 <= await client_of(memory).hlen(keys["counted"]) <= 4
    await store.put("acme", counted(split, "c8", 2, conversations=1))
    assert await sums(store, split) == {"conversations": 9}
    await store.put("acme", counted(split, "c0", 2, conversations=1))
    assert await sums(store, split) == {"conversations": 10}
    await client_of(memory).delete(*keys.values())
