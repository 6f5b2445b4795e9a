"""The gateway's own SQLite file, which all its processes on a machine share: kept answers and usage records.

Whoever keeps something there says so by `at_each_flush`, and writes every `FLUSH_EVERY_S` seconds, and once
more at the end. A database that fails is logged, and costs no caller an answer.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiosqlite
import structlog

from channels.sqlite_file import SharedFile
from flow_engine.errors import CallTheOperator

FILE_NAME: Final = "gateway.db"
FLUSH_EVERY_S: Final = 0.5
BUSY_S: Final = 5.0
"""How long a statement waits for another process."""

_SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS response_cache (
        id INTEGER PRIMARY KEY, prompt_hash TEXT UNIQUE NOT NULL, response TEXT NOT NULL, model TEXT NOT NULL,
        created_at REAL NOT NULL, expires_at REAL, hit_count INTEGER DEFAULT 0)""",
    "CREATE INDEX IF NOT EXISTS idx_cache_expires ON response_cache(expires_at)",
    """CREATE TABLE IF NOT EXISTS cache_state (
        one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER NOT NULL, hits INTEGER NOT NULL)""",
    "INSERT OR IGNORE INTO cache_state VALUES (1, 0, 0)",
    """CREATE TABLE IF NOT EXISTS usage_records (
        id INTEGER PRIMARY KEY, at REAL NOT NULL, tenant TEXT NOT NULL, key TEXT NOT NULL,
        operation TEXT NOT NULL, backend TEXT NOT NULL, model TEXT NOT NULL, outcome TEXT NOT NULL,
        error TEXT, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, usd REAL,
        first_ms INTEGER, duration_ms INTEGER NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS idx_usage_at ON usage_records(at)",
)

log: Any = structlog.get_logger("flow_engine.gateway")


class GatewayDatabase:
    """To be used while `running`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._flushers: list[Callable[[], Awaitable[None]]] = []
        self._connection: aiosqlite.Connection

    def at_each_flush(self, flush: Callable[[], Awaitable[None]]) -> None:
        self._flushers.append(flush)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[GatewayDatabase]:
        """Raises CallTheOperator `gateway_database_unusable`: the file cannot be opened."""
        self._connection = await _connected(self._path)
        try:
            await self._flush()
            over = asyncio.Event()
            flushing = asyncio.create_task(self._flush_until(over))
            try:
                yield self
            finally:
                over.set()
                await flushing  # never cancelled: nobody knew what of a flush was written
                await self._flush()
        finally:
            await self._connection.close()  # its thread would keep the process

    async def _flush_until(self, over: asyncio.Event) -> None:
        while not over.is_set():
            try:
                await asyncio.wait_for(over.wait(), FLUSH_EVERY_S)
            except TimeoutError:
                await self._flush()

    async def _flush(self) -> None:
        for flush in self._flushers:
            await flush()

    async def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Empty, too, where the database fails."""
        try:
            return [tuple(row) for row in await self._connection.execute_fetchall(statement, values)]
        except sqlite3.Error as error:
            _warn(error)
            return []

    async def change(self, statement: str, rows: Iterable[Sequence[object]]) -> bool:
        """All rows in one transaction. False, and nothing is changed, where the database fails or cannot hold
        a value."""
        try:
            await self._connection.executemany(statement, rows)
            await self._connection.commit()
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            _warn(error)
            with suppress(sqlite3.Error):
                await self._connection.rollback()
            return False
        return True


def _warn(error: Exception) -> None:
    """By SQLite's name, such as SQLITE_FULL or SQLITE_READONLY: its kind of error is one for all of them."""
    log.warning("gateway_database_failed", reason=getattr(error, "sqlite_errorname", type(error).__name__))


async def _connected(path: Path) -> aiosqlite.Connection:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite: for all
        # Fails before the asynchronous driver: its failed connect leaves a thread that outlives the loop.
        SharedFile(str(path), BUSY_S).close()
        async with AsyncExitStack() as stack:
            connection = await stack.enter_async_context(
                aiosqlite.connect(path, timeout=BUSY_S, factory=SharedFile)
            )
            for statement in _SCHEMA:
                await connection.execute_fetchall(statement)
            await connection.commit()
            stack.pop_all()  # it stays open
    except (OSError, sqlite3.Error) as error:
        raise CallTheOperator("gateway_database_unusable", f"{path}: {error}") from error
    return connection


@asynccontextmanager
async def opened(path: Path) -> AsyncGenerator[aiosqlite.Connection]:
    """For a command: a connection to the file at `path`, which is made where there is none. Raises
    CallTheOperator `gateway_database_unusable`, also for a statement that fails within."""
    connection = await _connected(path)
    try:
        yield connection
    except sqlite3.Error as error:
        raise CallTheOperator("gateway_database_unusable", f"{path}: {error}") from error
    finally:
        await connection.close()
