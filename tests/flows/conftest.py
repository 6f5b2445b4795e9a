"""Servers that the contract suites speak to over the wire."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from flows.mongo_store import MongoDatabase
from flows.sqlite_store import MEMORY, SqliteDatabase
from tests.mongo_fixture import WireServer, start_wire_server


@pytest.fixture(scope="session")
def mongo_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server of MongoDB's wire protocol that lives as long as the test session."""
    server = start_wire_server(tmp_path_factory.mktemp("mongo"))
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
        servers.append(start_wire_server(tmp_path))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
