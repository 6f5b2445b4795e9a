"""Ends of contacts that arrive when the engine is back (F30)."""

from __future__ import annotations

import asyncio

import httpx2
import pytest
from structlog.testing import capture_logs

from channels.engine_client.client import Contact, EngineClient
from channels.engine_client.ends import ContactEnds
from channels.retries import GIVEN_UP_AFTER_S, LONGEST_PAUSE_S
from tests.api.harness import BASE_URL
from tests.channels.engine_client.engine_doubles import Pauses

pytestmark = pytest.mark.anyio

CONTACT = Contact("conv-1", "chat-1")
ENDED = httpx2.Response(200, json={"status": "closed", "revision": 3, "summary": None, "contactId": "chat-1"})
TRIES = 3
"""Of the client, each time."""


class Engine:
    """Answers with `status` until it is set to 200; `tries` are the bodies of its requests."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.tries: list[bytes] = []
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self.answer), base_url=BASE_URL)
        self.client = EngineClient(http, pause=Pauses())

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        self.tries.append(request.content)
        if self.status == 200:
            return httpx2.Response(200, content=ENDED.content)
        return httpx2.Response(self.status, json={"status": self.status, "code": "c", "detail": "d"})


class Clock:
    """Pauses pass at once, and move it. `back_after` is the number of pauses until the engine is back."""

    def __init__(self, engine: Engine, back_after: int | None) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self._engine = engine
        self._back_after = back_after

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        if len(self.pauses) == self._back_after:
            self._engine.status = 200
        await asyncio.sleep(0)


async def settled(ends: ContactEnds) -> None:
    async with asyncio.timeout(30):
        while ends.waiting:
            await asyncio.sleep(0)


@pytest.mark.parametrize("status", [401, 403, 500, 502, 503])
async def test_an_end_arrives_once_the_engine_is_back(status: int) -> None:  # F30
    engine = Engine(status)
    clock = Clock(engine, back_after=11)
    ends = ContactEnds(engine.client, pause=clock.pause, monotonic=lambda: clock.now)
    await ends.end(CONTACT, "user_left")
    assert ends.waiting == 1
    await settled(ends)
    assert clock.pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    assert all(part in engine.tries[-1] for part in (b'"contactId":"chat-1"', b"user_left"))


@pytest.mark.parametrize("status", [404, 409, 422])
async def test_a_refusal_is_an_answer(status: int) -> None:  # F30
    engine = Engine(status)
    ends = ContactEnds(engine.client)
    await ends.end(CONTACT, "user_left")
    assert (len(engine.tries), ends.waiting) == (1, 0)


async def test_an_engine_that_stays_away_is_given_up_after_a_day_and_logged() -> None:  # F30
    engine = Engine(503)
    clock = Clock(engine, back_after=None)
    ends = ContactEnds(engine.client, pause=clock.pause, monotonic=lambda: clock.now)
    with capture_logs() as logs:
        await ends.end(CONTACT, "user_left")
        await settled(ends)
    assert GIVEN_UP_AFTER_S <= clock.now < GIVEN_UP_AFTER_S + LONGEST_PAUSE_S
    assert (logs[-1]["event"], logs[-1]["conversation_id"]) == ("contact_not_ended", "conv-1")


@pytest.mark.parametrize("is_back", [True, False])
async def test_what_waits_when_the_process_stops_is_tried_once_more(is_back: bool) -> None:  # F30
    engine = Engine(503)
    ends = ContactEnds(engine.client)
    await ends.end(CONTACT, "user_left")
    engine.status = 200 if is_back else 503
    with capture_logs() as logs:
        await ends.aclose()
    assert (len(engine.tries), ends.waiting) == (TRIES + (1 if is_back else TRIES), 0)
    assert any(line["event"] == "contact_not_ended" for line in logs) is not is_back
