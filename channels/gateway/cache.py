"""Answers that are kept: in this process (L1) and in SQLite for all processes of the machine (L2).

1. Only whole answers are kept: each choice has its finish, and none of them is `length`.
2. A row says how often it was used, in L1 and L2 together, at most half a second late.
3. Clearing raises the epoch. A process that notices forgets its L1; an answer that was asked for in an
   earlier epoch is not kept.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
from cachetools import TLRUCache

from channels.gateway.database import GatewayDatabase, opened

MOST_IN_L1 = 1_000
MOST_IN_L2 = 100_000
MOST_L1_BYTES = 256 * 1024 * 1024
MOST_L2_BYTES = 4 * 1024 * 1024 * 1024
"""Of the file, what else is in it and is used included."""
CLEAN_EVERY_S = 60.0
MOST_ENTRY_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Entry:
    """A whole answer: the JSON text of each event, or of the one plain answer. Times are seconds since 1970,
    UTC."""

    parts: tuple[bytes, ...]
    model: str
    created_at: float
    expires_at: float


@dataclass(frozen=True, slots=True)
class CacheStats:
    """`entries` that have not expired, their `bytes`, `hits` since the last clearing, and the same by model
    as `{model: entries}`."""

    entries: int
    bytes: int
    hits: int
    models: dict[str, int]


class ResponseCache:
    """Both levels, while the database runs. `clock` gives seconds since 1970, UTC. Beyond their number, and
    their sum of bytes, L1 forgets what was not used for longest, and L2, now and then, the oldest."""

    def __init__(
        self,
        database: GatewayDatabase,
        ttl_s: float,
        clock: Callable[[], float] = time.time,
        *,
        l1_bytes: int = MOST_L1_BYTES,
        l2_bytes: int = MOST_L2_BYTES,
    ) -> None:
        self._database = database
        self._ttl_s = ttl_s
        self._clock = clock
        self._l1: TLRUCache[str, Entry] = TLRUCache(
            l1_bytes,
            ttu=lambda _, e, __: e.expires_at,
            timer=clock,
            # None counts for less than its share, so that they are never more than MOST_IN_L1.
            getsizeof=lambda entry: max(sum(map(len, entry.parts)), l1_bytes // MOST_IN_L1),
        )
        self._l2_bytes = l2_bytes
        self._hits: Counter[str] = Counter()
        self._cleaned_at = 0.0
        self.epoch = 0
        database.at_each_flush(self._flush)

    def near(self, key: str) -> Entry | None:
        """From L1."""
        entry = self._l1.get(key)
        if entry is not None:
            self._hits[key] += 1
        return entry

    async def far(self, key: str) -> Entry | None:
        """From L2, and into L1. None also when the database fails."""
        rows = await self._database.rows(
            "SELECT response, model, created_at, expires_at FROM response_cache "
            "WHERE prompt_hash = ? AND (expires_at IS NULL OR expires_at > ?)",
            (key, self._clock()),
        )
        if not rows:
            return None
        text, model, created, expires = rows[0]
        parts = tuple(part.encode() for part in orjson.loads(text)["parts"])
        entry = Entry(parts, model, created, expires or created + self._ttl_s)
        self._l1[key] = entry
        self._hits[key] += 1
        return entry

    def put(self, key: str, parts: Sequence[bytes], model: str, epoch: int) -> Entry | None:
        """Into L1. None where the cache was cleared after `epoch`, or the answer is longer than 4 MiB."""
        if epoch != self.epoch or sum(map(len, parts)) > MOST_ENTRY_BYTES:
            return None
        now = self._clock()
        entry = self._l1[key] = Entry(tuple(parts), model, now, now + self._ttl_s)
        return entry

    async def write(self, key: str, entry: Entry, epoch: int) -> None:
        """Into L2; nothing where the cache was cleared after `epoch`."""
        response = orjson.dumps({"parts": [part.decode("utf-8", "replace") for part in entry.parts]}).decode()
        await self._database.change(
            "INSERT INTO response_cache (prompt_hash, response, model, created_at, expires_at) "
            "SELECT ?, ?, ?, ?, ? FROM cache_state WHERE epoch = ? ON CONFLICT (prompt_hash) DO UPDATE SET "
            "response = excluded.response, model = excluded.model, created_at = excluded.created_at, "
            "expires_at = excluded.expires_at, hit_count = 0",
            [(key, response, entry.model, entry.created_at, entry.expires_at, epoch)],
        )

    async def _flush(self) -> None:
        """Write the hits, and forget what another process has cleared."""
        rows = await self._database.rows("SELECT epoch FROM cache_state")
        epoch = rows[0][0] if rows else self.epoch
        if epoch != self.epoch:
            self.epoch = epoch
            self._l1.clear()
            self._hits.clear()
        hits, self._hits = self._hits, Counter()
        if hits:
            await self._database.change(
                "UPDATE response_cache SET hit_count = hit_count + ? WHERE prompt_hash = ?",
                [(count, key) for key, count in hits.items()],
            )
            await self._database.change("UPDATE cache_state SET hits = hits + ?", [(hits.total(),)])
        if (now := self._clock()) - self._cleaned_at > CLEAN_EVERY_S:
            self._cleaned_at = now
            await self._database.change("DELETE FROM response_cache WHERE expires_at <= ?", [(now,)])
            for entries, used in await self._database.rows(
                "SELECT (SELECT count(*) FROM response_cache), (page_count - freelist_count) * page_size "
                "FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
            ):
                kept = min(MOST_IN_L2, entries * self._l2_bytes // max(used, self._l2_bytes))
                await self._database.change(
                    "DELETE FROM response_cache WHERE id IN "
                    "(SELECT id FROM response_cache ORDER BY expires_at LIMIT ?)",
                    [(entries - kept,)],
                )


async def cache_stats(path: Path, now: float) -> CacheStats:
    """Of the database at `path`, which is created where there is none; `now` is in seconds since 1970.
    Raises CallTheOperator `gateway_database_unusable`."""
    async with opened(path) as database:
        rows = await database.execute_fetchall(
            "SELECT model, count(*), sum(length(response)) FROM response_cache "
            "WHERE expires_at IS NULL OR expires_at > ? GROUP BY model ORDER BY model",
            (now,),
        )
        [(hits,)] = await database.execute_fetchall("SELECT hits FROM cache_state")
    models = {model: entries for model, entries, _ in rows}
    return CacheStats(sum(models.values()), sum(size for *_, size in rows), hits, models)


async def clear_cache(path: Path) -> int:
    """How many entries there were. Raises CallTheOperator `gateway_database_unusable`."""
    async with opened(path) as database:
        deleted = await database.execute("DELETE FROM response_cache")
        await database.execute("UPDATE cache_state SET epoch = epoch + 1, hits = 0")
        await database.commit()
    return deleted.rowcount
