"""Look-ups of names that somebody else chose: bounded, and in nobody's way (A1)."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import pytest
import uvloop

from adapters.outbound.client import GuardedClient
from adapters.outbound.network import Lookups
from adapters.outbound.policy import AllowList
from flow_engine.ports.outbound import OutboundFailed

PUBLIC = "93.184.216.34"
Answer = list[tuple[Any, ...]]


class SilentNameServer:
    """Look-ups of names with `stuck` in them wait until it is switched off; others are answered at once."""

    def __init__(self) -> None:
        self.off = threading.Event()
        self.asked: list[str] = []

    def __call__(self, host: str, port: int, **options: object) -> Answer:
        self.asked.append(host)
        if "stuck" in host:
            self.off.wait(120)
            raise socket.gaierror(-3, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (PUBLIC, port))]


@pytest.fixture
def silent() -> Generator[SilentNameServer]:
    server = SilentNameServer()
    yield server
    server.off.set()


def on_each_loop(body: Callable[[], Awaitable[None]]) -> None:
    for factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(_awaited(body), 60))


async def _awaited(body: Callable[[], Awaitable[None]]) -> None:
    await body()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_names_that_nobody_answers_hold_up_no_other_look_up(silent: SilentNameServer) -> None:  # A1
    """Neither those of the process's own stores (the loop's) nor those of other outbound calls."""

    async def body() -> None:
        silent.asked.clear()
        lookups = Lookups(silent, within_s=60)
        stuck = [asyncio.ensure_future(lookups(f"{n}.stuck{n % 5}.example", 80)) for n in range(40)]
        await until(lambda: len(silent.asked) == 40)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(30):
            assert await loop.getaddrinfo("localhost", 80)
            assert await loop.run_in_executor(None, int, "1") == 1
            assert await lookups("partner.example", 443) == [PUBLIC]
        for waiting in stuck:
            waiting.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)

    on_each_loop(body)


def test_whoever_asks_is_answered_within_the_deadline(silent: SilentNameServer) -> None:  # A1
    async def body() -> None:
        client = GuardedClient(AllowList(), resolver=Lookups(silent, within_s=0.05))
        with pytest.raises(OutboundFailed, match="does not resolve"):
            await client.request("GET", "http://stuck.example/", timeout_s=30)
        await client.aclose()

    on_each_loop(body)


def test_one_domain_takes_only_its_own_places(silent: SilentNameServer) -> None:  # A1
    async def body() -> None:
        silent.asked.clear()
        lookups = Lookups(silent, within_s=0.1, most=4, most_of_a_domain=2)
        stuck = [asyncio.ensure_future(lookups(f"{n}.stuck.example", 80)) for n in range(3)]
        await until(lambda: len(silent.asked) == 2)
        assert await lookups("partner.other", 80) == [PUBLIC]
        results = await asyncio.gather(*stuck, return_exceptions=True)
        assert [type(result) for result in results] == [TimeoutError] * 3
        assert len(silent.asked) == 3

    on_each_loop(body)


def test_a_name_is_asked_for_once_however_many_wait_for_it(silent: SilentNameServer) -> None:  # A1
    async def body() -> None:
        silent.asked.clear()
        lookups = Lookups(silent, within_s=0.05)
        for _ in range(2):
            waiting = [lookups("stuck.example", 80) for _ in range(5)]
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert {type(result) for result in results} == {TimeoutError}
        assert silent.asked == ["stuck.example"]

    on_each_loop(body)


def test_a_place_that_gets_free_is_taken(silent: SilentNameServer) -> None:  # A1
    async def body() -> None:
        silent.asked.clear()
        silent.off.clear()
        lookups = Lookups(silent, within_s=5, most=1)
        stuck = asyncio.ensure_future(lookups("stuck.example", 80))
        await until(lambda: len(silent.asked) == 1)
        waiting = asyncio.ensure_future(lookups("partner.example", 80))
        await asyncio.sleep(0.01)
        assert silent.asked == ["stuck.example"]
        silent.off.set()
        assert await waiting == [PUBLIC]
        with pytest.raises(socket.gaierror):
            await stuck

    on_each_loop(body)
