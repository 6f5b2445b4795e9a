"""Two service processes on one durable Redis, shared by the tests of a module."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.redis_fixture import RedisServer
from tests.resilience.fleet import Worker, running
from tests.resilience.flow import publish


@pytest.fixture(scope="module")
def fleet(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RedisServer, list[Worker]]]:
    data_dir = tmp_path_factory.mktemp("fleet")
    asyncio.run(publish(data_dir))
    with running(redis_server, data_dir) as workers:
        yield redis_server, list(workers)
