"""Reads the events of all conversations from Redis as one consumer of a group, and prints them.

Run any number with the same --group and different --consumer: they share the events. An event is
acknowledged after it was printed, so that one which is killed in between leaves it for the next: replace
`handle` by what stores events, and let it drop an `eventId` that it has stored before.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from redis import Redis
from redis.exceptions import ResponseError

STREAM = "{flow-engine}:events"
BATCH = 100
BLOCK_MS = 500
ABANDONED_AFTER_MS = 60_000

Entry = tuple[bytes, dict[bytes, bytes]]


def handle(event: dict[str, Any], tenant: str, kind: str) -> None:
    where = event["data"] if kind == "checkpoint" else event
    told = event["data"]["name"] if kind == "checkpoint" else json.dumps(event["body"], ensure_ascii=False)
    print(tenant, where["conversationId"], event["type"], told, event["eventId"], sep="\t", flush=True)


def create_group(redis: Redis, group: str) -> None:
    """From the oldest event that the stream still has. One that exists goes on where it stood."""
    try:
        redis.xgroup_create(STREAM, group, id="0", mkstream=True)
    except ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise


def batches(redis: Redis, group: str, consumer: str) -> Iterator[list[Entry]]:
    """First what this consumer had not acknowledged before it ended, then new events and, between them,
    what others left behind. An empty batch means that there is nothing now."""
    after: Any = "0"
    while entries := _read(redis, group, consumer, after, None):
        after = entries[-1][0]
        yield _present(entries)
    while True:
        entries = _read(redis, group, consumer, ">", BLOCK_MS)
        if not entries:
            claimed: Any = redis.xautoclaim(STREAM, group, consumer, ABANDONED_AFTER_MS, count=BATCH)
            entries = claimed[1]
        yield _present(entries)


def _read(redis: Redis, group: str, consumer: str, after: Any, block: int | None) -> list[Entry]:
    found: Any = redis.xreadgroup(group, consumer, {STREAM: after}, count=BATCH, block=block)
    return found[0][1] if found else []


def _present(entries: list[Entry]) -> list[Entry]:
    """Without those that the stream has forgotten since they were read."""
    return [(entry_id, fields) for entry_id, fields in entries if fields]


def consume(redis: Redis, group: str, consumer: str, count: int | None, seconds: float | None) -> int:
    """Returns how many events were handled: after `count`, or after `seconds`, whichever is first."""
    create_group(redis, group)
    handled, until = 0, None if seconds is None else time.monotonic() + seconds
    for batch in batches(redis, group, consumer):
        for entry_id, fields in batch:
            if count is not None and handled >= count:
                return handled
            handle(json.loads(fields[b"event"]), fields[b"tenant"].decode(), fields[b"kind"].decode())
            redis.xack(STREAM, group, entry_id)
            handled += 1
        if handled == count or (until is not None and time.monotonic() >= until):
            return handled
    raise AssertionError("batches never end")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis", default="redis://127.0.0.1:6379/0")
    parser.add_argument("--group", default="reporting")
    parser.add_argument("--consumer", default="consumer-1")
    parser.add_argument("--count", type=int, help="end after so many events")
    parser.add_argument("--seconds", type=float, help="end after so many seconds")
    given = parser.parse_args()
    with Redis.from_url(given.redis, socket_timeout=10) as redis:
        handled = consume(redis, given.group, given.consumer, given.count, given.seconds)
    print(f"{handled} events", file=sys.stderr)


if __name__ == "__main__":
    main()
