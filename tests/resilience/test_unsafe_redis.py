"""A Redis that would lose conversations keeps the service from starting, and says why (F44)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from flow_engine.errors import CallTheOperator, RetryLater
from memory.connection import connect
from tests.redis_fixture import CLUSTER, DURABLE, LAST_SLOT, RedisServer, StartRedis, start_cluster
from tests.resilience.fleet import START_TIMEOUT_S, Worker, settings_for

pytestmark = [pytest.mark.long, pytest.mark.anyio]

StartWorker = Callable[..., Worker]


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[StartWorker]:
    workers: list[Worker] = []

    def start(redis: RedisServer, **settings: str) -> Worker:
        workers.append(Worker(tmp_path, settings_for(redis, tmp_path, **settings)))
        return workers[-1]

    yield start
    for worker in workers:
        worker.stop()


def _refusal(worker: Worker) -> str:
    """What a service that does not start says; it must end by itself, with exit code 2."""
    assert worker.process.wait(timeout=START_TIMEOUT_S) == 2
    return worker.log.read_text()


def test_a_redis_that_evicts_and_syncs_nothing_is_refused_with_every_setting_to_change(
    start_redis: StartRedis, start_worker: StartWorker
) -> None:  # F44
    redis = start_redis(("--appendonly", "no", "--maxmemory-policy", "allkeys-lru"))
    said = _refusal(start_worker(redis))
    assert "maxmemory-policy is allkeys-lru, it must be noeviction" in said
    assert "appendonly is no, it must be yes" in said
    assert "FLOW_ENGINE_REDIS_UNSAFE=true" in said
    assert "Traceback" not in said

    overridden = start_worker(redis, REDIS_UNSAFE="true")
    overridden.wait_until_ready()


def test_the_service_does_not_start_when_redis_does_not_answer(
    start_redis: StartRedis, start_worker: StartWorker
) -> None:  # F44
    redis = start_redis()
    redis.kill()
    said = _refusal(start_worker(redis))
    assert "the conversation memory does not answer" in said
    assert "Traceback" not in said


UNSAFE = [
    ("maxmemory-policy", "volatile-ttl", "aof", "maxmemory-policy is volatile-ttl"),
    ("maxmemory-policy", "allkeys-random", "none", "maxmemory-policy is allkeys-random"),
    ("appendonly", "no", "aof", "appendonly is no"),
    ("appendfsync", "no", "aof", "appendfsync is no"),
    ("appendfsync", "everysec", "always", "appendfsync is everysec"),
]
SAFE = [
    ("appendfsync", "everysec", "aof"),
    ("appendfsync", "always", "always"),
    ("appendonly", "no", "none"),
]


@pytest.mark.parametrize(
    ("options", "cluster"), [(DURABLE, False), (CLUSTER, True)], ids=["standalone", "cluster"]
)
async def test_each_setting_is_held_against_the_durability_that_is_asked_for(
    start_redis: StartRedis, options: tuple[str, ...], cluster: bool
) -> None:  # F44, A17
    redis = start_redis(options)
    memory = connect(redis.url, cluster=cluster)
    with redis.client() as client:
        for setting, value, durability, named in UNSAFE:
            before = client.config_get(setting)[setting] or ""
            client.config_set(setting, value)
            with pytest.raises(CallTheOperator, match=named) as refused:
                await memory.check_safety(durability)
            assert refused.value.code == "redis_unsafe"
            client.config_set(setting, before)
        for setting, value, durability in SAFE:
            client.config_set(setting, value)
            await memory.check_safety(durability)
    await memory.close()


@pytest.mark.parametrize(
    ("options", "cluster", "told"),
    [
        (DURABLE, True, "is no cluster.*FLOW_ENGINE_REDIS_CLUSTER"),
        (CLUSTER, False, "is a node of a cluster.*FLOW_ENGINE_REDIS_CLUSTER"),
    ],
    ids=["standalone", "cluster"],
)
async def test_one_that_is_asked_as_what_it_is_not_is_refused(
    start_redis: StartRedis, options: tuple[str, ...], cluster: bool, told: str
) -> None:  # F44
    memory = connect(start_redis(options).url, cluster=cluster)
    for asked in (memory.check_safety("aof"), memory.ready()):
        with pytest.raises(CallTheOperator, match=told):
            await asked
    await memory.close()


@pytest.mark.parametrize("rights", ["-@scripting", "resetchannels"])
async def test_one_whose_user_may_run_no_script_or_publish_nothing_is_not_ready(
    start_redis: StartRedis, rights: str
) -> None:  # F36, F44
    redis = start_redis(DURABLE)
    memory = connect(redis.url)
    await memory.ready()
    with redis.client() as client:
        client.execute_command("ACL", "SETUSER", "default", rights)
        with pytest.raises(CallTheOperator, match="lacks permission"):
            await memory.ready()
    await memory.close()


async def test_every_primary_of_a_cluster_is_asked(start_redis: StartRedis) -> None:  # F44
    half = LAST_SLOT // 2
    one, other = start_redis(CLUSTER, slots=(0, half)), start_redis(CLUSTER, slots=(half + 1, LAST_SLOT))
    with one.client() as client:
        client.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port)
    one.wait_until_ready()
    other.wait_until_ready()
    memory = connect(one.url, cluster=True)
    await memory.check_safety("aof")
    for server in (one, other):
        with server.client() as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
            with pytest.raises(CallTheOperator, match=f"allkeys-lru.*{server.port}"):
                await memory.check_safety("aof")
            client.config_set("maxmemory-policy", "noeviction")
    await memory.close()


async def test_primaries_that_are_away_keep_no_process_from_starting_while_one_answers(
    start_redis: StartRedis,
) -> None:  # F44
    servers = start_cluster(start_redis, 3)
    memory = connect(servers[0].url, cluster=True)
    servers[1].kill()
    with capture_logs() as logs:
        await memory.check_safety("aof")
    (warned,) = (line for line in logs if line["event"] == "redis_primaries_away")
    assert (warned["log_level"], warned["names"]) == ("warning", [f"127.0.0.1:{servers[1].port}"])
    with pytest.raises(RetryLater, match="does not answer"):
        await memory.ready()
    with servers[2].client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(CallTheOperator, match=f"allkeys-lru.*{servers[2].port}"):
        await memory.check_safety("aof")
    for server in (servers[0], servers[2]):
        server.kill()
    with pytest.raises(RetryLater):
        await memory.check_safety("aof")
    await memory.close()


async def test_settings_that_cannot_be_read_are_not_taken_for_safe(start_redis: StartRedis) -> None:  # F44
    redis = start_redis((*DURABLE, "--rename-command", "CONFIG", ""))
    memory = connect(redis.url)
    with pytest.raises(CallTheOperator, match="appendfsync cannot be read"):
        await memory.check_safety("aof")
    await memory.check_safety("none")
    await memory.close()
