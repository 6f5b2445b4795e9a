"""What designers keep beside the conversations on Redis: the outcomes of splits, and tries of a version.

No list, job, event or journal knows of a try.

{tenant:rollout:split}::sums      hash: `version:what` → a whole number, ids percent-encoded
{tenant:rollout:split}::counted   hash: digest of a conversation → its part, see count_outcome.lua
{tenant:tries}::try:id            hash: document, record, revision, expires (ms since 1970)
{tenant:tries}::index             sorted set: ids by when they expire (ms since 1970)
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from math import ceil
from urllib.parse import unquote

from flow_engine.ports.dialogue import encoded_id
from flow_engine.ports.outcomes import CountedConversation
from flow_engine.ports.tries import KeptTry
from memory.driver import Driver, Script
from memory.keys import due_score, outcome_keys, try_keys

LIFETIME_S = 90 * 24 * 60 * 60
"""After the last conversation that was counted."""
COUNTED_KEPT = 20_000
"""The newest conversations of a split whose part can be replaced; one that ends again later counts twice."""


class RedisOutcomes:
    """Implements `OutcomeCounts`. Raises what `Driver` raises."""

    def __init__(self, driver: Driver, *, kept: int = COUNTED_KEPT) -> None:
        self._driver = driver
        self._kept = kept
        self._count, self._read = Script.read("count_outcome"), Script.read("read_outcomes")

    async def put(self, tenant_id: str, counted: CountedConversation) -> None:
        version = encoded_id(counted.version_id)
        counts = " ".join(
            f"{version}:{encoded_id(name)}={number}" for name, number in counted.counts.items() if number
        )
        args = {
            "conversation": counted.conversation,
            "order": counted.order,
            "counts": counts,
            "kept": self._kept,
            "lifetime": LIFETIME_S,
        }
        await self._driver.run(self._count, outcome_keys(tenant_id, counted.split_id), args)

    async def read(self, tenant_id: str, split_id: str) -> Mapping[str, Mapping[str, int]]:
        sums = outcome_keys(tenant_id, split_id)["sums"]
        flat = await self._driver.run(self._read, {"sums": sums}, {})
        found: dict[str, dict[str, int]] = {}
        for field, number in zip(flat[::2], flat[1::2], strict=True):
            version, colon, name = field.decode().partition(":")
            if colon:
                found.setdefault(unquote(version), {})[unquote(name)] = int(number)
        return found


_TRY_FIELDS = ("document", "record", "revision", "expires")


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
        document, record, revision, expires = await self._driver.hmget(key, _TRY_FIELDS)
        if document is None or record is None or revision is None or expires is None:
            return None
        expires_at = datetime.fromtimestamp(int(expires) / 1000, UTC)
        return KeptTry(document, record, int(revision), expires_at)

    async def remove(self, tenant_id: str, try_id: str) -> None:
        keys = try_keys(tenant_id, try_id)
        await self._driver.delete([keys["try"]])
        await self._driver.run(self._forget, {"index": keys["index"]}, {"ids": [encoded_id(try_id)]})
