"""Journals of conversations that are over, in the database of the flows: SQLite here, MongoDB in
`mongo_archive`.

    journals          {tenant_id, conversation_id, first, last, began, origin, kept_until, content}: a part,
                      with {flow_id, tag, started} of its conversation, empty for what an earlier release put
    erased_journals   {tenant_id, digest, erased_at}: what is not to come back, without its name

Times are milliseconds since 1970.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, Final

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.flow_store import ArchivedPart, ArchivedStart, ArchiveTerm
from flows.sqlite_store import SqliteDatabase

_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS journals (
        tenant_id TEXT NOT NULL, conversation_id TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
        began INTEGER NOT NULL, origin TEXT NOT NULL, kept_until INTEGER NOT NULL, content BLOB NOT NULL,
        PRIMARY KEY (tenant_id, conversation_id, first))""",
    "CREATE INDEX IF NOT EXISTS journals_by_term ON journals (kept_until)",
    "CREATE INDEX IF NOT EXISTS journals_by_origin ON journals (tenant_id, origin)",
    """CREATE TABLE IF NOT EXISTS erased_journals (
        tenant_id TEXT NOT NULL, digest TEXT NOT NULL, erased_at INTEGER NOT NULL,
        PRIMARY KEY (tenant_id, digest))""",
)
_COLUMNS = {"flow_id": "TEXT NOT NULL DEFAULT ''", "tag": "TEXT", "started": "INTEGER NOT NULL DEFAULT 0"}
"""Of `journals`, added to a table that has been there before."""
_BY_TAG = "CREATE INDEX IF NOT EXISTS journals_by_tag ON journals (tenant_id, tag, started)"
CHECKPOINTS: Final = 20
CHECKPOINT_PAUSE_S: Final = 0.25
"""Another process that reads meanwhile keeps the write-ahead log from being emptied."""


class SqliteArchive:
    """Implements `JournalArchive`."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._is_made = False

    async def put(
        self, conversation: ConversationRef, parts: Sequence[ArchivedPart], origin: str, term: ArchiveTerm
    ) -> bool:
        (tenant_id, conversation_id), until = conversation, epoch_ms(term.kept_until)
        for part in parts:
            # One statement: an erasure is before it, and is seen, or after it, and takes the part along.
            kept = await self._rows(
                "INSERT INTO journals (tenant_id, conversation_id, first, last, began, origin, "
                "kept_until, content) SELECT ?, ?, ?, ?, ?, ?, ?, ? "
                "WHERE NOT EXISTS (SELECT 1 FROM erased_journals "
                "WHERE tenant_id = ? AND digest = ? AND erased_at >= ?) "
                "ON CONFLICT DO UPDATE SET last = max(last, excluded.last), "
                "content = CASE WHEN excluded.last >= last THEN excluded.content ELSE content END "
                "RETURNING 1",
                (
                    *(tenant_id, conversation_id, part.first, part.last, part.began),
                    *(origin, until, part.content),
                    *(tenant_id, digest_of(conversation), epoch_ms(term.ended_at)),
                ),
            )
            if not kept:
                return False
        await self._rows(
            "UPDATE journals SET kept_until = ?, flow_id = ?, tag = ?, started = ? "
            "WHERE tenant_id = ? AND conversation_id = ?",
            (until, term.flow_id, term.tag, epoch_ms(term.started_at), tenant_id, conversation_id),
        )
        return True

    async def parts(
        self,
        conversation: ConversationRef,
        *,
        after: int = 0,
        at_most: int | None = None,
        now: datetime | None = None,
    ) -> Sequence[ArchivedPart]:
        rows = await self._rows(
            "SELECT first, last, began, content FROM journals WHERE tenant_id = ? AND conversation_id = ? "
            "AND last > ? AND kept_until > ? ORDER BY first LIMIT ?",
            (*conversation, after, epoch_ms(now), -1 if at_most is None else at_most),
        )
        return [ArchivedPart(*row) for row in rows]

    async def begun_by(
        self,
        tenant_id: str,
        tag: str,
        *,
        flow_id: str | None,
        before: ArchivedStart | None,
        at_most: int,
        now: datetime,
    ) -> Sequence[ArchivedStart]:
        wanted, parameters = (
            "tenant_id = ? AND tag = ? AND kept_until > ?",
            [tenant_id, tag, epoch_ms(now)],
        )
        if flow_id is not None:
            wanted, parameters = f"{wanted} AND flow_id = ?", [*parameters, flow_id]
        if before is not None:
            wanted = f"{wanted} AND (started, conversation_id) < (?, ?)"
            parameters += [before.started, before.conversation_id]
        rows = await self._rows(
            f"SELECT DISTINCT conversation_id, started FROM journals WHERE {wanted} "  # noqa: S608
            "ORDER BY started DESC, conversation_id DESC LIMIT ?",
            [*parameters, at_most],
        )
        return [ArchivedStart(*row) for row in rows]

    async def forks(self, conversation: ConversationRef) -> Sequence[str]:
        rows = await self._rows(
            "SELECT DISTINCT conversation_id FROM journals WHERE tenant_id = ? AND origin = ?",
            tuple(conversation),
        )
        return [id for (id,) in rows]

    async def remove(self, conversation: ConversationRef, *, removed_at: datetime | None) -> None:
        if removed_at is not None:
            await self._rows(
                "INSERT INTO erased_journals (tenant_id, digest, erased_at) VALUES (?, ?, ?) "
                "ON CONFLICT DO UPDATE SET erased_at = max(erased_at, excluded.erased_at)",
                (conversation.tenant_id, digest_of(conversation), epoch_ms(removed_at)),
            )
        gone = await self._rows(
            "DELETE FROM journals WHERE tenant_id = ? AND conversation_id = ? RETURNING 1",
            tuple(conversation),
        )
        for _ in range(CHECKPOINTS if gone and removed_at is not None else 0):
            ((busy, *_),) = await self._rows("PRAGMA wal_checkpoint(TRUNCATE)", ())
            if not busy:
                break
            await asyncio.sleep(CHECKPOINT_PAUSE_S)

    async def prune(self, now: datetime, *, at_most: int, erased_before: datetime) -> int:
        gone = await self._rows(
            "DELETE FROM journals WHERE rowid IN "
            "(SELECT rowid FROM journals WHERE kept_until <= ? ORDER BY kept_until LIMIT ?) RETURNING 1",
            (epoch_ms(now), at_most),
        )
        await self._rows("DELETE FROM erased_journals WHERE erased_at < ?", (epoch_ms(erased_before),))
        return len(gone)

    async def _rows(self, statement: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        if not self._is_made:
            for made in _SCHEMA:
                await self._database.rows(made, ())
            await self._database.add_columns("journals", _COLUMNS)
            await self._database.rows(_BY_TAG, ())
            self._is_made = True
        return await self._database.rows(statement, parameters)


def digest_of(conversation: ConversationRef) -> str:
    """What an erased conversation is known by, without its name: hexadecimal digits."""
    return sha256("\0".join(conversation).encode("utf-8", "surrogatepass")).hexdigest()


def epoch_ms(moment: datetime | None) -> int:
    """0 for none: before everything."""
    return 0 if moment is None else int(moment.timestamp() * 1000)
