"""Connections to Redis: by URL (standalone or cluster), or in this process for the embedded default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from fakeredis import FakeAsyncRedis, FakeServer
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

from memory.listing import RedisConversationIndex
from memory.manager import MemoryManager, RedisCommands, RedisDefinitions
from memory.safety import check_safety
from memory.translate import store_errors_translated

CONNECTIONS = 512  # the driver's default of 100 fails beyond it instead of waiting
ANSWER_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class RedisMemory:
    """An open connection with the two stores on it."""

    client: Any
    conversations: MemoryManager
    definitions: RedisDefinitions
    index: RedisConversationIndex

    async def ready(self) -> None:
        """Raises RetryLater when Redis does not answer."""
        with store_errors_translated():
            await self.client.ping()

    async def check_safety(self, durability: str) -> None:
        with store_errors_translated():
            await check_safety(self.client, durability)

    async def close(self) -> None:
        await self.client.aclose()


def connect(url: str, *, cluster: bool = False) -> RedisMemory:
    """Open `url`. The driver never repeats a command: a write repeated after a pause counts twice."""
    options: dict[str, Any] = {
        "max_connections": CONNECTIONS,
        "socket_timeout": ANSWER_WITHIN_S,
        "socket_connect_timeout": ANSWER_WITHIN_S,
        "retry": Retry(NoBackoff(), 0),
        # While these are enabled the driver does not see that a pooled connection was closed, and every
        # one of them fails a request after Redis has restarted.
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    client: Any = RedisCluster.from_url(url, **options) if cluster else Redis.from_url(url, **options)
    return _memory_on(client, single_node=not cluster)


def embedded(server: FakeServer | None = None) -> RedisMemory:
    """Redis inside this process, gone with it. Pass one server to share it between connections."""
    return _memory_on(FakeAsyncRedis(server=server or FakeServer()), single_node=True)


def _memory_on(client: Any, *, single_node: bool) -> RedisMemory:
    commands = cast("RedisCommands", client)
    return RedisMemory(
        client=client,
        conversations=MemoryManager(commands, single_node=single_node),
        definitions=RedisDefinitions(commands),
        index=RedisConversationIndex(client),
    )
