"""The two databases, what they hold, and where a workspace begins (W3, W4)."""

import gc
import hashlib
import shutil
import sqlite3
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from channels.workspace.assistant import MOST_TOOLBOXES
from channels.workspace.confinement import Root
from channels.workspace.store import Store, detect, remember_workspace
from flow_engine.errors import CallTheOperator, LookElsewhere
from flow_engine.ports.models import Message, ToolCall
from tests.channels.workspace.workspace_world import git, opened
from tests.timing import takes_less_than

COLUMNS: Mapping[str, Sequence[str]] = {
    "files": ("id", "path", "hash", "mtime", "size", "indexed_at"),
    "embeddings": ("id", "file_id", "chunk_index", "chunk_text", "vector"),
    "response_cache": ("id", "prompt_hash", "response", "model", "created_at", "expires_at", "hit_count"),
    "fts_content": ("path", "content"),
    "sessions": ("id", "created_at", "updated_at", "backend", "model", "metadata"),
    "messages": ("id", "session_id", "role", "content", "tool_call_id", "tool_name", "created_at"),
    "command_history": ("id", "session_id", "command", "created_at"),
}
INDEXES = {
    *("idx_files_hash", "idx_embeddings_file", "idx_cache_expires", "idx_messages_session"),
    "idx_history_session",
}


def columns(database: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in database.execute(f"PRAGMA table_info({table})")]


def test_every_table_column_and_index_is_there(tmp_path: Path) -> None:  # W4
    with opened(tmp_path) as world:
        database = world.workspace.store.database
        for table, names in COLUMNS.items():
            assert set(names) <= set(columns(database, table)), table
        indexes = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
        assert indexes >= INDEXES
        assert database.execute("PRAGMA foreign_keys").fetchone() == (1,)
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_the_full_text_table_can_be_read_and_searched(tmp_path: Path) -> None:  # W3
    """A table with `content='files'` fails at the first row that it shows: files has no column `content`."""
    with opened(tmp_path) as world:
        database = world.workspace.store.database
        database.execute("INSERT INTO fts_content (rowid, path, content) VALUES (1, 'a.py', 'def total')")
        found = database.execute("SELECT path, content FROM fts_content WHERE fts_content MATCH 'total'")
        assert found.fetchall() == [("a.py", "def total")]
    broken = sqlite3.connect(":memory:")
    broken.execute("CREATE TABLE files (id INTEGER PRIMARY KEY, path TEXT)")
    broken.execute("CREATE VIRTUAL TABLE f USING fts5(path, content, content='files', content_rowid='id')")
    broken.execute("INSERT INTO f (rowid, path, content) VALUES (1, 'a.py', 'def total')")
    broken.execute("INSERT INTO files VALUES (1, 'a.py')")
    with pytest.raises(sqlite3.OperationalError, match="content"):
        broken.execute("SELECT content FROM f WHERE f MATCH 'total'").fetchall()
    broken.close()


def test_a_disk_that_gets_full_is_told_to_the_operator(tmp_path: Path) -> None:  # W4
    with opened(tmp_path) as world:
        store = world.workspace.store
        session = store.begin("gateway", "m")
        store.database.execute("PRAGMA max_page_count = 1")
        with pytest.raises(CallTheOperator, match=r"workspace_unusable: .*workspace\.db: .* is full"):
            store.add(session, "t", Message("user", "x" * 100_000))
        assert store.messages(session) == []
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            store.database.execute("SELECT * FROM nowhere")


def test_the_home_database_knows_the_workspaces(tmp_path: Path) -> None:  # W3
    home = tmp_path / "home"
    remember_workspace(Path("/a/project"), "git", home)
    remember_workspace(Path("/b"), "cwd", home)
    remember_workspace(Path("/a/project"), "agentichat", home)
    with closing(sqlite3.connect(home / ".agentichat" / "proxy.db")) as database:
        assert columns(database, "workspaces") == [
            *("id", "root_path", "detected_by", "created_at", "last_active")
        ]
        rows = database.execute("SELECT id, root_path, detected_by FROM workspaces ORDER BY 2").fetchall()
        ages = database.execute("SELECT last_active > created_at FROM workspaces ORDER BY root_path")
        assert [row[0] for row in ages] == [1, 0]
        indexes = database.execute("SELECT name FROM sqlite_master WHERE name = 'idx_workspaces_path'")
        assert indexes.fetchone()
    assert rows == [
        (hashlib.sha256(b"/a/project").hexdigest(), "/a/project", "agentichat"),
        (hashlib.sha256(b"/b").hexdigest(), "/b", "cwd"),
    ]


