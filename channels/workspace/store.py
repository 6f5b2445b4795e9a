"""The workspace's database and the user's, and where a workspace begins (W3, W4).

`.agentichat/workspace.db` has files, chunks, full text, sessions, messages, changes;
`~/.agentichat/proxy.db` the workspaces that were worked in. Tables change by numbered migrations (`PRAGMA
user_version`). The full-text table holds its texts itself: a table of files has no column for them.
"""

import hashlib
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast
from uuid import uuid4

import orjson

from channels.sqlite_file import SharedFile
from channels.workspace.confinement import Root, is_text
from flow_engine.errors import CallTheOperator, LookElsewhere
from flow_engine.ports.models import Message, ToolCall

FOLDER: Final = ".agentichat"
DetectedBy = Literal["agentichat", "git", "cwd"]

_MIGRATIONS: Final[Sequence[str]] = (
    """
    CREATE TABLE files (
        id INTEGER PRIMARY KEY, path TEXT UNIQUE NOT NULL, hash TEXT NOT NULL, mtime REAL NOT NULL,
        size INTEGER NOT NULL, indexed_at REAL NOT NULL);
    CREATE TABLE embeddings (
        id INTEGER PRIMARY KEY, file_id INTEGER REFERENCES files(id) ON DELETE CASCADE,
        chunk_index INTEGER NOT NULL, chunk_text TEXT NOT NULL, vector BLOB NOT NULL,
        start_line INTEGER, model TEXT, UNIQUE(file_id, chunk_index));
    CREATE TABLE response_cache (
        id INTEGER PRIMARY KEY, prompt_hash TEXT UNIQUE NOT NULL, response TEXT NOT NULL, model TEXT NOT NULL,
        created_at REAL NOT NULL, expires_at REAL, hit_count INTEGER DEFAULT 0);
    CREATE VIRTUAL TABLE fts_content USING fts5(path, content);
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY, created_at REAL NOT NULL, updated_at REAL NOT NULL, backend TEXT NOT NULL,
        model TEXT NOT NULL, metadata TEXT);
    CREATE TABLE messages (
        id INTEGER PRIMARY KEY, session_id TEXT REFERENCES sessions(id) ON DELETE CASCADE, role TEXT NOT NULL,
        content TEXT NOT NULL, tool_call_id TEXT, tool_name TEXT, created_at REAL NOT NULL,
        tool_calls TEXT, turn TEXT);
    CREATE TABLE command_history (
        id INTEGER PRIMARY KEY, session_id TEXT REFERENCES sessions(id) ON DELETE CASCADE,
        command TEXT NOT NULL, created_at REAL NOT NULL);
    CREATE INDEX idx_files_hash ON files(hash);
    CREATE INDEX idx_embeddings_file ON embeddings(file_id);
    CREATE INDEX idx_cache_expires ON response_cache(expires_at);
    CREATE INDEX idx_messages_session ON messages(session_id, created_at);
    CREATE INDEX idx_history_session ON command_history(session_id, created_at);
    """,
    """
    CREATE TABLE changes (
        id INTEGER PRIMARY KEY, session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        turn TEXT NOT NULL, call TEXT NOT NULL, path TEXT NOT NULL, before TEXT, after TEXT, mode INTEGER,
        folders TEXT NOT NULL, created_at REAL NOT NULL, undone_at REAL);
    CREATE INDEX idx_changes_session ON changes(session_id, turn);
    """,
    "CREATE INDEX idx_embeddings_model ON embeddings(model);",
)
_HOME_MIGRATIONS: Final[Sequence[str]] = (
    """
    CREATE TABLE workspaces (
        id TEXT PRIMARY KEY, root_path TEXT UNIQUE NOT NULL, detected_by TEXT NOT NULL,
        created_at REAL NOT NULL, last_active REAL NOT NULL);
    CREATE INDEX idx_workspaces_path ON workspaces(root_path);
    """,
)


def detect(start: Path, home: Path) -> tuple[Path, DetectedBy]:
    """The nearest directory upwards with `.agentichat` (the home's own does not count), else with `.git`,
    else `start`. Raises CallTheOperator `no_such_directory`."""
    start = start.resolve()
    if not is_text(str(start)):
        raise CallTheOperator("no_such_directory", f"{str(start)!r} is no UTF-8; accepted is another name")
    if not start.is_dir():
        raise CallTheOperator("no_such_directory", f"{str(start)!r} is no directory")
    upwards = (start, *start.parents)
    for each in upwards:
        if each != home.resolve() and (each / FOLDER).is_dir():
            return each, "agentichat"
    for each in upwards:
        if (each / ".git").exists():
            return each, "git"
    return start, "cwd"


_FILE_FAILS: Final = frozenset(
    (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY)
)


