"""Workers that are killed again and again lose nothing and do nothing twice (F41).

Users speak in rounds, one turn in each conversation; in every round a worker is killed while jobs are in
hand. Each turn is to have its effect exactly once: its value replaces that of the turn before, and is
counted once by the watchdogs.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from adapters.outbound.fake import ScriptedOutbound
from api.auth import LocalOnly
from flow_engine.json_values import as_object
from flow_engine.ports.clock import SystemClock
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import Job
from flow_engine.runtime.mining_state import MiningState
from memory.connection import RedisMemory, connect
from memory.keys import JOB_LEASES_KEY, JOBS_KEY
from memory.schedule import RedisDeadLetters
from service.settings import Settings
from service.wiring import ServiceDependencies, assemble
from tests.api.harness import BASE_URL, Scene, SettableClock, sqlite_in_memory
from tests.flow_engine.documents.samples import aio_task, minimal_version
from tests.redis_fixture import StartRedis, end, spawn
from tests.resilience.fleet import ROOT, settings_for

pytestmark = pytest.mark.anyio

LEASE_S = 1.0
READY = b"worker runs"
VARIABLES = [
    {"_id": "phone", "name": "callback number", "type": "phone", "prompt": "number to call back"},
    {"_id": "guests", "name": "number of guests", "type": "number", "prompt": "how many guests come"},
]


@dataclass
class WorkerProcess:
    """A `flow-engine worker`, killed and started again as often as the test likes."""

    log: Path
    environment: dict[str, str]
    process: subprocess.Popen[bytes] = field(init=False)
    starts: int = 0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.starts += 1
        command = (sys.executable, "-m", "service.cli", "worker")
        self.process = spawn(command, self.log, cwd=ROOT, env=self.environment)

    @property
    def ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return self.log.read_bytes().count(READY) == self.starts

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@dataclass
class Users:
    """Conversations that go on in step."""

    http: httpx.AsyncClient
    memory: RedisMemory
    names: Sequence[str]

    async def post(self, path: str, conversation: str, **body: object) -> None:
        ids = {"contactId": f"contact-{conversation}", "conversationId": conversation}
        reply = await self.http.post(f"/v1/{path}", json={**ids, **body})
        assert reply.is_success, reply.text

    async def say(self, conversation: str, src: str, message_id: str, body: str) -> None:
        said = {"messageId": message_id, "ts": "2026-03-04T09:30:00Z", "type": "message", "src": src}
        await self.post("handle-utterance", conversation, **said, body=body)

    async def begin(self) -> None:
        for name in self.names:
            started = {"conversationalFlowVersionId": "version-1", "channel": "phone"}
            await self.post("handle-new-contact", name, **started)
            await self.say(name, "bot", "question", "How many guests will there be?")

    async def speak(self, turn: int) -> None:
        for name in self.names:
            await self.say(name, "user", f"turn-{turn}", f"Please call me back on {number_of(turn)}")

    async def mining(self, name: str) -> MiningState:
        return (await self.memory.conversations.load(ConversationRef("default", name))).mining

    async def all_read(self, turn: int, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        for name in self.names:
            while not ((await self.mining(name)).mined_through or "").endswith(f"/turn-{turn}"):
                assert time.monotonic() < deadline, f"turn {turn} of {name} was not read in time"
                await asyncio.sleep(0.02)


def number_of(turn: int) -> str:
    return f"+39 333 55501{turn:02d}"


async def until(happened: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


async def jobs_in_hand(memory: RedisMemory) -> int:
    leases = await memory.driver.client.hvals(JOB_LEASES_KEY)
    return sum(not lease.startswith(b":") for lease in leases)


async def killed_at_work(victim: WorkerProcess, memory: RedisMemory) -> None:
    """Ends `victim` while it holds jobs. It works a millisecond at a time and is looked at in between, so
    that it cannot be through with them before the blow falls."""
    deadline = time.monotonic() + 30
    while not await jobs_in_hand(memory):
        assert time.monotonic() < deadline, "it took no job"
        victim.process.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.001)
        victim.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.005)  # Redis is through with what it sent last
    victim.kill()


@pytest.mark.parametrize(("rounds", "conversations"), [(4, 25)])
async def test_every_turn_is_read_exactly_once_however_often_workers_are_killed(
    start_redis: StartRedis, tmp_path: Path, rounds: int, conversations: int
) -> None:  # F41
    server = start_redis()
    chosen = {"JOB_LEASE_S": str(LEASE_S), "REDIS_DURABILITY": "aof"}
    environment = {f"FLOW_ENGINE_{k}": v for k, v in settings_for(server, tmp_path, **chosen).items()}
    workers = [WorkerProcess(tmp_path / f"worker-{number}.log", environment) for number in range(2)]
    memory = connect(server.url)
    clock = SystemClock()
    dependencies = ServiceDependencies(clock, ScriptedOutbound({}), memory, sqlite_in_memory())
    service = assemble(Settings(samples=False), dependencies, LocalOnly(), base_url=BASE_URL)
    transport = httpx.ASGITransport(app=service.app)
    slowest_s = 0.0
    try:
        async with service.opened(), httpx.AsyncClient(transport=transport, base_url=BASE_URL) as http:
            document = minimal_version(variables=VARIABLES, tasks=[aio_task()])
            scene = Scene(
                service.app,
                http,
                SettableClock(),
                ScriptedOutbound({}),
                memory,
                dependencies.database,
                service,
            )
            await scene.publish(document)
            users = Users(http, memory, [f"c{number}" for number in range(conversations)])
            await users.begin()
            for turn in range(rounds):
                victim, other = workers[turn % 2], workers[(turn + 1) % 2]
                await until(lambda victim=victim: victim.ready)
                with victim.stopped(), other.stopped():
                    await users.speak(turn)
                    spoken_at = time.monotonic()
                    await killed_at_work(victim, memory)
                    assert await jobs_in_hand(memory)
                    victim.start()
                await users.all_read(turn, within_s=60)
                slowest_s = max(slowest_s, time.monotonic() - spoken_at)
            await check(users, rounds)
            await nothing_left(memory)
            await told_in_order(users, rounds)
            await until(lambda: all(worker.ready for worker in workers))
    finally:
        for worker in workers:
            end(worker.process)
    assert [worker.process.returncode for worker in workers] == [0, 0]
    print(f"{rounds} kills with jobs in hand, slowest round {slowest_s:.1f} s")


async def check(users: Users, rounds: int) -> None:
    last, before = number_of(rounds - 1).replace(" ", ""), number_of(rounds - 2).replace(" ", "")
    for name in users.names:
        loaded = await users.memory.conversations.load(ConversationRef("default", name))
        state = loaded.mining
        assert state.mined_through.endswith(f"/turn-{rounds - 1}")
        assert as_object(loaded.mined["phone"].value)["number"] == last
        assert state.provenance["phone"].message_id == f"turn-{rounds - 1}"
        assert as_object(state.provenance["phone"].superseded)["number"] == before
        assert state.task_turns == rounds
        assert state.attempts == {"guests": rounds}
        assert loaded.mining_revision == rounds


async def told_in_order(users: Users, rounds: int) -> None:
    """Every message reached the reporting stream, in the order of its conversation (F40)."""
    heard: dict[str, list[str]] = {}
    for _, fields in await users.memory.driver.client.xrange("{flow-engine}:events"):
        event = json.loads(fields[b"event"])
        if event.get("type") == "message" and event["src"] == "user":
            said = heard.setdefault(event["conversationId"], [])
            if event["body"] not in said:  # at least once: the first time tells the order
                said.append(event["body"])
    expected = [f"Please call me back on {number_of(turn)}" for turn in range(rounds)]
    assert {name: heard.get(name) for name in users.names} == dict.fromkeys(users.names, expected)


async def nothing_left(memory: RedisMemory) -> None:
    deadline = time.monotonic() + 30
    while await jobs_in_hand(memory) or await kinds_left(memory) - {"expire"}:
        assert time.monotonic() < deadline, f"left: {await kinds_left(memory)}"
        await asyncio.sleep(0.1)
    assert await memory.driver.client.hlen(JOB_LEASES_KEY) == 0
    assert await RedisDeadLetters(memory.driver).list(at_most=9) == []


async def kinds_left(memory: RedisMemory) -> set[str]:
    return {Job.named(name.decode()).kind for name in await memory.driver.client.zrange(JOBS_KEY, 0, -1)}
