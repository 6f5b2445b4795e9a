"""Connections to Redis: by URL (standalone or cluster), or in this process for the embedded default."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import unquote

from fakeredis import FakeServer

from memory.driver import Driver
from memory.keys import READY_KEY, snapshots_of
from memory.manager import MemoryManager, RedisDefinitions
from memory.redis_py import driver_in_process, driver_to
from memory.safety import Durability, check_readiness, check_safety

READY_KEY_LIFETIME_S = 60


class RedisConversationIndex:
    """Implements `ConversationIndex` by scanning a tenant's snapshots: for migrations, which are rare."""

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
    """An open connection with the stores on it. `durability` is what a ready server keeps up."""

    driver: Driver
    conversations: MemoryManager
    definitions: RedisDefinitions
    index: RedisConversationIndex
    durability: Durability | None = None

    async def ready(self) -> None:
        """Raises RetryLater when Redis does not answer, or a write would be refused or lost."""
        await check_readiness(self.driver, self.durability)
        await self.driver.set(READY_KEY, b"", lifetime_s=READY_KEY_LIFETIME_S)

    async def check_safety(self, durability: Durability) -> None:
        """Raises CallTheOperator `redis_unsafe`, RetryLater."""
        await check_safety(self.driver, durability)

    async def close(self) -> None:
        await self.driver.close()


def connect(
    url: str, *, cluster: bool = False, wait_replicas: int = 0, durability: Durability | None = None
) -> RedisMemory:
    """Open `url`; a commit is answered once `wait_replicas` replicas have it."""
    return _memory_on(driver_to(url, cluster=cluster, wait_replicas=wait_replicas), durability)


def embedded(server: FakeServer | None = None) -> RedisMemory:
    """Redis inside this process, gone with it. Pass one server to share it between connections."""
    return _memory_on(driver_in_process(server or FakeServer()))


def _memory_on(driver: Driver, durability: Durability | None = None) -> RedisMemory:
    return RedisMemory(
        driver, MemoryManager(driver), RedisDefinitions(driver), RedisConversationIndex(driver), durability
    )
