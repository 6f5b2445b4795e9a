"""Flows and versions in one SQLite file: the store of the embedded default (F42).

Every operation is one SQL statement in autocommit, so it is atomic by itself, whatever other processes
share the file; the driver runs the statements of one connection one after the other. What reads has one of
its own: it does not wait for what waits for another process.
"""

import asyncio
import os
import sqlite3
from collections.abc import Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiosqlite
import orjson
import structlog

from flow_engine.errors import CallTheOperator, RetryLater
from flow_engine.ports.flow_store import FlowRecord, StoredVersion
from flows.codec import flow_from_plain, flow_to_plain

log: Any = structlog.get_logger("flow_engine.flows")

FILE_NAME = "flows.sqlite3"
MEMORY = ":memory:"
ROOM_BYTES = 1_000_000
"""What the largest version takes, unless a setting allows larger ones."""

_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS flows (
        tenant_id TEXT NOT NULL, flow_id TEXT NOT NULL, campaign_id TEXT NOT NULL,
        revision INTEGER NOT NULL, record BLOB NOT NULL, PRIMARY KEY (tenant_id, flow_id))""",
    "CREATE INDEX IF NOT EXISTS flows_by_campaign ON flows (tenant_id, campaign_id)",
    """CREATE TABLE IF NOT EXISTS versions (
        tenant_id TEXT NOT NULL, version_id TEXT NOT NULL, flow_id TEXT NOT NULL,
        document BLOB NOT NULL, PRIMARY KEY (tenant_id, version_id))""",
)

_WAL_PAUSE_S = 0.02

_FULL = "its disk is full"
_REFUSING_WRITES = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: "its file may only be read",
    sqlite3.SQLITE_IOERR_SHMSIZE: _FULL,  # what readers of the journal share has no room beside the file
}
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@contextmanager
def _translated() -> Generator[None, None, None]:
    """The one place where SQLite's errors become the core's."""
    try:
        yield
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorcode", 0)
        refused = _REFUSING_WRITES.get(code) or _REFUSING_WRITES.get(code & 0xFF)
        if refused is not None:
            log.warning("flow_store_refuses_writes", reason=refused)
            message = f"the flow store takes no writes: {refused}"
            raise RetryLater("flow_store_unavailable", message) from error
        raise RetryLater("flow_store_unavailable", "the flow store did not answer") from error
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
            raise CallTheOperator(
                "flow_store_damaged", "the flow store's file is no intact database"
            ) from error
        raise


class SqliteDatabase:
    """Connections to `flows.sqlite3` in a directory that exists, or for `":memory:"` one to a database in
    memory.

    `busy_timeout_ms` is how long a statement waits for another process before RetryLater. With less than
    `room_bytes` left on its disk it is not ready.
    """

    def __init__(
        self, location: Path | str, *, busy_timeout_ms: int = 5000, room_bytes: int = ROOM_BYTES
    ) -> None:
        self._room_bytes = room_bytes
        self._path = MEMORY if location == MEMORY else str(Path(location) / FILE_NAME)
        self._busy_timeout_ms = busy_timeout_ms
        self._writing: aiosqlite.Connection | None = None
        self._reading: aiosqlite.Connection | None = None

    async def open(self) -> None:
        """Connect, and create what is missing. Raises RetryLater when the file cannot be opened. Waits at
        most `busy_timeout_ms` milliseconds for another process."""
        with _translated():
            # Fails before the asynchronous driver: its failed connect leaves a thread that outlives the loop.
            await asyncio.to_thread(self._make_file)
        async with AsyncExitStack() as unless_opened:
            with _translated():
                connection = reading = await self._connected(unless_opened)
                await _switch_to_wal(connection, self._busy_timeout_ms / 1000)
                # An acknowledged save survives a power cut: each commit is flushed before it returns.
                await connection.execute_fetchall("PRAGMA synchronous = FULL")
                # Of what is deleted no byte stays in the file.
                await connection.execute_fetchall("PRAGMA secure_delete = ON")
                for statement in _SCHEMA:
                    await connection.execute_fetchall(statement)
                if self._path != MEMORY:
                    reading = await self._connected(unless_opened)
            unless_opened.pop_all()
        self._writing, self._reading = connection, reading

    async def _connected(self, stack: AsyncExitStack) -> aiosqlite.Connection:
        connection = await aiosqlite.connect(
            self._path, timeout=self._busy_timeout_ms / 1000, isolation_level=None
        )
        stack.push_async_callback(connection.close)
        return connection

    def _make_file(self) -> None:
        """For this user alone, as what SQLite puts beside it is then too. A file that is there stays as it
        is."""
        if self._path != MEMORY:
            with suppress(OSError):  # of which SQLite tells
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        sqlite3.connect(self._path).close()

    async def close(self) -> None:
        """Close the connections; a second call does nothing."""
        connections = {self._reading, self._writing}
        self._reading = self._writing = None
        for connection in connections:
            if connection is not None:
                await connection.close()

    async def ready(self) -> None:
        """Return when the tables can be read and there is room for a version, else raise RetryLater."""
        await self.rows("SELECT 1 FROM flows LIMIT 1", ())
        if self._path != MEMORY:
            disk = os.statvfs(self._path)
            # Some network disks tell nothing: all is 0.
            if disk.f_blocks and disk.f_bavail * disk.f_frsize < self._room_bytes:
                raise RetryLater("flow_store_unavailable", f"the flow store takes no writes: {_FULL}")

    async def change(self, statement: str, parameters: Sequence[object]) -> bool:
        """Run one writing statement; True when it changed exactly one row. Waits at most `busy_timeout_ms`
        milliseconds for another writer, then raises RetryLater."""
        with _translated():
            async with _open(self._writing).execute(statement, parameters) as cursor:
                return cursor.rowcount == 1

    async def rows(self, statement: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        connection = _open(self._reading if statement.startswith("SELECT ") else self._writing)
        with _translated():
            return [tuple(row) for row in await connection.execute_fetchall(statement, parameters)]

    async def add_columns(self, table: str, columns: Mapping[str, str]) -> None:
        """Those that a table of an earlier release has not, by name, each with its definition in SQL."""
        there = await self._columns(table)
        for name in [each for each in columns if each not in there]:
            try:
                await self.rows(f"ALTER TABLE {table} ADD COLUMN {name} {columns[name]}", ())
            except RetryLater:  # unless another process was faster
                if name not in await self._columns(table):
                    raise

    async def _columns(self, table: str) -> set[str]:
        return {str(column[1]) for column in await self.rows(f"PRAGMA table_xinfo({table})", ())}


def _open(connection: aiosqlite.Connection | None) -> aiosqlite.Connection:
    if connection is None:
        raise RetryLater("flow_store_unavailable", "the flow store is not open")
    return connection


class SqliteFlowStore:
    """The FlowStore port on SQLite."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def insert(self, tenant_id: str, flow: FlowRecord) -> bool:
        return await self._database.change(
            "INSERT INTO flows (tenant_id, flow_id, campaign_id, revision, record) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT DO NOTHING",
            (tenant_id, flow.flow_id, flow.campaign_id, flow.revision, _to_json(flow)),
        )

    async def replace(self, tenant_id: str, flow: FlowRecord, expected_revision: int) -> bool:
        return await self._database.change(
            "UPDATE flows SET campaign_id = ?, revision = ?, record = ? "
            "WHERE tenant_id = ? AND flow_id = ? AND revision = ?",
            (flow.campaign_id, flow.revision, _to_json(flow), tenant_id, flow.flow_id, expected_revision),
        )

    async def get(self, tenant_id: str, flow_id: str) -> FlowRecord | None:
        rows = await self._database.rows(
            "SELECT record FROM flows WHERE tenant_id = ? AND flow_id = ?", (tenant_id, flow_id)
        )
        return _from_json(rows[0][0]) if rows else None

    async def list(self, tenant_id: str, campaign_id: str | None) -> Sequence[FlowRecord]:
        if campaign_id is None:
            rows = await self._database.rows("SELECT record FROM flows WHERE tenant_id = ?", (tenant_id,))
        else:
            rows = await self._database.rows(
                "SELECT record FROM flows WHERE tenant_id = ? AND campaign_id = ?", (tenant_id, campaign_id)
            )
        return [_from_json(record) for (record,) in rows]


