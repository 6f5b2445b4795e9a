"""Tries on Redis: a hash for each, and a sorted set of a tenant's tries by when they expire.

They lie beside the conversations and are none of them: no list, job, event or journal knows of a try.

{tenant:tries}::try:id    hash: document, record, revision, expires (ms since 1970)
{tenant:tries}::index     sorted set: ids by when they expire (ms since 1970)
"""

from __future__ import annotations

from datetime import UTC, datetime
from math import ceil

from flow_engine.ports.dialogue import encoded_id
from flow_engine.ports.tries import KeptTry
from memory.driver import Driver, Script
from memory.keys import due_score, try_keys

_FIELDS = ("document", "record", "revision", "expires")


class RedisTries:
    """Implements `TryStore`. Raises what `Driver` raises."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._put = Script.read("put_try")
        self._forget = Script.read("forget_listed")

    async def create(self, tenant_id: str, try_id: str, kept: KeptTry, *, now: datetime, most: int) -> bool:
        return await self._store(tenant_id, try_id, kept, now, most)

    async def save(self, tenant_id: str, try_id: str, kept: KeptTry, *, now: datetime) -> bool:
        return await self._store(tenant_id, try_id, kept, now, 0)

    async def _store(self, tenant_id: str, try_id: str, kept: KeptTry, now: datetime, most: int) -> bool:
        args = {
            "id": encoded_id(try_id),
            "revision": kept.revision,
            "now": due_score(now),
            "expires": due_score(kept.expires_at),
            "lifetime": max(1, ceil((kept.expires_at - now).total_seconds())),
            "most": most,
            "document": kept.document if kept.revision == 1 else b"",
            "record": kept.record,
        }
        return bool(await self._driver.run(self._put, try_keys(tenant_id, try_id), args))

    async def load(self, tenant_id: str, try_id: str) -> KeptTry | None:
        key = try_keys(tenant_id, try_id)["try"]
        document, record, revision, expires = await self._driver.hmget(key, _FIELDS)
        if document is None or record is None or revision is None or expires is None:
            return None
        expires_at = datetime.fromtimestamp(int(expires) / 1000, UTC)
        return KeptTry(document, record, int(revision), expires_at)

    async def remove(self, tenant_id: str, try_id: str) -> None:
        keys = try_keys(tenant_id, try_id)
        await self._driver.delete([keys["try"]])
        await self._driver.run(self._forget, {"index": keys["index"]}, {"ids": [encoded_id(try_id)]})
