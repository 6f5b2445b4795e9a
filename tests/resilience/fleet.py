"""Real service processes on one Redis, and the lean client that talks to them."""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from tests.ports import free_port
from tests.redis_fixture import RedisServer, end, spawn
from tests.resilience.flow import VERSION_ID
from tests.resilience.operations import (
    ChangeTask,
    NewContact,
    Operation,
    ReadMemory,
    Reply,
    Say,
    Unanswered,
    WriteMemory,
)

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 120.0
REPLY_TIMEOUT_S = 10.0
IDLE_AT_MOST_S = 2.0  # the service closes a connection that has been idle for five seconds


class Worker:
    """One `serve` process; `kill` and `start` again as often as a test likes.

    `skew_s` is how far its clock is ahead, from its next start on.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.port = free_port()
        self.log = folder / f"worker-{self.port}.log"
        self.skew_s = 0.0
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("FLOW_ENGINE_")}
        self._environment |= {f"FLOW_ENGINE_{name}": value for name, value in settings.items()}
        self.process: subprocess.Popen[bytes] = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        module = ("tests.proof.shifted_clock", str(self.skew_s)) if self.skew_s else ("service.cli",)
        command = [sys.executable, "-m", *module, "serve", "--port", str(self.port)]
        self.process = spawn(command, self.log, cwd=ROOT, env=self._environment)
        return self.process

    @property
    def ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if self.ready:
                return
            time.sleep(0.05)
        raise RuntimeError(f"the service did not start:\n{self.log.read_text()}")

    def kill(self) -> None:
        end(self.process, signal.SIGKILL)

    def stop(self) -> None:
        end(self.process)


def settings_for(redis: RedisServer, data_dir: Path, **more: str) -> dict[str, str]:
    return {
        "REDIS_URL": redis.url,
        "DATA_DIR": str(data_dir),
        "LOG_LEVEL": "warning",
        "SAMPLES": "false",
        **more,
    }


@contextmanager
def running(
    redis: RedisServer, data_dir: Path, processes: int = 2, **settings: str
) -> Generator[Sequence[Worker]]:
    """So many processes that share a Redis and a flow database, ready; stopped by pid at the end."""
    workers: list[Worker] = []
    try:
        workers.extend(Worker(data_dir, settings_for(redis, data_dir, **settings)) for _ in range(processes))
        for worker in workers:
            worker.wait_until_ready()
        yield workers
    finally:
        for worker in workers:
            worker.stop()


@dataclass(frozen=True, slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    used_at: float


class HttpEngine:
    """Implements `Engine` over kept HTTP/1.1 connections. One for one event loop."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._idle: defaultdict[int, list[_Connection]] = defaultdict(list)

    @property
    def processes(self) -> int:
        return len(self._workers)

    async def send(self, process: int, operation: Operation, key: str | None) -> Reply:
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                reader, writer = await self._connection(process)
                try:
                    writer.write(_encode(operation, key))
                    reply = await _decode(reader)
                except BaseException:
                    writer.close()
                    raise
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Unanswered from error
        self._idle[process].append(_Connection(reader, writer, time.monotonic()))
        return reply

    async def _connection(self, process: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle[process]:
            kept = self._idle[process].pop()
            if time.monotonic() - kept.used_at < IDLE_AT_MOST_S:
                return kept.reader, kept.writer
            kept.writer.close()
        return await asyncio.open_connection("127.0.0.1", self._workers[process].port)

    async def aclose(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.writer.close()
                with suppress(OSError):
                    await connection.writer.wait_closed()


def _encode(operation: Operation, key: str | None) -> bytes:
    method, path, content = _request(operation)
    body = b"" if content is None else orjson.dumps(content)
    keyed = "" if key is None else f"Idempotency-Key: {key}\r\n"
    head = f"{method} /v1{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{keyed}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _request(operation: Operation) -> tuple[str, str, Any]:
    match operation:
        case NewContact(conversation, contact):
            ids = {"conversationId": conversation, "contactId": contact}
            chosen = {"conversationalFlowVersionId": VERSION_ID, "channel": "chat"}
            return "POST", "/handle-new-contact", ids | chosen
        case ChangeTask(conversation, contact, task):
            ids = {"conversationId": conversation, "contactId": contact}
            return "POST", "/change-task", {**ids, "task": task}
        case Say(conversation, contact, message):
            ids = {"conversationId": conversation, "contactId": contact, "messageId": message}
            said = {
                "ts": "2026-03-01T12:00:00Z",
                "type": "message",
                "src": "user",
                "body": f"I say {message}",
            }
            return "POST", "/handle-utterance", ids | said
        case WriteMemory(conversation, contact, tool, values):
            entries = [
                {"updatedBy": tool, "contactId": contact, "varId": name, "value": value}
                for name, value in values.items()
            ]
            return "PUT", f"/memory/{quote(conversation, safe='')}", entries
        case ReadMemory(conversation):
            return "GET", f"/memory/{quote(conversation, safe='')}", None


async def _decode(reader: asyncio.StreamReader) -> Reply:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status_line, *lines = head.split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers["content-length"]))
    return Reply(int(status_line.split(" ", 2)[1]), body, headers.get("retry-after"))
