"""Tables of JSON documents in the database of the flows: SQLite here, MongoDB in `mongo_records`.

A document is kept as JSON text in both: MongoDB's own documents refuse names with a `$` or a dot in front,
which templates have, and lose integers beyond 64 bits.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import orjson

from flow_engine.errors import CallTheOperator
from flow_engine.ports.records import RECORD_TABLES, Record, RecordTable
from flow_engine.values import JsonValue
from flows.sqlite_store import SqliteDatabase

COLUMNS: Final = "id, parent, position, serial, record"

_READABLE: Final[Mapping[str, Sequence[str]]] = {
    "agent_runs": (
        *("mailbox", "message_id", "rule", "route", "profile", "job", "status", "final_message"),
        *("iterations", "tool_calls_log", "error", "conversation_id"),
    ),
    "llm_calls": ("run_id", "call_type", "iteration", "model", "status"),
    "email_events": ("run_id", "mailbox", "message_id", "rule", "event", "at"),
}
"""Columns that SQLite computes from a document, for whoever reads the tables with SQL (M14)."""


LATEST: Final = ("chat_decisions",)
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
            f"INSERT INTO {self._table} (tenant_id, {COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) "  # noqa: S608
            "ON CONFLICT DO NOTHING",
            (tenant_id, record.id, record.parent, record.position, record.serial, text_of(record)),
        )

    async def replace(self, tenant_id: str, record: Record, expected_serial: int) -> bool:
        await self._make()
        return await self._database.change(
            f"UPDATE {self._table} SET parent = ?, position = ?, serial = ?, record = ? "  # noqa: S608
            "WHERE tenant_id = ? AND id = ? AND serial = ?",
            (
                *(record.parent, record.position, record.serial, text_of(record)),
                *(tenant_id, record.id, expected_serial),
            ),
        )

    async def get(self, tenant_id: str, record_id: str) -> Record | None:
        await self._make()
        rows = await self._database.rows(
            f"SELECT {COLUMNS} FROM {self._table} WHERE tenant_id = ? AND id = ?",  # noqa: S608
            (tenant_id, record_id),
        )
        return record_of(rows[0]) if rows else None

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
            f"SELECT {COLUMNS} FROM {self._table} WHERE tenant_id = ? {of_parent}"  # noqa: S608
            f"{'' if after is None else f'AND (position, id) {behind} (?, ?) '}"
            f"ORDER BY position{order}, id{order} LIMIT ?",
            (
                *((tenant_id,) if parent is None else (tenant_id, parent)),
                *(*(after or ()), -1 if limit is None else limit),
            ),
        )
        return [record_of(row) for row in rows]

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
        if self._table in LATEST:
            await self._database.rows(
                f"CREATE INDEX IF NOT EXISTS {self._table}_latest ON {self._table} (tenant_id, position, id)",
                (),
            )
        computed = {
            name: f"GENERATED ALWAYS AS ({_value(name)}) VIRTUAL" for name in _READABLE.get(self._table, ())
        }
        await self._database.add_columns(self._table, computed)
        self._is_made = True


def _value(name: str) -> str:
    """In SQL, the document's member of that name; `run_id` is the parent."""
    member = f"CASE WHEN json_valid(record) THEN json_extract(record, '$.{name}') END"
    return "parent" if name == "run_id" else member


def text_of(record: Record) -> str:
    """The document as JSON."""
    return orjson.dumps(dict(record.body)).decode()


def record_of(row: tuple[Any, ...]) -> Record:
    """Of a row of `COLUMNS`. Raises CallTheOperator `stored_record_unreadable`."""
    record_id, parent, position, serial, text = cast("tuple[str, str, int, int, str]", row)
    try:
        body: object = orjson.loads(text)
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        raise CallTheOperator("stored_record_unreadable", f"the stored document {record_id!r} is no object")
    return Record(record_id, cast("dict[str, JsonValue]", body), parent, position, serial)
