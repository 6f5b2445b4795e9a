"""Connections to Redis by URL, standalone or cluster.

Whether a Redis may hold conversations (F44) is decided here too: it must not evict, and must be as durable as
the installation asks for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote

import structlog

from flow_engine.errors import CallTheOperator, RetryLater
from memory.cluster import ClusterDriver
from memory.designing import RedisOutcomes, RedisTries
from memory.driver import Driver, ServerState
from memory.held import HELD_BYTES, HeldConversations
from memory.journal import RedisJournal
from memory.keys import READY_KEY, snapshots_of
from memory.listing import RedisConversationList
from memory.manager import MemoryManager, RedisDefinitions
from memory.multiplexed import Address, MultiplexedDriver
from memory.operations import RedisOperations
from memory.redis_py import driver_to

READY_KEY_LIFETIME_S = 60

log: Any = structlog.get_logger("flow_engine.memory")

Durability = Literal["none", "aof", "always"]

_STRONG_ENOUGH: Mapping[Durability, tuple[str, ...]] = {"aof": ("everysec", "always"), "always": ("always",)}


def _told_of(server: ServerState, problems: Iterable[str]) -> list[str]:
    return [f"{problem} ({server.name})" if server.name else problem for problem in problems]


def _losses(server: ServerState, durability: Durability) -> Iterator[str]:
    if server.eviction_policy != "noeviction":
        yield f"maxmemory-policy is {server.eviction_policy}, it must be noeviction"
    if durability == "none":
        return
    if not server.appends:
        yield "appendonly is no, it must be yes"
        return
    if server.sync is None:
        yield "appendfsync cannot be read, CONFIG is refused"
    elif server.sync not in _STRONG_ENOUGH[durability]:
        yield f"appendfsync is {server.sync}, durability {durability!r} needs more"
    if durability == "always" and server.syncs_while_rewriting is False:
        yield "no-appendfsync-on-rewrite is yes, durability 'always' needs no"


class RedisConversationIndex:
    """Implements `ConversationIndex` by scanning a tenant's snapshots: for migrations, which are rare. Raises
    RetryLater when Redis does not answer."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def on_version(self, tenant_id: str, version_id: str) -> AsyncIterator[str]:
        start, pattern, end = snapshots_of(tenant_id)
        seen: set[str] = set()
        async for name in self._driver.scan(pattern):
            if name not in seen and await self._driver.hget(name, "versionId") == version_id.encode():
                seen.add(name)
                yield unquote(name.removeprefix(start).removesuffix(end))


@dataclass(frozen=True, slots=True)
class RedisMemory:
    """An open connection with the stores on it. `durability` is what a ready server keeps up; without it, as
    with FLOW_ENGINE_REDIS_UNSAFE, only a refusal of writes counts."""

    driver: Driver
    conversations: MemoryManager
    definitions: RedisDefinitions
    index: RedisConversationIndex
    journal: RedisJournal
    listing: RedisConversationList
    outcomes: RedisOutcomes
    operations: RedisOperations
    tries: RedisTries
    durability: Durability | None = None

    @classmethod
    def on(
        cls, driver: Driver, durability: Durability | None = None, held_bytes: int = HELD_BYTES
    ) -> RedisMemory:
        """The stores on an open driver. So many bytes of stored conversations are held decoded."""
        manager = MemoryManager(driver, held=HeldConversations(held_bytes))
        return cls(
            driver,
            manager,
            RedisDefinitions(driver),
            RedisConversationIndex(driver),
            RedisJournal(driver),
            RedisConversationList(driver),
            RedisOutcomes(driver),
            RedisOperations(driver),
            RedisTries(driver),
            durability,
        )

    async def ready(self) -> None:
        """Raises RetryLater when Redis does not answer, or a write would be refused or lost, or too few
        replicas confirm one; CallTheOperator `memory_refused` where its user may not do what is needed."""
        problems: list[str] = []
        for server in await self.driver.servers():
            found = [] if self.durability is None else list(_losses(server, self.durability))
            if server.is_replica:
                found.append("it is a replica and takes no writes")
            if server.memory_limit and server.memory_used >= server.memory_limit:
                found.append("it is out of memory")
            if not server.covers:
                found.append("some slots of the cluster are served by nobody")
            problems += _told_of(server, found)
        if problems:
            raise RetryLater(
                "memory_unavailable", "the conversation memory is not safe now: " + "; ".join(problems)
            )
        await self.driver.set(READY_KEY, b"", lifetime_s=READY_KEY_LIFETIME_S)
        await self.driver.confirm(READY_KEY)
        await self.driver.publish(READY_KEY, b"")  # as each change of a memory is
        await self.operations.model_calls("", None, at_most=1)  # by a script, as every commit is

    async def check_safety(self, durability: Durability) -> None:
        """Raises CallTheOperator `redis_unsafe`, naming every setting to change.

        `none` asks for nothing: conversations may be lost with the server. `aof` asks for an append only file
        that is synced at least every second, `always` for one that is synced before every reply. Primaries of
        a cluster that are away are not judged, but told: with the others conversations go on. Raises
        RetryLater where none answers.
        """
        away: list[str] = []
        servers = await self.driver.servers(away.append)
        if away:
            log.warning("redis_primaries_away", names=away)
        problems = [each for server in servers for each in _told_of(server, _losses(server, durability))]
        if problems:
            raise CallTheOperator(
                "redis_unsafe",
                "Redis would lose conversations: "
                + "; ".join(problems)
                + ". Set FLOW_ENGINE_REDIS_UNSAFE=true to start all the same",
            )

    async def close(self) -> None:
        await self.driver.close()


def connect(
    url: str,
    *,
    cluster: bool = False,
    wait_replicas: int = 0,
    durability: Durability | None = None,
    held_bytes: int = HELD_BYTES,
) -> RedisMemory:
    """Open `url`; a commit is answered once `wait_replicas` replicas have it. A redis:// or rediss:// URL."""
    driver = driver_to(url, cluster=cluster, wait_replicas=wait_replicas)
    address = Address.of(url)
    if address is not None:
        multiplexed = ClusterDriver if cluster else MultiplexedDriver
        driver = multiplexed(address, driver.client, wait_replicas=wait_replicas)
    return RedisMemory.on(driver, durability, held_bytes)