class SqliteVersionStore:
    """The VersionStore port on SQLite."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def insert(self, tenant_id: str, version: StoredVersion) -> bool:
        return await self._database.change(
            "INSERT INTO versions (tenant_id, version_id, flow_id, document) VALUES (?, ?, ?, ?) "
            "ON CONFLICT DO NOTHING",
            (tenant_id, version.version_id, version.flow_id, version.document),
        )

    async def get(self, tenant_id: str, version_id: str) -> StoredVersion | None:
        rows = await self._database.rows(
            "SELECT version_id, flow_id, document FROM versions WHERE tenant_id = ? AND version_id = ?",
            (tenant_id, version_id),
        )
        return StoredVersion(*rows[0]) if rows else None

    async def remove(self, tenant_id: str, version: StoredVersion) -> bool:
        return await self._database.change(
            "DELETE FROM versions WHERE tenant_id = ? AND version_id = ? AND flow_id = ? AND document = ?",
            (tenant_id, version.version_id, version.flow_id, version.document),
        )


async def _switch_to_wal(connection: aiosqlite.Connection, patience_s: float) -> None:
    """Set the journal mode, again if another process is setting it on the same new file.

    SQLite reports that lock at once, without the wait of `busy_timeout`: waiting could be a deadlock.
    """
    clock = asyncio.get_running_loop()
    deadline = clock.time() + patience_s
    while True:
        try:
            await connection.execute_fetchall("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or clock.time() >= deadline:
                raise
            await asyncio.sleep(_WAL_PAUSE_S)


def _to_json(flow: FlowRecord) -> bytes:
    return orjson.dumps(flow_to_plain(flow))


def _from_json(record: bytes) -> FlowRecord:
    try:
        plain = orjson.loads(record)
    except orjson.JSONDecodeError as error:
        raise CallTheOperator("stored_flow_unreadable", "a stored flow is not JSON") from error
    return flow_from_plain(plain)
