"""Readiness tells the truth about Redis, within 5 s and without a restart (A17)."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from flow_engine.errors import CallTheOperator, RetryLater
from memory.connection import RedisMemory, connect
from tests.ports import free_port
from tests.proof.link import Link
from tests.redis_fixture import CLUSTER, DURABLE, LAST_SLOT, StartRedis, end, require_redis, spawn

pytestmark = pytest.mark.anyio
WITHIN_S = 30.0


async def unready(memory: RedisMemory) -> str:
    """What it says, as soon as it is not ready; fails after 30 seconds."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        try:
            await memory.ready()
        except RetryLater as away:
            return away.detail
        await asyncio.sleep(0.05)
    raise AssertionError("still ready")


async def ready(memory: RedisMemory) -> None:
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            return await memory.ready()
        except RetryLater:
            assert time.monotonic() < deadline, "not ready again in time"
            await asyncio.sleep(0.05)


BREAK_AND_MEND = [
    (("maxmemory", "1mb"), ("maxmemory", "0"), "out of memory"),
    (
        ("maxmemory-policy", "allkeys-lru"),
        ("maxmemory-policy", "noeviction"),
        "maxmemory-policy is allkeys-lru",
    ),
    (("appendonly", "no"), ("appendonly", "yes"), "appendonly is no"),
    (("appendfsync", "no"), ("appendfsync", "always"), "appendfsync is no"),
]


@pytest.mark.parametrize("options", [DURABLE, CLUSTER], ids=["standalone", "cluster"])
async def test_each_cause_is_told_and_forgotten(start_redis: StartRedis, options: tuple[str, ...]) -> None:
    # A17, contract 14
    server = start_redis(options)
    memory = connect(server.url, cluster=options is CLUSTER, durability="aof")
    await ready(memory)
    with server.client() as client:
        for broken, mended, told in BREAK_AND_MEND:
            client.config_set(*broken)
            assert told in await unready(memory)
            client.config_set(*mended)
            await ready(memory)
        if options is DURABLE:
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
            assert "takes no writes" in await unready(memory)
            client.execute_command("REPLICAOF", "NO", "ONE")
            await ready(memory)
    await memory.close()


async def test_too_few_replicas_that_confirm_a_write_are_told(start_redis: StartRedis) -> None:  # F44
    primary = start_redis()
    replica = start_redis((*DURABLE, "--replicaof", "127.0.0.1", str(primary.port)))
    memory = connect(primary.url, wait_replicas=1, durability="aof")
    await ready(memory)
    replica.pause()
    assert await unready(memory) == "only 0 of 1 replicas have the write"
    replica.resume()
    await ready(memory)
    await memory.close()


@pytest.mark.parametrize("options", ["", "?client_name=serve"], ids=["multiplexed", "redis-py"])
async def test_another_primary_under_the_same_address_is_found(
    start_redis: StartRedis, options: str
) -> None:  # F44: the one before lives on, as its replica, and keeps every connection
    first, second = start_redis(), start_redis()
    async with Link(free_port(), first.port) as address:
        memory = connect(f"redis://127.0.0.1:{address.port}/0{options}", durability="always")
        await memory.ready()
        address.target = second.port
        with first.client() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", second.port)
        assert "it is a replica" in await unready(memory)
        await ready(memory)
        await memory.operations.note_call("t", {"id": "1"})
        with second.client() as client:
            assert client.keys("*calls*")
        await memory.close()


async def test_the_address_of_a_sentinel_is_told_as_such(tmp_path: Path) -> None:  # F44
    """The start ended in a traceback."""
    require_redis()
    port, config = free_port(), tmp_path / "sentinel.conf"
    config.write_text(f"port {port}\nbind 127.0.0.1\n")
    sentinel = spawn(["redis-server", str(config), "--sentinel"], tmp_path / "log")
    memory = connect(f"redis://127.0.0.1:{port}/0")
    try:
        with pytest.raises(CallTheOperator, match="a Sentinel was asked"):
            await ready(memory)
    finally:
        await memory.close()
        end(sentinel)


async def test_a_primary_of_a_cluster_that_became_a_replica_is_not_asked_for_ever(
    start_redis: StartRedis,
) -> None:  # A17
    first, second = start_redis(CLUSTER), start_redis(CLUSTER)
    with first.client() as one, second.client() as other:
        other.execute_command("CLUSTER", "FLUSHSLOTS")
        one.execute_command("CLUSTER", "MEET", "127.0.0.1", second.port)
        first_id = one.execute_command("CLUSTER", "MYID")
        while first_id not in other.execute_command("CLUSTER", "NODES"):
            await asyncio.sleep(0.02)
        other.execute_command("CLUSTER", "REPLICATE", first_id)
        while other.info("replication").get("master_link_status") != "up":
            await asyncio.sleep(0.02)
        memory = connect(first.url, cluster=True, durability="aof")
        await ready(memory)
        other.execute_command("CLUSTER", "FAILOVER")
        while one.info("replication")["role"] == "master":
            await asyncio.sleep(0.02)
        assert f"it is a replica and takes no writes (127.0.0.1:{first.port})" in await unready(memory)
    await ready(memory)
    await memory.close()


async def test_a_cluster_without_all_of_its_slots_is_not_ready(start_redis: StartRedis) -> None:  # A17
    half = LAST_SLOT // 2
    one, other = start_redis(CLUSTER, slots=(0, half)), start_redis(CLUSTER, slots=(half + 1, LAST_SLOT))
    with one.client() as client:
        client.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port)
    one.wait_until_ready()
    other.wait_until_ready()
    memory = connect(one.url, cluster=True, durability="aof")
    await ready(memory)
    other.kill()
    assert f"(127.0.0.1:{other.port})" in await unready(memory)
    other.start()
    await asyncio.to_thread(other.wait_until_ready)
    await ready(memory)
    await memory.close()


async def test_an_unsafe_redis_that_was_accepted_is_ready(start_redis: StartRedis) -> None:
    server = start_redis(("--appendonly", "no", "--maxmemory-policy", "allkeys-lru"))
    memory = connect(server.url)
    await memory.ready()
    await memory.close()


async def test_one_that_loads_its_data_is_away_and_loses_nothing(start_redis: StartRedis) -> None:  # F44
    server = start_redis()
    with server.client() as client:
        client.mset({f"key {n}": "x" * 100 for n in range(4000)})
        client.bgrewriteaof()
        while client.info("persistence")["aof_rewrite_in_progress"]:
            await asyncio.sleep(0.02)
    server.stop()
    slowly = ("--key-load-delay", "5000", "--loading-process-events-interval-bytes", "1024")
    server.options = (*DURABLE, *slowly)
    server.start()
    memory = connect(server.url, durability="aof")
    told: set[str] = set()
    while "Redis is loading its data" not in told:
        with pytest.raises(RetryLater) as away:
            await memory.check_safety("aof")
        told.add(away.value.detail)
    assert await unready(memory) == "Redis is loading its data"
    with server.client() as client:
        client.config_set("key-load-delay", 0)
    await ready(memory)
    await memory.check_safety("aof")
    await memory.close()


async def test_always_means_during_a_rewrite_too(start_redis: StartRedis) -> None:  # A17
    server = start_redis((*DURABLE, "--no-appendfsync-on-rewrite", "yes"))
    memory = connect(server.url)
    await memory.check_safety("aof")
    with pytest.raises(CallTheOperator, match="no-appendfsync-on-rewrite"):
        await memory.check_safety("always")
    await memory.close()
