"""`python -m benchmarks.steps`: CPU of each request of a conversation, in one process without client sockets.

Beside it the least: the same way in and out, the same commands to Redis and the same replies, and nothing
that decides between them. What a request costs above its least is the engine's own work; what is below it no
change of the engine can save, only another server, driver or interpreter.

`by kind` asks one kind of many conversations, then the next; `by turns` has each conversation at another
place of its life, as a service meets them, so that code and data come back into the CPU's caches. The least
of some rounds counts. Two runs of one code differ by a tenth on a busy machine: compare checkouts by turns.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, cast

import uvloop
from uvicorn.server import ServerState

from adapters import telemetry
from adapters.http_whole import Answer, AnswersWhole, WholeRequests, WholeResponse
from benchmarks import scenarios
from benchmarks.client import Request, is_expected
from benchmarks.processes import Cores, pinned
from benchmarks.results import MeasurementFailed
from benchmarks.servers import HOST, redis_server
from memory.multiplexed import Connection
from service import logs, running, wiring
from service.settings import Settings

LANES = 16
TURNS = 20
INFINITE = float("inf")

Steps = Sequence[tuple[str, Request]]
"""A conversation's requests in their order, each with its kind."""


class _Wire(asyncio.Transport):
    """A client's end of a connection, and what arrives there."""

    def __init__(self) -> None:
        super().__init__({"sockname": (HOST, 8080), "peername": (HOST, 40_000), "socket": None})
        self.reply: asyncio.Future[bytes]
        self._head = b""

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if data[-4:] == b"\r\n\r\n":  # what is not asked for often comes in two pieces
            self._head = bytes(data)
        else:
            self.reply.set_result(self._head + data)
            self._head = b""

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """A large body, which has arrived whole all the same."""

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass


class Lane:
    """A connection that asks one request at a time."""

    def __init__(self, app: AnswersWhole) -> None:
        config = running.server_config(cast("Any", app), interface="asgi3")
        config.load()
        state = ServerState()
        state.default_headers = [(b"date", b"Thu, 01 Jan 2026 00:00:00 GMT")]
        self._protocol = WholeRequests(config=config, server_state=state, app_state={})
        self._wire = _Wire()
        self._protocol.connection_made(self._wire)

    async def ask(self, request: Request) -> bytes:
        """The body of the reply. Raises MeasurementFailed."""
        self._wire.reply = asyncio.get_running_loop().create_future()
        self._protocol.data_received(request.wire)
        reply = await self._wire.reply
        body_at = reply.index(b"\r\n\r\n") + 4
        if not is_expected(request, reply, body_at):
            raise MeasurementFailed(f"{request.wire[:200]!r} was answered by {reply[:600]!r}")
        return reply[body_at:]


_sent = ContextVar[list[tuple[Any, ...]] | None]("sent", default=None)
"""By the request that is recorded; None in what goes on beside it."""


class Least:
    """Answers a call as the last one of its name was answered: the same commands, the same reply."""

    def __init__(self) -> None:
        self._commands: dict[str, list[tuple[Any, ...]]] = {}
        self._responses: dict[str, WholeResponse] = {}
        self._connection: Connection

    @asynccontextmanager
    async def recording(self, app: AnswersWhole) -> AsyncGenerator[AnswersWhole]:
        """What asks `app`, and remembers. One request at a time."""
        send = Connection.send

        def heard(connection: Connection, command: tuple[Any, ...]) -> asyncio.Future[Any]:
            if (sent := _sent.get()) is not None:
                self._connection = connection
                sent.append(command)
            return send(connection, command)

        Connection.send = heard
        try:
            yield _Recorder(app, self._commands, self._responses)
        finally:
            Connection.send = send

    def answer_to(self, scope: dict[str, Any]) -> Answer | None:
        call = _call(scope)
        return lambda body: self._answer(call)

    async def _answer(self, call: str) -> WholeResponse:
        for command in self._commands[call]:
            await self._connection.send(command)
        return self._responses[call]


class _Recorder:
    def __init__(
        self,
        app: AnswersWhole,
        commands: dict[str, list[tuple[Any, ...]]],
        responses: dict[str, WholeResponse],
    ) -> None:
        self._app, self._commands, self._responses = app, commands, responses

    def answer_to(self, scope: dict[str, Any]) -> Answer | None:
        answer, call = self._app.answer_to(scope), _call(scope)

        async def remembered(body: bytes) -> WholeResponse:
            assert answer is not None
            self._commands[call] = []
            _sent.set(self._commands[call])
            self._responses[call] = await answer(body)
            return self._responses[call]

        return None if answer is None else remembered


def _call(scope: dict[str, Any]) -> str:
    """`prompt` of `/v1/prompt/{id}`."""
    return scope["path"].split("/", 3)[2]