class _WorkspaceFile(SharedFile):
    """Where the file or its disk fails once it is open, its statements raise CallTheOperator
    `workspace_unusable`."""

    path: Path | None = None
    """Known once it is open."""

    def execute(self, *statement: Any) -> sqlite3.Cursor:
        try:
            return super().execute(*statement)
        except sqlite3.OperationalError as error:
            if self.path is None or error.sqlite_errorcode & 0xFF not in _FILE_FAILS:
                raise
            raise CallTheOperator("workspace_unusable", f"{self.path}: {error}") from error


def _connect(path: Path, migrations: Sequence[str]) -> sqlite3.Connection:
    """Raises CallTheOperator `workspace_unusable`, as its statements do."""
    try:
        database = sqlite3.connect(
            path, timeout=10, isolation_level=None, check_same_thread=False, factory=_WorkspaceFile
        )
        database.execute("PRAGMA foreign_keys = ON")
        [(version,)] = database.execute("PRAGMA user_version")
        if version < len(migrations):
            database.execute("BEGIN IMMEDIATE")
            # Whoever had to wait for that finds the tables of whoever did not.
            [(version,)] = database.execute("PRAGMA user_version")
            for script in migrations[version:]:
                for statement in script.split(";"):
                    database.execute(statement)
            database.execute(f"PRAGMA user_version = {max(version, len(migrations))}")
            database.execute("COMMIT")
        if version > len(migrations):
            raise CallTheOperator("workspace_unusable", f"{path} was written by a newer version")
    except sqlite3.Error as error:
        raise CallTheOperator("workspace_unusable", f"{path}: {error}") from error
    database.path = path
    return database


def remember_workspace(root: Path, by: DetectedBy, home: Path) -> None:
    """Write down in the home's database that this workspace was worked in now, in seconds since 1970, UTC.
    Raises OSError, CallTheOperator `workspace_unusable`."""
    folder = home / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    now = time.time()
    with closing(_connect(folder / "proxy.db", _HOME_MIGRATIONS)) as database:
        database.execute(
            "INSERT INTO workspaces VALUES (?, ?, ?, ?, ?) ON CONFLICT (root_path) DO UPDATE SET "
            "detected_by = excluded.detected_by, last_active = excluded.last_active",
            (hashlib.sha256(str(root).encode()).hexdigest(), str(root), by, now, now),
        )


@dataclass(frozen=True, slots=True)
class Session:
    """Times are seconds since 1970, UTC. `metadata` holds `title`, the `tenant` that began it by the gateway,
    and `summary` with `summary_upto` where the dialogue was shortened."""

    id: str
    created_at: float
    updated_at: float
    backend: str
    model: str
    metadata: Mapping[str, Any]


def session_unknown(session: str | None) -> LookElsewhere:
    named = "" if session is None else f" {session!r}"
    return LookElsewhere("session_unknown", f"there is no session{named} in this workspace")


_NEWEST_FIRST: Final = "SELECT * FROM sessions ORDER BY updated_at DESC, rowid DESC"


