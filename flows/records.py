"""Tables of JSON documents in the database of the flows, SQLite or MongoDB.

A document is kept as JSON text in both: MongoDB's own documents refuse names with a `$` or a dot in front,
which templates have, and lose integers beyond 64 bits.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import orjson

from flow_engine.errors import CallTheOperator, RetryLater
from flow_engine.ports.records import RECORD_TABLES, Record, RecordTable
from flow_engine.values import JsonValue
from flows.mongo_store import MongoDatabase, document_id, insert_document, mongo_errors_translated
from flows.sqlite_store import SqliteDatabase

_COLUMNS: Final = "id, parent, position, serial, record"

_READABLE: Final[Mapping[str, Sequence[str]]] = {
    "agent_runs": (
        *("mailbox", "message_id", "rule", "route", "profile", "job", "status", "final_message"),
        *("iterations", "tool_calls_log", "error", "conversation_id"),
    ),
    "llm_calls": ("run_id", "call_type", "iteration", "model", "status"),
    "email_events": ("run_id", "mailbox", "message_id", "rule", "event", "at"),
}
"""Columns that SQLite computes from a document, for whoever reads the tables with SQL (M14)."""


_LATEST: Final = ("chat_decisions",)
"""Tables that are read the newest first, whatever the parent."""


class SqliteRecords:
    """Implements `RecordStore`. A table `{tenant_id, id, parent, position, serial, record}`, the record as
    JSON, and beside these the columns of the audit, computed when they are read."""

    def __init__(self, database: SqliteDatabase, table: RecordTable) -> None:
        if table not in RECORD_TABLES:
            raise ValueError(f"no table {table!r}; there are: {', '.join(RECORD_TABLES)}")
        self._database = database
        self._table = table
        self._is_made = False

    async def insert(self, tenant_id: str, record: Record) -> bool:
        await self._make()
        return await self._database.change(
            f"INSERT INTO {self._table} (tenant_id, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) "  # noqa: S608
            "ON CONFLICT DO NOTHING",
            (tenant_id, record.id, record.parent, record.position, record.serial, _text(record)),
        )

    async def replace(self, tenant_id: str, record: Record, expected_serial: int) -> bool:
        await self._make()
        return await self._database.change(
            f"UPDATE {self._table} SET parent = ?, position = ?, serial = ?, record = ? "  # noqa: S608
            "WHERE tenant_id = ? AND id = ? AND serial = ?",
            (
                *(record.parent, record.position, record.serial, _text(record)),
                *(tenant_id, record.id, expected_serial),
            ),
        )

    async def get(self, tenant_id: str, record_id: str) -> Record | None:
        await self._make()
        rows = await self._database.rows(
            f"SELECT {_COLUMNS} FROM {self._table} WHERE tenant_id = ? AND id = ?",  # noqa: S608
            (tenant_id, record_id),
        )
        return _of_row(rows[0]) if rows else None

    async def list(
        self,
        tenant_id: str,
        parent: str | None = "",
        *,
        after: tuple[int, str] | None = None,
        limit: int | None = None,
    ) -> Sequence[Record]:
        await self._make()
        of_parent, behind, order = ("AND parent = ? ", ">", "") if parent is not None else ("", "<", " DESC")
        rows = await self._database.rows(
            f"SELECT {_COLUMNS} FROM {self._table} WHERE tenant_id = ? {of_parent}"  # noqa: S608
            f"{'' if after is None else f'AND (position, id) {behind} (?, ?) '}"
            f"ORDER BY position{order}, id{order} LIMIT ?",
            (
                *((tenant_id,) if parent is None else (tenant_id, parent)),
                *(*(after or ()), -1 if limit is None else limit),
            ),
        )
        return [_of_row(row) for row in rows]

    async def delete(self, tenant_id: str, record_id: str, expected_serial: int) -> bool:
        await self._make()
        return await self._database.change(
            f"DELETE FROM {self._table} WHERE tenant_id = ? AND id = ? AND serial = ?",  # noqa: S608
            (tenant_id, record_id, expected_serial),
        )

    async def _make(self) -> None:
        """The table, where it is missing: once for each store."""
        if self._is_made:
            return
        await self._database.rows(
            f"""CREATE TABLE IF NOT EXISTS {self._table} (
                tenant_id TEXT NOT NULL, id TEXT NOT NULL, parent TEXT NOT NULL, position INTEGER NOT NULL,
                serial INTEGER NOT NULL, record TEXT NOT NULL, PRIMARY KEY (tenant_id, id))""",
            (),
        )
        await self._database.rows(
            f"CREATE INDEX IF NOT EXISTS {self._table}_by_parent "
            f"ON {self._table} (tenant_id, parent, position)",
            (),
        )
        if self._table in _LATEST:
            await self._database.rows(
                f"CREATE INDEX IF NOT EXISTS {self._table}_latest ON {self._table} (tenant_id, position, id)",
                (),
            )
        there = f"PRAGMA table_xinfo({self._table})"
        columns = {column[1] for column in await self._database.rows(there, ())}
        for name in _READABLE.get(self._table, ()):
            if name in columns:
                continue
            # The document's member of that name; `run_id` is the parent.
            member = f"CASE WHEN json_valid(record) THEN json_extract(record, '$.{name}') END"
            value = "parent" if name == "run_id" else member
            try:
                await self._database.rows(
                    f"ALTER TABLE {self._table} ADD COLUMN {name} GENERATED ALWAYS AS ({value}) VIRTUAL", ()
                )
            except RetryLater:  # unless another process was faster
                if name not in {column[1] for column in await self._database.rows(there, ())}:
                    raise
        self._is_made = True


class MongoRecords:
    """Implements `RecordStore`. A collection of `{_id, tenant_id, id, parent, position, serial, record}`."""

    def __init__(self, database: MongoDatabase, table: RecordTable) -> None:
        self._database = database
        self._table = table
        self._is_indexed = False

    async def insert(self, tenant_id: str, record: Record) -> bool:
        if not self._is_indexed:
            with mongo_errors_translated():
                collection = self._database.collection(self._table)
                await collection.create_index([("tenant_id", 1), ("parent", 1), ("position", 1)])
                if self._table in _LATEST:
                    await collection.create_index([("tenant_id", 1), ("position", 1), ("id", 1)])
            self._is_indexed = True
        return await insert_document(self._database.collection(self._table), _document(tenant_id, record))

    async def replace(self, tenant_id: str, record: Record, expected_serial: int) -> bool:
        with mongo_errors_translated():
            result = await self._database.collection(self._table).replace_one(
                {"_id": document_id(tenant_id, record.id), "serial": expected_serial},
                _document(tenant_id, record),
            )
        return result.matched_count == 1

    async def get(self, tenant_id: str, record_id: str) -> Record | None:
        with mongo_errors_translated():
            found = await self._database.collection(self._table).find_one(
                {"_id": document_id(tenant_id, record_id)}
            )
        return None if found is None else _of_document(found)

    async def list(
        self,
        tenant_id: str,
        parent: str | None = "",
        *,
        after: tuple[int, str] | None = None,
        limit: int | None = None,
    ) -> Sequence[Record]:
        wanted: dict[str, Any] = {"tenant_id": tenant_id}
        way, behind = (-1, "$lt") if parent is None else (1, "$gt")
        if parent is not None:
            wanted["parent"] = parent
        if after is not None:
            position, record_id = after
            beside = {"position": position, "id": {behind: record_id}}
            wanted["$or"] = [{"position": {behind: position}}, beside]
        with mongo_errors_translated():
            cursor = self._database.collection(self._table).find(wanted)
            found = await cursor.sort([("position", way), ("id", way)]).limit(limit or 0).to_list()
        return [_of_document(each) for each in found]

    async def delete(self, tenant_id: str, record_id: str, expected_serial: int) -> bool:
        with mongo_errors_translated():
            result = await self._database.collection(self._table).delete_one(
                {"_id": document_id(tenant_id, record_id), "serial": expected_serial}
            )
        return result.deleted_count == 1


def _document(tenant_id: str, record: Record) -> dict[str, Any]:
    return {
        "_id": document_id(tenant_id, record.id),
        "tenant_id": tenant_id,
        "id": record.id,
        "parent": record.parent,
        "position": record.position,
        "serial": record.serial,
        "record": _text(record),
    }


def _of_document(found: dict[str, Any]) -> Record:
    return _of_row(tuple(found[column] for column in _COLUMNS.split(", ")))


def _text(record: Record) -> str:
    return orjson.dumps(dict(record.body)).decode()


def _of_row(row: tuple[Any, ...]) -> Record:
    record_id, parent, position, serial, text = cast("tuple[str, str, int, int, str]", row)
    try:
        body: object = orjson.loads(text)
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        raise CallTheOperator("stored_record_unreadable", f"the stored document {record_id!r} is no object")
    return Record(record_id, cast("dict[str, JsonValue]", body), parent, position, serial)
