"""The example consumer, run as a reader would run it, on what a whole service tells (F40, F41)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flow_engine.ports.jobs import Job
from memory.connection import connect
from memory.keys import EVENTS_KEY
from tests.flow_engine.use_cases.test_delivery import relaying
from tests.memory.events_scene import events_on, fresh_ref, some_events, write_down
from tests.redis_fixture import RedisServer, StartRedis

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]


def consumed(server: RedisServer, *more: str) -> list[str]:
    command = [sys.executable, str(ROOT / "examples" / "consume_events.py"), "--redis", server.url, *more]
    done = subprocess.run(command, capture_output=True, check=True, timeout=30, text=True)
    return [line.rsplit("\t", 1)[1] for line in done.stdout.splitlines()]


def events_with_ids(count: int) -> list[bytes]:
    return [
        event.replace(
            b"{", b'{"type":"message","conversationId":"c","data":{"name":"n","conversationId":"c"},', 1
        )
        for event in some_events(count)
    ]


async def test_the_consumers_of_a_group_share_the_events_and_miss_none(start_redis: StartRedis) -> None:
    server = start_redis()
    memory, conversation = connect(server.url), fresh_ref()
    await write_down(memory.driver.client, conversation, events_with_ids(7))
    await relaying(events_on(memory.driver.client)).relay(Job("relay", conversation))
    assert consumed(server, "--count", "3") == ["e0", "e1", "e2"]
    # The others of its batch were read and not acknowledged: the next run begins with them.
    assert consumed(server, "--seconds", "1") == ["e3", "e4", "e5", "e6"]
    assert consumed(server, "--seconds", "1") == []
    assert consumed(server, "--group", "another", "--count", "7") == [f"e{n}" for n in range(7)]
    assert (await memory.driver.client.xpending(EVENTS_KEY, "reporting"))["pending"] == 0
    await memory.close()