def _session(row: Sequence[Any]) -> Session:
    *columns, metadata = row
    return Session(*columns, metadata=orjson.loads(metadata or "{}"))


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message with its row and its turn; `created_at` in seconds since 1970, UTC."""

    id: int
    message: Message
    turn: str
    tool_name: str | None
    created_at: float


@dataclass(frozen=True, slots=True)
class Change:
    """One write or delete. `before` and `after` are SHA-256 of contents, None where there was no file;
    `folders` those that were made for it."""

    id: int
    session: str
    turn: str
    call: str
    path: str
    before: str | None
    after: str | None
    mode: int | None
    folders: tuple[str, ...]


class Store:
    """`.agentichat/workspace.db` of one workspace, and its blobs. Every write is there when it returns."""

    def __init__(self, root: Root) -> None:
        """Raises CallTheOperator `workspace_unusable`: the folder is a link, or the database cannot be
        used."""
        folder = root.path / FOLDER
        try:
            folder.mkdir(exist_ok=True)
            handle = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root.handle)
            os.close(handle)
            if (folder / "undo").is_symlink() or (folder / "workspace.db").is_symlink():
                raise OSError(f"{FOLDER} holds a link")
            (folder / "undo").mkdir(exist_ok=True)
            ignore = folder / ".gitignore"
            if not ignore.exists() and not ignore.is_symlink():
                ignore.write_text("/workspace.db*\n/proxy.db*\n/undo/\n/.gitignore\n", "utf-8")
        except OSError as error:
            raise CallTheOperator("workspace_unusable", f"{folder}: {error}") from error
        self.database = _connect(folder / "workspace.db", _MIGRATIONS)
        self.blobs = folder / "undo"

    def close(self) -> None:
        self.database.close()

    # Sessions and messages --------------------------------------------------------------------------

    def begin(self, backend: str, model: str) -> str:
        """A new session's id, 12 hexadecimal characters. Times are seconds since 1970, UTC."""
        now, session = time.time(), uuid4().hex[:12]
        self.database.execute(
            "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?)", (session, now, now, backend, model, "{}")
        )
        return session

    def sessions(self) -> list[Session]:
        """The newest first, by their last message in UTC; empty where there are none."""
        return [_session(row) for row in self.database.execute(_NEWEST_FIRST)]

    def session(self, session: str | None) -> Session:
        """That session, or without an id the newest. Raises LookElsewhere `session_unknown`."""
        statement = _NEWEST_FIRST if session is None else "SELECT * FROM sessions WHERE id = ?"
        row = self.database.execute(statement, () if session is None else (session,)).fetchone()
        if row is not None:
            return _session(row)
        raise session_unknown(session)

    def describe(self, session: str, **metadata: object) -> None:
        merged = {**self.session(session).metadata, **metadata}
        text = orjson.dumps(merged).decode()
        self.database.execute("UPDATE sessions SET metadata = ? WHERE id = ?", (text, session))

    def add(self, session: str, turn: str, message: Message, tool_name: str | None = None) -> None:
        calls = None
        if message.tool_calls:
            plain = [{"id": c.id, "name": c.name, "arguments": dict(c.arguments)} for c in message.tool_calls]
            calls = orjson.dumps(plain).decode()
        now = time.time()
        self.database.execute(
            "INSERT INTO messages (session_id, role, content, tool_call_id, tool_name, created_at, "
            "tool_calls, turn) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (session, message.role, message.content, message.tool_call_id, tool_name, now, calls, turn),
        )
        self.database.execute("UPDATE sessions SET updated_at = ? WHERE id = ?", (now, session))

    def messages(self, session: str, after: int = 0) -> list[StoredMessage]:
        """Oldest first, those whose row comes after `after`."""
        rows = self.database.execute(
            "SELECT id, role, content, tool_call_id, tool_calls, turn, tool_name, created_at FROM messages "
            "WHERE session_id = ? AND id > ? ORDER BY id",
            (session, after),
        )
        return [
            StoredMessage(
                row[0],
                Message(
                    row[1],
                    row[2],
                    row[3],
                    tuple(ToolCall(c["id"], c["name"], c["arguments"]) for c in orjson.loads(row[4] or "[]")),
                ),
                row[5] or "",
                row[6],
                row[7],
            )
            for row in rows
        ]

    def remember(self, session: str, command: str) -> None:
        """A line that the user typed, with the time in seconds since 1970, UTC."""
        self.database.execute(
            "INSERT INTO command_history (session_id, command, created_at) VALUES (?, ?, ?)",
            (session, command, time.time()),
        )

    def history(self, most: int = 1_000) -> list[str]:
        """The last `most` lines typed in any session, oldest first; empty where none were."""
        rows = self.database.execute("SELECT command FROM command_history ORDER BY id DESC LIMIT ?", (most,))
        return [command for (command,) in rows][::-1]

    # Changes ----------------------------------------------------------------------------------------

    def record(
        self,
        session: str,
        turn: str,
        call: str,
        path: str,
        before: str | None,
        after: str | None,
        mode: int | None,
    ) -> int:
        """Before the change is made: so that none is ever made unseen."""
        cursor = self.database.execute(
            "INSERT INTO changes (session_id, turn, call, path, before, after, mode, folders, created_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, '[]', ?)",
            (session, turn, call, path, before, after, mode, time.time()),
        )
        return cast("int", cursor.lastrowid)

    def made_folders(self, change: int, folders: Sequence[str]) -> None:
        text = orjson.dumps(list(folders)).decode()
        self.database.execute("UPDATE changes SET folders = ? WHERE id = ?", (text, change))

    def forget_change(self, change: int) -> None:
        """It was not made after all."""
        self.database.execute("DELETE FROM changes WHERE id = ?", (change,))

    def changes(self, name: str | None) -> list[Change]:
        """Not undone ones of a session, a turn or a step, oldest first; without a name those of the newest
        session's last turn that has any. Raises LookElsewhere `nothing_to_undo`."""
        if name is None:
            found = self.database.execute(
                "SELECT turn FROM changes WHERE undone_at IS NULL AND session_id = ? "
                "ORDER BY id DESC LIMIT 1",
                (self.session(None).id,),
            ).fetchone()
            name = found[0] if found else ""
        rows = self.database.execute(
            "SELECT id, session_id, turn, call, path, before, after, mode, folders FROM changes "
            "WHERE undone_at IS NULL AND ? IN (session_id, turn, call) ORDER BY id",
            (name,),
        )
        changes = [
            Change(a, b, c, d, e, f, g, h, tuple(orjson.loads(text))) for a, b, c, d, e, f, g, h, text in rows
        ]
        if not changes:
            where = repr(name) if name else "the last turn"
            raise LookElsewhere("nothing_to_undo", f"there is nothing to undo in {where}")
        return changes

    def undone(self, changes: Sequence[Change]) -> None:
        now = time.time()
        self.database.executemany(
            "UPDATE changes SET undone_at = ? WHERE id = ?", [(now, change.id) for change in changes]
        )
