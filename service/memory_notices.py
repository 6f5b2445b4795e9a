"""Notices of memory changes for the voice agent, by the Redis of its flow engine."""

from collections.abc import Callable
from typing import Any

import structlog

from flow_engine.errors import CallTheOperator, RetryLater
from flow_engine.ports.dialogue import ConversationRef
from memory import chat_sessions, keys, redis_py

log: Any = structlog.get_logger("flow_engine.voice")


class RedisNotices:
    """Implements `MemoryNotices` over one connection, for the conversations of one tenant. `url` is redis://
    or rediss://. Where Redis is away, or refuses, the engine is asked instead, as without it."""

    def __init__(self, url: str, tenant_id: str, *, cluster: bool) -> None:
        self._driver = redis_py.driver_to(url, cluster=cluster, wait_replicas=0)
        self._bus = chat_sessions.RedisBus(self._driver)
        self._tenant_id = tenant_id
        self._listeners: dict[Callable[[], None], Callable[[bytes], None]] = {}

    async def follow(self, conversation_id: str, changed: Callable[[], None]) -> None:
        listener = self._listeners[changed] = lambda _: changed()
        try:
            await self._bus.listen(self._channel(conversation_id), listener)
        except (RetryLater, CallTheOperator) as away:
            log.warning("memory_not_followed", code=away.code, reason=away.reason)

    async def unfollow(self, conversation_id: str, changed: Callable[[], None]) -> None:
        listener = self._listeners.pop(changed, None)
        if listener is None:
            return
        try:
            await self._bus.unlisten(self._channel(conversation_id), listener)
        except (RetryLater, CallTheOperator) as away:
            log.warning("memory_not_unfollowed", code=away.code)

    async def aclose(self) -> None:
        await self._bus.aclose()
        await self._driver.close()

    def _channel(self, conversation_id: str) -> str:
        return keys.ConversationKeys.of(ConversationRef(self._tenant_id, conversation_id)).notices
