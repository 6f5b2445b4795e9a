"""An SQLite file that several programs open, and that the first of them makes."""

import sqlite3
import time
from typing import Any, Final

_PAUSE_S: Final = 0.02


class SharedFile(sqlite3.Connection):
    """In WAL mode. To be given as `factory` to `connect`, whose `timeout` in seconds holds for this too.

    Two programs that set the mode of a new file at once could wait for each other for ever, so SQLite tells
    one of them `database is locked` without the wait of its `timeout`.
    """

    def __init__(self, database: str, timeout: float, *args: Any, **kwargs: Any) -> None:
        super().__init__(database, timeout, *args, **kwargs)
        deadline = time.monotonic() + timeout
        while True:
            try:
                self.execute("PRAGMA journal_mode = WAL")
                self.execute("PRAGMA synchronous = NORMAL")
                return
            except sqlite3.OperationalError as error:
                busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
                if not busy or time.monotonic() >= deadline:
                    self.close()
                    raise
                time.sleep(_PAUSE_S)
