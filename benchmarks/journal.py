"""What the journal costs a request: CPU of the service and of Redis with it and without it, in turns of
requests of one run.

    python -m benchmarks.journal [--blocks 120] [--most 8]

Requests go to the application itself, so that neither a socket nor a load client is in the figures, and no
line is logged for them; Redis is a server of its own. Exits with 1 where a call takes more CPU of the service
with a journal than `--most` percent.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import orjson
from fastapi import FastAPI
from rich.console import Console
from rich.table import Table

from adapters.outbound.client import GuardedClient
from adapters.outbound.policy import AllowList
from api.auth import LocalOnly
from benchmarks import documents
from benchmarks.processes import Cores, cpu_seconds
from benchmarks.servers import HOST, redis_server
from flow_engine.ports.clock import SystemClock
from flow_engine.use_cases import transactor
from memory.connection import connect
from service import wiring
from service.logs import configure_logging
from service.settings import Settings

MOST_PERCENT, TASKS, BLOCK = 8.0, 12, 12
_NOTED = transactor._noted  # pyright: ignore[reportPrivateUsage]

Request = tuple[str, str, bytes]
"""Method, path, body."""


class Cost(NamedTuple):
    """CPU in seconds."""

    service: float
    redis: float


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


class Calls:
    """The requests that are measured, each of a conversation of its own name that `prepare` has begun."""

    def __init__(self, version_id: str) -> None:
        self._version_id = version_id
        self._walk = documents.walk(TASKS)
        self.named: Mapping[str, Callable[[str, int], Request]] = {
            "change task": self._moved,
            "memory put": self._written,
            "utterance": self._spoken,
            "new contact": self._started,
        }

    def prepare(self, name: str) -> tuple[Request, Request]:
        """Every variable is known, so that every change of task is taken."""
        known = documents.memory_body([*range(documents.variable_count(TASKS))], "c")
        return self._started(name, 0), ("PUT", f"/v1/memory/{name}-0", known)

    def _started(self, name: str, number: int) -> Request:
        body = documents.contact_body(f"{name}-{number}", "c", self._version_id)
        return "POST", "/v1/handle-new-contact", body

    def _moved(self, name: str, number: int) -> Request:
        task = self._walk[(number - 1) % len(self._walk)]
        body = {"contactId": "c", "conversationId": f"{name}-0", "task": task}
        return "POST", "/v1/change-task", orjson.dumps(body)

    def _written(self, name: str, number: int) -> Request:
        return "PUT", f"/v1/memory/{name}-0", documents.memory_body([number % 8], "c")

    def _spoken(self, name: str, number: int) -> Request:
        turn = {"ts": "2026-01-15T09:30:00Z", "type": "message", "src": "bot", "body": "Good morning"}
        ids = {"contactId": "c", "conversationId": f"{name}-0", "messageId": f"m{number}"}
        return "POST", "/v1/handle-utterance", orjson.dumps({**turn, **ids})


async def measure(app: FastAPI, redis_pid: int, blocks: int) -> Mapping[str, Mapping[bool, Cost]]:
    """For each call the CPU of a request, with a journal (True) and without: two conversations, which take
    turns, so that both meet the same machine."""
    document = documents.build_version(TASKS, multi_contact=True)
    flow = await ask(
        app, "POST", "/v1/flows", orjson.dumps({"name": "b", "campaignId": "b", "updatedBy": "b"})
    )
    saved = await ask(app, "POST", f"/v1/flows/{flow['id']}/versions", orjson.dumps(document))
    calls = Calls(saved["versionId"])
    used: dict[tuple[str, bool], list[Cost]] = defaultdict(list)
    for block in range(blocks):
        for call, request in calls.named.items():
            name = f"{call.replace(' ', '-')}-{block}"
            for number in range(BLOCK + 1):
                for journaled in (True, False) if (block + number) % 2 else (False, True):
                    setattr(transactor, "_noted", _NOTED if journaled else lambda *_: None)  # noqa: B010
                    if number == 0:
                        for each in calls.prepare(f"{name}-{journaled}"):
                            await ask(app, *each)
                        continue
                    asked = request(f"{name}-{journaled}", number)
                    of_redis, own = cpu_seconds(redis_pid), time.process_time()
                    reply = await ask(app, *asked)
                    cost = Cost(time.process_time() - own, cpu_seconds(redis_pid) - of_redis)
                    if reply.get("result") is False:
                        raise RuntimeError(f"{call}: {reply}")
                    used[call, journaled].append(cost)
    return {call: {j: _typical(used[call, j]) for j in (True, False)} for call in calls.named}


def _typical(costs: Sequence[Cost]) -> Cost:
    """Of a request, in seconds: the mean of the middle half, so that neither what else the machine does nor a
    single request decides."""
    of_parts = [sorted(part)[len(part) // 4 : -(len(part) // 4) or None] for part in zip(*costs, strict=True)]
    return Cost(*(statistics.mean(part) for part in of_parts))


async def run(blocks: int, most_percent: float) -> int:
    """The exit code; the figures are printed."""
    configure_logging("warning")
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
            gc.collect()  # from here on as a process that serves
            gc.freeze()
            gc.set_threshold(50_000, 50, 100)
            async with service.opened():
                figures = await measure(service.app, redis.pid, blocks)
    table = Table("Call", "CPU of the service", "CPU of Redis", title="Added by the journal to a request")
    missed = False
    for call, costs in figures.items():
        pairs = list(zip(costs[True], costs[False], strict=True))
        added = [100 * (journaled / bare - 1) for journaled, bare in pairs]
        missed = missed or added[0] > most_percent
        row = [
            f"{percent:+.1f} %, {(journaled - bare) * 1e6:.0f} of {journaled * 1e6:.0f} µs"
            for percent, (journaled, bare) in zip(added, pairs, strict=True)
        ]
        table.add_row(call, *row)
    Console().print(table)
    return int(missed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=120)
    parser.add_argument("--most", type=float, default=MOST_PERCENT)
    options = parser.parse_args()
    sys.exit(asyncio.run(run(options.blocks, options.most)))
