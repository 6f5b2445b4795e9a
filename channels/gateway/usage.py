"""Usage records: one row for each call of a backend, for bills and for budgets that outlive a process.

A row says who, which model, how long, tokens and US dollars, never what was written. Rows are written at most
`FLUSH_EVERY_S` late. What the other processes of the machine have spent today is read at each flush, so that
a bound on a day's money holds for all of them together, and after a restart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from channels.gateway.database import GatewayDatabase, log, opened

DAY_S = 86_400
MOST_UNWRITTEN = 20_000


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """One call of a backend. `at`, its end, is in seconds since 1970, UTC; `outcome` is `ok`, `failed` or
    `cancelled`, and `error` a status or a code; `usd` is None for a model without a public price; `first_ms`
    is None where no event came."""

    at: float
    tenant: str
    key: str
    operation: str
    backend: str
    model: str
    outcome: str
    error: str | None
    input_tokens: int
    output_tokens: int
    usd: float | None
    first_ms: int | None
    duration_ms: int


@dataclass(frozen=True, slots=True)
class UsageSum:
    """What a key has used of a model of a backend. `usd` counts calls without a known price as 0."""

    tenant: str
    key: str
    backend: str
    model: str
    calls: int
    failed: int
    input_tokens: int
    output_tokens: int
    usd: float


_COLUMNS = ", ".join(field.name for field in fields(UsageRecord))


class UsageRecords:
    """Keeps records for `keep_days`, while the database runs. `clock` gives seconds since 1970, UTC."""

    def __init__(
        self, database: GatewayDatabase, keep_days: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._keep_s = keep_days * DAY_S
        self._clock = clock
        self._unwritten: list[UsageRecord] = []
        self._day = 0
        self._last_id = 0
        self._spent: dict[tuple[str, str], float] = {}
        self._cleaned_at = 0.0
        database.at_each_flush(self._flush)

    def add(self, record: UsageRecord) -> None:
        """Of more than 20,000 that a database which fails has left unwritten, the oldest are dropped."""
        self._unwritten.append(record)
        if len(self._unwritten) > MOST_UNWRITTEN:
            dropped = len(self._unwritten) - MOST_UNWRITTEN // 2
            del self._unwritten[:dropped]
            log.error("usage_dropped", records=dropped)

    def spent_today(self, tenant: str | None, key: str) -> float:
        """US dollars since midnight UTC; of a key of that name in all tenants where `tenant` is None."""
        today = int(self._clock()) // DAY_S
        mine = [r for r in self._unwritten if r.key == key and tenant in (None, r.tenant)]
        used = sum(r.usd or 0.0 for r in mine if int(r.at) // DAY_S == today)
        if self._day == today:
            used += sum(usd for (t, k), usd in self._spent.items() if k == key and tenant in (None, t))
        return used

    async def _flush(self) -> None:
        if batch := self._unwritten[:]:
            marks = ", ".join("?" * len(fields(UsageRecord)))
            statement = f"INSERT INTO usage_records ({_COLUMNS}) VALUES ({marks})"  # noqa: S608
            if not await self._database.change(statement, map(astuple, batch)):
                return
        now = self._clock()
        today = int(now) // DAY_S
        rows = await self._database.rows(
            "SELECT tenant, key, sum(usd), max(id) FROM usage_records WHERE id > ? AND at >= ? "
            "GROUP BY tenant, key",
            (self._last_id if today == self._day else 0, today * DAY_S),
        )
        del self._unwritten[: len(batch)]
        if today != self._day:
            self._day, self._last_id, self._spent = today, 0, {}
        for tenant, key, usd, last in rows:
            self._spent[tenant, key] = self._spent.get((tenant, key), 0.0) + (usd or 0.0)
            self._last_id = max(self._last_id, last)
        if now - self._cleaned_at > 3600:
            self._cleaned_at = now
            await self._database.change("DELETE FROM usage_records WHERE at < ?", [(now - self._keep_s,)])


async def usage_between(path: Path, since: float, until: float) -> list[UsageSum]:
    """Of the file at `path`, by tenant, key, backend and model; times in seconds since 1970, `until` not
    included. Raises CallTheOperator `gateway_database_unusable`."""
    async with opened(path) as connection:
        rows = await connection.execute_fetchall(
            "SELECT tenant, key, backend, model, count(*), sum(outcome = 'failed'), sum(input_tokens), "
            "sum(output_tokens), total(usd) FROM usage_records WHERE at >= ? AND at < ? "
            "GROUP BY tenant, key, backend, model ORDER BY tenant, key, backend, model",
            (since, until),
        )
    return [UsageSum(*row) for row in rows]
