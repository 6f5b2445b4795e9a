"""Servers that the contract suites speak to over the wire."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from flows.mongo_store import MongoDatabase
from flows.sqlite_store import MEMORY, SqliteDatabase
from tests.ports import free_port

START_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class WireServer:
    """A running server of MongoDB's wire protocol. `stop` ends that process and no other."""

    url: str
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=10)


def _start(folder: Path) -> WireServer:
    port = free_port()
    command = [sys.executable, "-m", "nx_27017.nx_27017", "--data-dir", "memory", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--log-file", str(folder / "log"), "--pid-file", str(folder / "pid")]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return WireServer(f"mongodb://127.0.0.1:{port}", process)
        time.sleep(0.05)
    process.kill()
    process.wait(timeout=10)
    raise RuntimeError(f"no server on port {port}: {(folder / 'output').read_text()}")


@pytest.fixture(scope="session")
def mongo_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server of MongoDB's wire protocol that lives as long as the test session."""
    server = _start(tmp_path_factory.mktemp("mongo"))
    yield server.url
    server.stop()


@pytest.fixture(params=["sqlite file", "sqlite memory", "mongodb wire"])
async def database(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[SqliteDatabase | MongoDatabase]:
    """Where records are kept: each kind of database once, open and empty."""
    if request.param == "mongodb wire":
        url = request.getfixturevalue("mongo_url")
        opened = MongoDatabase(url, database_name=f"records_{uuid.uuid4().hex}")
    else:
        opened = SqliteDatabase(tmp_path if request.param == "sqlite file" else MEMORY)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def start_mongo(tmp_path: Path) -> Iterator[Callable[[], WireServer]]:
    """Start servers of the test's own, which it may stop when it likes."""
    servers: list[WireServer] = []

    def start() -> WireServer:
        servers.append(_start(tmp_path))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