def test_a_workspace_begins_at_the_nearest_mark(tmp_path: Path) -> None:  # W3
    home = tmp_path / "home"
    project = home / "work" / "project"
    deep = project / "src" / "deep"
    deep.mkdir(parents=True)
    assert detect(deep, home) == (deep, "cwd")
    (project / ".git").mkdir()
    assert detect(deep, home) == (project, "git")
    (home / ".agentichat").mkdir()  # holds proxy.db: the home is no workspace for it
    assert detect(deep, home) == (project, "git")
    (home / "work" / ".agentichat").mkdir()
    assert detect(deep, home) == (home / "work", "agentichat")
    (project / "src" / ".agentichat").mkdir()
    assert detect(deep, home) == (project / "src", "agentichat")
    (deep / ".git").write_text("gitdir: elsewhere\n", "utf-8")  # a worktree has a file
    assert detect(deep, home) == (project / "src", "agentichat")
    with pytest.raises(CallTheOperator, match="no_such_directory"):
        detect(tmp_path / "none", home)


def test_nearest_git_wins_over_one_further_up(tmp_path: Path) -> None:  # W3
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "outer" / ".git").mkdir()
    (inner / ".git").write_text("gitdir: ../x\n", "utf-8")
    assert detect(inner, tmp_path / "home") == (inner, "git")


def test_the_database_stays_out_of_git(tmp_path: Path) -> None:  # W4
    (tmp_path / "ws").mkdir()
    git(tmp_path / "ws", "init", "-q")
    with opened(tmp_path) as world:
        (world.root / ".agentichat" / "instructions.md").write_text("Be brief.", "utf-8")
        (world.root / ".agentichat" / "ignore").write_text("*.log\n", "utf-8")
        (world.root / ".agentichat" / "undo" / "x").write_text("kept", "utf-8")
        (world.root / ".agentichat" / "proxy.db").write_text("kept", "utf-8")
        listed = git(world.root, "status", "--short", "--untracked-files=all").splitlines()
    assert listed == ["?? .agentichat/ignore", "?? .agentichat/instructions.md"]


def test_migrations_go_on_from_where_a_database_stands(tmp_path: Path) -> None:  # W4
    with opened(tmp_path) as world:
        store = world.workspace.store
        session = store.begin("b", "m")
        [(newest,)] = store.database.execute("PRAGMA user_version")
        assert newest >= 2
        store.database.executescript(
            "DROP TABLE changes; DROP INDEX idx_embeddings_model; PRAGMA user_version = 1;"
        )
    root = Root(tmp_path / "ws")
    with closing(Store(root)) as again:
        assert again.session(session).model == "m"
        assert "undone_at" in columns(again.database, "changes")
        assert again.database.execute("PRAGMA user_version").fetchone() == (newest,)
        again.database.execute(f"PRAGMA user_version = {newest + 1}")
    with pytest.raises(CallTheOperator, match="newer version"):
        Store(root)
    root.close()


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:  # W4
    folder = tmp_path / "ws" / ".agentichat"
    folder.mkdir(parents=True)
    with closing(sqlite3.connect(folder / "workspace.db")) as database:
        database.execute("CREATE TABLE messages (mine TEXT)")
    root = Root(tmp_path / "ws")
    with pytest.raises(CallTheOperator, match="workspace_unusable"):
        Store(root)
    with closing(sqlite3.connect(folder / "workspace.db")) as database:
        names = [row[0] for row in database.execute("SELECT name FROM sqlite_master")]
        assert names == ["messages"]
        assert database.execute("PRAGMA user_version").fetchone() == (0,)
    root.close()


@pytest.mark.parametrize("name", [".agentichat", ".agentichat/workspace.db", ".agentichat/undo"])
def test_a_database_behind_a_link_is_not_used(name: str, tmp_path: Path) -> None:  # W10
    root, elsewhere = tmp_path / "ws", tmp_path / "elsewhere"
    (root / name).parent.mkdir(parents=True)
    elsewhere.mkdir()
    (root / name).symlink_to(elsewhere)
    handle = Root(root)
    with pytest.raises(CallTheOperator, match="workspace_unusable"):
        Store(handle)
    handle.close()
    assert list(elsewhere.iterdir()) == []


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:  # W4
    folder = tmp_path / ".agentichat"
    folder.mkdir()
    (folder / "workspace.db").write_text("not a database at all, but text " * 50, "utf-8")
    root = Root(tmp_path)
    with pytest.raises(CallTheOperator, match=r"workspace\.db"):
        Store(root)
    root.close()


