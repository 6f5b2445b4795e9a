"""The checks and the bookkeeping of a config around a handler that comes from elsewhere (V3, V5)."""

from __future__ import annotations

import asyncio
import json
from datetime import date, timedelta
from typing import Any

import pytest

from channels.http_tools.body_builders import default_builders
from channels.voice.call.ports import (
    Caller,
    Ending,
    EndReason,
    Refused,
    SessionSettings,
    Turn,
)
from channels.voice.config import lifecycle
from channels.voice.config.lifecycle import ConfigLifecycle
from channels.voice.config.loader import load_config
from channels.voice.config.review import retiring_models
from flow_engine.ports.outbound import OutboundReply
from tests.channels.voice.books import Book, InOrder
from tests.channels.voice.config.voice_scene import BEGIN, PHONE, PHONE_IN_QUERY, FakeBusiness

pytestmark = pytest.mark.anyio

BASE = "http://business.example"
CHECK = {
    **{"name": "blocked", "url": "{{base_url}}/blocked", "params": {"phone": "{{caller_phone}}"}},
    **{"block_if": "$.blocked == true", "on_block": "message", "message": "{{agent.name}} is closed."},
}
LIFECYCLE = {
    "on_start": {
        **{"method": "POST", "url": "{{base_url}}/start", "body": {"phone": "{{caller_phone}}"}},
        "store_in_ctx": {"call_id": "$.id"},
    },
    "on_end": {
        **{"method": "POST", "url": "{{base_url}}/end"},
        "body": {"id": "{{ctx.call_id}}", "outcome": "{{outcome}}", "said": "{{transcript_summary}}"},
    },
    "outcome_rules": [
        {"flag": "transferred", "outcome": "handed_over", "priority": 1},
        {"flag": None, "outcome": "done", "priority": 2},
    ],
}


def config(**fields: Any) -> Any:
    written = {
        "version": "2.0",
        "agent": {"id": "a", "name": "Desk", "type": "test", "language": "en-GB"},
        "base_url": BASE,
        "session": {"mode": "flow", "engine_url": "http://127.0.0.1:8080", "version": "v"},
        **fields,
    }
    loaded = load_config(json.dumps(written).encode(), builders=tuple(default_builders(lambda: BEGIN)))
    assert loaded.warnings == ()
    return loaded.config


def business(*, blocked: bool = False) -> FakeBusiness:
    replies: dict[str, Any] = {"GET /blocked": {"blocked": blocked}, "POST /start": {"id": "row 7"}}
    return FakeBusiness(BASE, replies | {"POST /end": {}})


def opened(book: Book, told: FakeBusiness, **fields: Any) -> Any:
    caller = Caller("call-1", PHONE, {}, BEGIN - timedelta(seconds=5))
    return InOrder(book, ConfigLifecycle(config(**fields), told, lambda: BEGIN, caller))


def ending(reason: EndReason = "caller_hung_up", *, started: bool = True) -> Ending:
    return Ending(started, reason, 30.0, (Turn("user", "Hello", BEGIN),) if started else ())


async def test_a_blocked_caller_never_gets_to_the_flow() -> None:  # V3
    book, told = Book(), business(blocked=True)
    call = opened(book, told, pre_call_checks=[CHECK], lifecycle=LIFECYCLE)
    assert await call.open() == Refused("Desk is closed.")
    await call.ended(ending("refused", started=False))
    assert book.asked == []
    assert told.taken() == [("GET", f"/blocked?phone={PHONE_IN_QUERY}", None)]


async def test_the_books_are_kept_around_the_whole_call() -> None:  # V5
    book, told = Book(), business()
    call = opened(book, told, pre_call_checks=[CHECK], lifecycle=LIFECYCLE)
    assert isinstance(await call.open(), SessionSettings)
    assert await call.started() == "Greet."
    assert await call.run_tool("find", "{}") == {"ok": True}
    await call.said(Turn("user", "Hello", BEGIN))
    await call.silent()
    await call.ended(ending())
    assert book.asked[:4] == ["open", "started", "tool find", "silent"]
    assert book.turns == ["Hello"]
    assert book.ending is not None
    _, started, over = told.taken()
    assert started == ("POST", "/start", {"phone": PHONE})
    assert over[1:] == ("/end", {"id": "row 7", "outcome": "done", "said": over[2]["said"]})  # type: ignore[call-overload, index]
    assert "Hello" in str(over[2])


async def test_a_call_that_was_handed_over_has_an_outcome_of_its_own() -> None:  # V5
    told = business()
    call = opened(Book(), told, lifecycle=LIFECYCLE)
    await call.open()
    await call.started()
    await call.ended(ending("transferred"))
    assert json.dumps(told.taken()[-1]).count("handed_over") == 1


async def test_a_flow_that_cannot_be_started_ends_without_books() -> None:  # V2
    book, told = Book(opens=Refused("Sorry.")), business()
    call = opened(book, told, lifecycle=LIFECYCLE)
    assert await call.open() == Refused("Sorry.")
    await call.ended(ending("refused", started=False))
    assert book.ending is not None
    assert told.taken() == []


async def test_what_the_carrier_says_of_a_call_is_in_ctx() -> None:  # voice-smaller
    body = {
        **{"sid": "{{ctx.call_sid}}", "to": "{{ctx.called_phone}}", "shop": "{{ctx.parameters.shop}}"},
        "room": "{{ctx.parameters.room}}",
    }
    end = {"method": "POST", "url": "{{base_url}}/end", "body": body}
    told = business()
    parameters = {"calledPhone": "+390212345678", "shop": "17"}
    caller = Caller("call-1", PHONE, parameters, BEGIN, "CA7")
    kept = ConfigLifecycle(config(lifecycle={"on_end": end}), told, lambda: BEGIN, caller)
    await kept.ended(ending())
    expected = {"sid": "CA7", "to": "+390212345678", "shop": "17"}  # what is null is left out
    assert told.taken() == [("POST", "/end", expected)]


def test_models_that_end_are_warned_of_when_an_agent_starts() -> None:  # voice-smaller
    found = list(retiring_models(config(), date(2026, 11, 22)))
    assert [(finding.pointer, finding.code) for finding in found] == [
        ("/openai/model", "model_retiring"),
        ("/openai/input_audio_transcription/model", "model_retiring"),
    ]
    assert found[0].message == "'gpt-realtime' ends on 2027-01-20; use 'gpt-realtime-2.1'"
    assert "has ended" in next(retiring_models(config(), date(2027, 3, 1))).message
    newer = {"model": "gpt-realtime-2.1", "input_audio_transcription": None}
    assert list(retiring_models(config(openai=newer), date(2027, 3, 1))) == []


async def test_checks_that_hang_let_the_call_through(monkeypatch: pytest.MonkeyPatch) -> None:  # V3
    class Slow(FakeBusiness):
        async def request(self, method: str, url: str, **options: Any) -> OutboundReply:
            await asyncio.sleep(60)
            raise AssertionError("nobody waits for that")

    monkeypatch.setattr(lifecycle, "CHECKED_WITHIN_S", 0.05)
    book = Book()
    call = opened(book, Slow(BASE, {}), pre_call_checks=[CHECK])
    assert isinstance(await call.open(), SessionSettings)
    assert book.asked == ["open"]
