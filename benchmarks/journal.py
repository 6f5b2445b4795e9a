"""What the journal costs a request: CPU of the service and of Redis with it and without it, in turns of one
run.

    python -m benchmarks.journal [--blocks 60]

Requests go to the application itself, so that neither a socket nor a load client is in the figures; Redis is
a server of its own. Exits with 1 where a call takes more than 8 % more CPU of the service with a journal.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
from fastapi import FastAPI
from rich.console import Console
from rich.table import Table

from adapters.outbound.client import GuardedClient
from adapters.outbound.policy import AllowList
from api.auth import LocalOnly
from benchmarks import documents
from benchmarks.processes import Cores
from benchmarks.servers import HOST, redis_server
from flow_engine.ports.clock import SystemClock
from flow_engine.use_cases import transactor
from memory.connection import RedisMemory, connect
from service import wiring
from service.settings import Settings

MOST_PERCENT, TASKS, BLOCK = 8.0, 12, 30
_NOTED = transactor._noted  # pyright: ignore[reportPrivateUsage]


Request = tuple[str, str, bytes]


async def ask(app: FastAPI, method: str, path: str, content: bytes) -> Any:
    """The reply as JSON. Raises RuntimeError for a status of 400 or more."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", HOST.encode()), (b"content-type", b"application/json")]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http"}
    raw = {"method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers}
    await app({**scope, **raw, "client": (HOST, 1), "server": (HOST, 80), "root_path": ""}, receive, send)
    if sent[0]["status"] >= 400:
        raise RuntimeError(f"{method} {path}: {sent[0]['status']} {sent[1]['body'][:300]!r}")
    return orjson.loads(sent[1]["body"])


async def redis_cpu_s(memory: RedisMemory) -> float:
    info: Any = await memory.driver.client.info("cpu")  # pyright: ignore
    return info["used_cpu_user"] + info["used_cpu_sys"]


async def measure(app: FastAPI, memory: RedisMemory, blocks: int) -> dict[str, Sequence[float]]:
    """For each call the added CPU of the service and of Redis, in percent: by medians over the blocks."""
    document = documents.build_version(TASKS, multi_contact=True)
    flow = await ask(
        app, "POST", "/v1/flows", orjson.dumps({"name": "b", "campaignId": "b", "updatedBy": "b"})
    )
    saved = await ask(app, "POST", f"/v1/flows/{flow['id']}/versions", orjson.dumps(document))
    walk = documents.walk(TASKS)

    def started(name: str, number: int) -> Request:
        return (
            "POST",
            "/v1/handle-new-contact",
            documents.contact_body(f"{name}-{number}", "c", saved["versionId"]),
        )

    def moved(name: str, number: int) -> Request:
        asked = {"contactId": "c", "conversationId": f"{name}-0", "task": walk[number % len(walk)]}
        return "POST", "/v1/change-task", orjson.dumps(asked)

    def written(name: str, number: int) -> Request:
        return "PUT", f"/v1/memory/{name}-0", documents.memory_body([number % 8], "c")

    def spoken(name: str, number: int) -> Request:
        turn = {"ts": "2026-01-15T09:30:00Z", "type": "message", "src": "bot", "body": "Good morning"}
        ids = {"contactId": "c", "conversationId": f"{name}-0", "messageId": f"m{number}"}
        return "POST", "/v1/handle-utterance", orjson.dumps({**turn, **ids})

    calls: dict[str, Callable[[str, int], Request]] = {
        "change task": moved,
        "memory put": written,
        "utterance": spoken,
        "new contact": started,
    }
    used: dict[tuple[str, bool], list[tuple[float, float]]] = defaultdict(list)
    for block in range(2 * blocks):
        journaled = block % 2 == 0
        setattr(transactor, "_noted", _NOTED if journaled else lambda *_: None)  # noqa: B010
        for call, request in calls.items():
            name = f"{call.replace(' ', '-')}-{block}"
            await ask(app, *started(name, 0))
            of_redis, own = await redis_cpu_s(memory), time.process_time()
            for number in range(1, BLOCK + 1):
                await ask(app, *request(name, number))
            used[call, journaled].append((time.process_time() - own, await redis_cpu_s(memory) - of_redis))
    medians = {
        key: [statistics.median(part) for part in zip(*found, strict=True)] for key, found in used.items()
    }
    return {
        call: [100 * (w / wo - 1) for w, wo in zip(medians[call, True], medians[call, False], strict=True)]
        for call in calls
    }


async def run(blocks: int) -> int:
    cores = Cores.choose()
    async with redis_server(core=cores.rest, aof=False) as redis:
        with TemporaryDirectory(prefix="flow-bench-journal-") as folder:
            settings = Settings(data_dir=Path(folder), samples=False, rules_extraction=False)
            memory = connect(f"redis://{HOST}:{redis.port}/0")
            database = wiring.open_flow_database(settings)
            dependencies = wiring.ServiceDependencies(
                SystemClock(), GuardedClient(AllowList.parse("")), memory, database
            )
            service = wiring.assemble(settings, dependencies, LocalOnly(), base_url=f"http://{HOST}")
            async with service.opened():
                figures = await measure(service.app, memory, blocks)
    table = Table("Call", "CPU of the service", "CPU of Redis", title="Added by the journal")
    for call, (own, of_redis) in figures.items():
        table.add_row(call, f"{own:+.1f} %", f"{of_redis:+.1f} %")
    Console().print(table)
    return int(any(own > MOST_PERCENT for own, _ in figures.values()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=60)
    sys.exit(asyncio.run(run(parser.parse_args().blocks)))
