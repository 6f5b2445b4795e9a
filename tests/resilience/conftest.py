"""Two service processes on one durable Redis, shared by the tests of a module, and what looks at them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from memory.connection import RedisMemory, connect
from tests.redis_fixture import RedisServer
from tests.resilience.fleet import HttpEngine, Worker, running
from tests.resilience.flow import publish


@pytest.fixture(scope="module")
def fleet(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RedisServer, list[Worker]]]:
    data_dir = tmp_path_factory.mktemp("fleet")
    asyncio.run(publish(data_dir))
    with running(redis_server, data_dir) as workers:
        yield redis_server, list(workers)


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[RedisMemory]:
    memory = connect(redis_server.url)
    yield memory
    await memory.close()


@pytest.fixture
async def engine(fleet: tuple[RedisServer, list[Worker]]) -> AsyncIterator[HttpEngine]:
    http = HttpEngine(fleet[1])
    yield http
    await http.aclose()