@asynccontextmanager
async def service_on(redis_port: int) -> AsyncGenerator[AnswersWhole]:
    with TemporaryDirectory(prefix="flow-bench-service-") as folder:
        settings = Settings(
            data_dir=Path(folder),
            redis_url=f"redis://{HOST}:{redis_port}/0",
            redis_unsafe=True,
            samples=False,
            log_level="warning",
        )
        with telemetry.tracing_to(settings.traces) as tracing:
            logs.configure_logging(settings.log_level, tracing)
            service = wiring.build_service(settings, host=HOST, port=8080, tracing=tracing)
            async with running.opened(service, settings) as app:
                yield app


async def _all(app: AnswersWhole, requests: Iterable[Request]) -> float:
    """CPU of a request in µs; each lane takes the next one when it has its answer. They are new: the door
    gives a connection up that asks nothing for long."""
    lanes, waiting, count = [Lane(app) for _ in range(LANES)], iter(requests), 0

    async def asked(lane: Lane) -> None:
        nonlocal count
        for request in waiting:
            await lane.ask(request)
            count += 1

    gc.collect()
    started = time.process_time()
    await asyncio.gather(*map(asked, lanes))
    return (time.process_time() - started) / count * 1e6


async def by_kind(app: AnswersWhole, lives: Sequence[Steps]) -> list[float]:
    """µs for each place in the conversations' life."""
    return [await _all(app, [life[place][1] for life in lives]) for place in range(len(lives[0]))]


async def by_turns(app: AnswersWhole, lives: Sequence[Steps]) -> float:
    """µs of all kinds, in the shares of the mix: each of `lives` begins at another place of it."""
    ways = [(*life, *after) for life, after in zip(lives[::2], lives[1::2], strict=True)]
    places, lane = [number % len(lives[0]) for number in range(len(ways))], Lane(app)
    for way, place in zip(ways, places, strict=True):
        for _, request in way[:place]:
            await lane.ask(request)
    turns = [way[place + turn][1] for turn in range(TURNS) for way, place in zip(ways, places, strict=True)]
    return await _all(app, turns)


Row = tuple[str, float, float | None]
"""A kind, µs of the service, µs of the least."""


@asynccontextmanager
async def beside_its_least(
    cores: Cores, tasks: int
) -> AsyncGenerator[tuple[AnswersWhole, Least, scenarios.Target]]:
    async with redis_server(core=cores.rest, aof=False) as redis, service_on(redis.port) as app:
        lane = Lane(app)
        target = await scenarios.publish(lane, 8080, tasks)
        first, second = lives_of(target, "once-0000", 2)
        for _, request in first:  # what the first contact on a version makes is no part of any other
            await lane.ask(request)
        least = Least()
        async with least.recording(app) as recorder:
            lane = Lane(recorder)
            for _, request in second:
                await lane.ask(request)
        yield app, least, target


async def measure(cores: Cores, *, rounds: int, conversations: int, tasks: int) -> Sequence[Row]:
    async with beside_its_least(cores, tasks) as (app, least, target):
        kinds = [kind for kind, _ in lives_of(target, "kind-0000", 1)[0]]
        own, under, mixed = [INFINITE] * len(kinds), [INFINITE] * len(kinds), INFINITE
        for number in range(rounds):
            some = lives_of(target, f"kind-{number:04}", conversations)
            own = list(map(min, own, await by_kind(app, some)))
            under = list(map(min, under, await by_kind(least, some)))
            turns = lives_of(target, f"turn-{number:04}", 2 * conversations)
            mixed = min(mixed, await by_turns(app, turns))
    return (*_by_kind(kinds, own, under), ("by turns, the mix", mixed, None))


def lives_of(target: scenarios.Target, name: str, number: int) -> list[Steps]:
    return [scenarios.one_conversation(target, f"{name}-{each:014}") for each in range(number)]


def _by_kind(kinds: Sequence[str], own: Sequence[float], under: Sequence[float]) -> Iterator[Row]:
    for kind in dict.fromkeys(kinds):
        places = [place for place, each in enumerate(kinds) if each == kind]
        yield kind, fmean(own[place] for place in places), fmean(under[place] for place in places)
    yield "by kind, the mix", fmean(own), fmean(under)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.steps", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--conversations", type=int, default=128)
    parser.add_argument("--tasks", type=int, default=12)
    options = parser.parse_args(arguments)
    cores = Cores.choose()
    with pinned(cores.service):
        rows = uvloop.run(
            measure(cores, rounds=options.rounds, conversations=options.conversations, tasks=options.tasks)
        )
    print(f"{'CPU us per request':<22}{'service':>9}{'least':>9}")
    for kind, own, under in rows:
        print(f"{kind:<22}{own:>9.0f}{'' if under is None else round(under):>9}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
