"""One connection to each node of a cluster: slots, redirections, a node that goes and comes back (F42)."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import pytest
from redis.crc import key_slot

from flow_engine.errors import CallTheOperator, RetryLater
from memory.cluster import ClusterDriver
from memory.connection import connect
from memory.driver import Script
from tests.redis_fixture import LAST_SLOT, RedisServer, StartRedis, start_cluster, starting_redis

pytestmark = pytest.mark.anyio

NODES = 3
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[RedisServer]]:
    with starting_redis(tmp_path_factory) as start:
        yield start_cluster(start, NODES)


@asynccontextmanager
async def driver_of(server: RedisServer) -> AsyncIterator[ClusterDriver]:
    driver = connect(server.url, cluster=True).driver
    assert isinstance(driver, ClusterDriver)
    yield driver
    await driver.close()


def key_of(node: int, name: str = "key") -> str:
    """A key that the node serves."""
    return next(
        f"{{{name}{number}}}:it"
        for number in itertools.count()
        if key_slot(b"%s%d" % (name.encode(), number)) * NODES // (LAST_SLOT + 1) == node
    )


def connections(server: RedisServer) -> int:
    """Without the one that asks."""
    with server.client() as client:
        return len(client.client_list()) - 1


def node_id(server: RedisServer) -> str:
    with server.client() as client:
        return client.execute_command("CLUSTER", "MYID").decode()


def tell(server: RedisServer, *command: str | int) -> None:
    with server.client() as client:
        client.execute_command(*command)


async def test_requests_at_once_reach_every_node_over_one_connection_each(
    cluster: Sequence[RedisServer],
) -> None:
    async with driver_of(cluster[0]) as driver:
        before = [connections(server) for server in cluster]
        names = [f"many:{number}" for number in range(300)]
        await asyncio.gather(*(driver.zadd(name, {name: 1.5}) for name in names))
        found = await asyncio.gather(*(driver.expire(name, 60) for name in names))
        assert found == [True] * 300
        assert [connections(server) for server in cluster] == [number + 1 for number in before]
    for number, server in enumerate(cluster):
        with server.client() as client:
            for name in names:
                if key_slot(name.encode()) * NODES // (LAST_SLOT + 1) == number:
                    assert client.zscore(name, name) == 1.5


async def test_a_script_runs_where_its_keys_are_and_never_over_two_nodes(
    cluster: Sequence[RedisServer],
) -> None:
    script = Script("return redis.call('INCR', KEYS[1])", "0" * 40, ("key", "other"), (), ())
    async with driver_of(cluster[0]) as driver:
        for node in range(NODES):
            assert await driver.run(script, {"key": key_of(node, "script")}, {}) == 1
        with pytest.raises(CallTheOperator) as refused:
            await driver.run(script, {"key": key_of(0), "other": key_of(1)}, {})
        assert refused.value.code == "memory_refused"


async def test_a_slot_on_its_way_is_asked_for_and_one_that_has_moved_is_followed(
    cluster: Sequence[RedisServer],
) -> None:
    key, here, there = key_of(0, "moving"), cluster[0], cluster[2]
    slot = key_slot(key.encode())
    async with driver_of(here) as driver:
        await driver.zadd(key, {"member": 1.0})
        tell(there, "CLUSTER", "SETSLOT", slot, "IMPORTING", node_id(here))
        tell(here, "CLUSTER", "SETSLOT", slot, "MIGRATING", node_id(there))
        try:
            tell(here, "MIGRATE", "127.0.0.1", there.port, key, 0, 5_000)
            assert await driver.expire(key, 60)
            assert await asyncio.gather(*(driver.expire(key, 60) for _ in range(50))) == [True] * 50
        finally:
            for server in (there, *cluster[:2]):
                tell(server, "CLUSTER", "SETSLOT", slot, "NODE", node_id(there))
        assert await driver.expire(key, 60)
        with here.client() as client:
            asked = client.info("commandstats").get("cmdstat_expire", {}).get("rejected_calls", 0)
        assert await driver.expire(key, 60)
        with here.client() as client:  # from now on it goes there at once
            assert client.info("commandstats").get("cmdstat_expire", {}).get("rejected_calls", 0) == asked


async def test_while_a_node_is_away_others_answer_and_it_is_found_again(start_redis: StartRedis) -> None:
    servers = start_cluster(start_redis, NODES)
    for server in servers:
        tell(server, "CONFIG", "SET", "cluster-require-full-coverage", "no")
    lost, kept = key_of(1), key_of(2)
    async with driver_of(servers[1]) as driver:
        for key in (lost, kept):
            await driver.zadd(key, {"member": 1.0})
        servers[1].kill()
        for _ in range(10):
            with pytest.raises(RetryLater) as away:
                await driver.expire(lost, 60)
            assert away.value.code == "memory_unavailable"
            assert await driver.expire(kept, 60)
        servers[1].start()
        servers[1].wait_until_ready()
        deadline = time.monotonic() + WITHIN_S
        while True:
            try:
                assert await driver.expire(lost, 60)
                break
            except RetryLater:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)


async def test_where_no_node_answers_a_request_is_to_be_tried_again(start_redis: StartRedis) -> None:
    server = start_redis()
    server.kill()
    async with driver_of(server) as driver:
        with pytest.raises(RetryLater) as away:
            await driver.get("key")
        assert away.value.code == "memory_unavailable"