def test_messages_come_back_as_they_went_in(tmp_path: Path) -> None:  # W4
    with opened(tmp_path) as world:
        store, session = world.workspace.store, world.session
        call = ToolCall("call_1", "read_file", {"path": "a", "start_line": 2})
        dialogue = [
            (Message("user", "Grüß dich, 你好\n"), None),
            (Message("assistant", "", tool_calls=(call,)), None),
            (Message("tool", '{"success":true}', tool_call_id="call_1"), "read_file"),
            (Message("assistant", "done"), None),
        ]
        for message, tool in dialogue:
            store.add(session, "t1", message, tool)
        stored = store.messages(session)
        assert [(each.message, each.tool_name) for each in stored] == dialogue
        assert [each.id for each in stored] == sorted(each.id for each in stored)
        assert store.messages(session, stored[1].id) == stored[2:]
        row = store.database.execute(
            "SELECT role, tool_call_id, tool_name FROM messages WHERE role = 'tool'"
        ).fetchone()
        assert row == ("tool", "call_1", "read_file")
        store.database.execute("DELETE FROM sessions WHERE id = ?", (session,))
        assert store.messages(session) == []


def test_sessions_are_listed_by_their_last_word(tmp_path: Path) -> None:  # W4
    with opened(tmp_path) as world:
        store = world.workspace.store
        first, second = world.session, store.begin("http://x/v1", "other")
        assert [each.id for each in store.sessions()] == [second, first]
        store.add(first, "t1", Message("user", "again"))
        assert store.session(None).id == first
        store.describe(first, title="x")
        store.describe(first, input_tokens=3)
        assert store.session(first).metadata == {"title": "x", "input_tokens": 3}
        with pytest.raises(LookElsewhere, match="session_unknown"):
            store.session("none")


def test_what_was_typed_is_remembered_in_order(tmp_path: Path) -> None:  # W4
    with opened(tmp_path) as world:
        store = world.workspace.store
        for number in range(5):
            store.remember(world.session, f"line {number}")
        assert store.history(3) == ["line 2", "line 3", "line 4"]
        assert len(store.history()) == 5


def test_two_programs_share_a_workspace(tmp_path: Path) -> None:  # W4
    with opened(tmp_path) as world:
        program = (
            "import sys; from pathlib import Path; from contextlib import closing; "
            "from channels.workspace.confinement import Root; from channels.workspace.store import Store; "
            "print(Store(Root(Path(sys.argv[1]))).begin('b', 'elsewhere'))"
        )
        other = subprocess.run(
            [sys.executable, "-c", program, str(world.root)],
            capture_output=True,
            check=True,
            cwd=Path(__file__).parents[3],
        ).stdout.decode()
        assert world.workspace.store.session(other.strip()).model == "elsewhere"


def test_two_programs_begin_a_workspace_at_once(tmp_path: Path) -> None:  # W3
    folder, home = tmp_path / "ws", tmp_path / "home"
    folder.mkdir()

    def begun(number: int) -> str:
        remember_workspace(folder, "cwd", home)
        with closing(Store(Root(folder))) as store:
            return store.begin("b", str(number))

    for _ in range(5):
        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(begun, range(8)))) == 8
        shutil.rmtree(folder / ".agentichat")
        shutil.rmtree(home)


def test_a_session_is_found_as_soon_among_many(tmp_path: Path) -> None:  # W4
    """Every request to the gateway without a session begins one, and every turn asks for its own often."""
    with opened(tmp_path) as world:
        store = world.workspace.store
        row = ("gateway", "m", '{"summary": "%s"}' % ("x" * 200))
        many = [(f"s{number}", 1.0, 1.0, *row) for number in range(30_000)]
        store.database.execute("BEGIN")
        store.database.executemany("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?)", many)
        store.database.execute("COMMIT")
        assert takes_less_than(2, lambda: [store.describe(f"s{number}", title="x") for number in range(200)])
        assert store.session("s7").metadata["title"] == "x"


def test_the_tools_of_sessions_of_long_ago_are_forgotten(tmp_path: Path) -> None:  # W2
    with opened(tmp_path) as world:
        toolbox = world.workspace.toolbox
        first, second = weakref.ref(toolbox("s0")), toolbox("s1")
        for number in range(2, MOST_TOOLBOXES + 1):
            toolbox(f"s{number}")
            assert toolbox("s1") is second
        gc.collect()
        assert first() is None
