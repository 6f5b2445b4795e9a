"""What is said reaches the engine in order, beside the call, and never without bound (F33)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime

import httpx2
import orjson
import pytest

from channels.engine_client.client import PAUSES_S, Contact, EngineClient, Pause, Utterance
from channels.voice.flow.engine_sync import DialogueReport
from tests.api.harness import BASE_URL
from tests.channels.engine_client.engine_doubles import Pauses
from tests.channels.voice.flow.flow_call import eventually

pytestmark = pytest.mark.anyio

AT = datetime(2026, 1, 15, 9, 31, tzinfo=UTC)
CONTACT = Contact("conv-1", "call-1")
TAKEN = {"conversationId": "conv-1", "messageId": "m", "duplicate": False, "revision": 1, "language": "it-IT"}


@dataclass
class Engine:
    """Answers one message at a time, when `gate` is open."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    refuses: tuple[str, ...] = ()
    away: int = 0
    """So many more requests find nobody."""
    messages: list[str] = field(default_factory=list[str])

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        await self.gate.wait()
        if self.away:
            self.away -= 1
            raise httpx2.ConnectError("refused")
        body = orjson.loads(request.content)["body"]
        if body in self.refuses:
            return httpx2.Response(404, json={"code": "conversation_unknown"})
        self.messages.append(body)
        return httpx2.Response(200, json=TAKEN)


@dataclass
class Told:
    bodies: list[str] = field(default_factory=list[str])

    def __call__(self, said: Utterance) -> None:
        self.bodies.append(said.body)


def report_to(
    engine: Engine, told: Told | None = None, most_waiting: int = 200, pause: Pause | None = None
) -> DialogueReport:
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(engine), base_url=BASE_URL)
    client = EngineClient(http, pause=Pauses())
    return DialogueReport(client, CONTACT, told or Told(), most_waiting=most_waiting, pause=pause or Pauses())


def said(body: str) -> Utterance:
    return Utterance(f"id-{body}", AT, "user", body)


async def test_messages_arrive_in_the_order_of_the_dialogue() -> None:
    engine, told = Engine(), Told()
    report = report_to(engine, told)
    for body in "abc":
        report.add(said(body))
    engine.gate.set()
    await eventually(lambda: engine.messages == ["a", "b", "c"])
    report.add(said("d"))
    await report.finish(5)
    assert engine.messages == told.bodies == ["a", "b", "c", "d"]


async def test_a_message_that_cannot_be_told_holds_up_no_other() -> None:
    engine, told = Engine(refuses=("b",)), Told()
    engine.gate.set()
    report = report_to(engine, told)
    for body in "abc":
        report.add(said(body))
    await report.finish(5)
    assert (engine.messages, told.bodies) == (["a", "c"], ["a", "b", "c"])


async def test_an_engine_that_comes_back_is_told_all_of_it() -> None:  # V2
    tries = 1 + len(PAUSES_S)
    engine, told, pauses = Engine(away=5 * tries), Told(), Pauses()
    engine.gate.set()
    report = report_to(engine, told, pause=pauses)
    for body in "abc":
        report.add(said(body))
    await report.finish(30)
    assert engine.messages == told.bodies == ["a", "b", "c"]
    assert pauses.seconds == [1, 2, 4, 5, 5]

    engine.away = tries
    report.add(said("d"))
    await report.finish(30)
    assert engine.messages[-1] == "d"
    assert pauses.seconds[5:] == [1]


async def test_however_long_the_engine_is_away_only_so_many_wait() -> None:
    engine, back = Engine(away=10**9), asyncio.Event()

    async def until_back(seconds: float) -> None:
        await back.wait()

    engine.gate.set()
    report = report_to(engine, most_waiting=3, pause=until_back)
    for number in range(10):
        report.add(said(str(number)))
    await asyncio.sleep(0.02)
    report.add(said("last"))
    engine.away = 0
    back.set()
    await report.finish(30)
    assert engine.messages == ["8", "9", "last"]


async def test_while_the_engine_is_away_the_newest_are_kept() -> None:
    engine = Engine()
    report = report_to(engine, most_waiting=3)
    report.add(said("first"))
    await asyncio.sleep(0.02)
    for number in range(10):
        report.add(said(str(number)))
    engine.gate.set()
    await report.finish(5)
    assert engine.messages == ["first", "7", "8", "9"]


async def test_the_end_does_not_wait_for_ever() -> None:
    engine = Engine()
    report = report_to(engine)
    report.add(said("a"))
    async with asyncio.timeout(30):
        await report.finish(0.05)
    assert engine.messages == []


async def test_the_end_is_not_kept_up_by_a_request_that_hides_its_cancellation() -> None:
    gate = asyncio.Event()

    async def hides_it(request: httpx2.Request) -> httpx2.Response:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            gate.set()
        await asyncio.sleep(0)
        raise httpx2.ReadTimeout("lost", request=request)

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(hides_it), base_url=BASE_URL)
    report = DialogueReport(EngineClient(http, pause=Pauses()), CONTACT, Told(), pause=Pauses())
    report.add(said("a"))
    async with asyncio.timeout(30):
        await report.finish(0.05)


async def test_nothing_said_is_nothing_to_wait_for() -> None:
    await report_to(Engine()).finish(5)
