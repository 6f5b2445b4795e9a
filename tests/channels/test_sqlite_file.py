"""Files that several programs open at once."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from channels.sqlite_file import SharedFile


def test_programs_that_make_one_file_at_once_all_open_it(tmp_path: Path) -> None:  # W3, W7
    together = threading.Barrier(8)

    def mode(path: Path) -> str:
        together.wait()
        with closing(sqlite3.connect(path, timeout=10, factory=SharedFile)) as connection:
            return connection.execute("PRAGMA journal_mode").fetchone()[0]

    with ThreadPoolExecutor(8) as pool:
        for number in range(100):
            assert set(pool.map(mode, [tmp_path / str(number)] * 8)) == {"wal"}


def test_a_file_that_is_no_database_is_refused_at_once(tmp_path: Path) -> None:  # W3
    (tmp_path / "text").write_text("no database" * 100)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        sqlite3.connect(tmp_path / "text", timeout=1000, factory=SharedFile)
