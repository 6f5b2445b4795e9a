"""Finding conversations by what they run on: for migrations, which are rare, so nothing is indexed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote, unquote

from memory.translate import store_errors_translated

SCANNED_AT_ONCE = 1_000


class RedisConversationIndex:
    """Implements `ConversationIndex` by scanning the snapshots of a tenant."""

    def __init__(self, redis: Any) -> None:
        self._redis = redis

    async def on_version(self, tenant_id: str, version_id: str) -> AsyncIterator[str]:
        start, end = f"{{{quote(tenant_id, safe='')}:", "}::snapshot"
        pattern = "".join(f"[{c}]" if c in "*?[]^-\\" else c for c in start) + "*" + end
        seen: set[str] = set()
        with store_errors_translated():
            async for key in self._redis.scan_iter(match=pattern, count=SCANNED_AT_ONCE):
                name = key.decode()
                if name not in seen and await self._redis.hget(name, "versionId") == version_id.encode():
                    seen.add(name)
                    yield unquote(name.removeprefix(start).removesuffix(end))
