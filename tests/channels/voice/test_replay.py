"""V15: what a recording keeps of calls that went wrong, and what a replay does with another config."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import orjson
import pytest
from typer.testing import CliRunner

from adapters.outbound.fake import ScriptedOutbound
from channels.voice.call.machine import SAY_GOODBYE
from channels.voice.call.ports import HandlerNotice, SessionSettings, Turn
from channels.voice.carriers.twilio.media_streams import TwilioStreams
from channels.voice.recording import (
    Entry,
    RecordedOutbound,
    RecordedTransport,
    create_recording,
    read_recording,
)
from channels.voice.replay import replay
from channels.voice.testing.fake_response import Pace
from channels.voice.testing.realtime_session import RealtimeSession
from channels.voice.testing.script import Say, Script, UseTool
from flow_engine.errors import CorrectTheInput
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused
from service import voice_replay
from service.cli.voice import commands as cli
from tests.channels.voice.books import Book
from tests.channels.voice.served_agent import simple_config

pytestmark = pytest.mark.anyio

BUSINESS = "https://business.example"
START = Entry(
    0.0,
    "line",
    False,
    {
        "event": "start",
        "streamSid": "MZ1",
        "start": {
            "streamSid": "MZ1",
            "callSid": "CA1",
            "customParameters": {},
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
        },
    },
)


def failed_late() -> OutboundFailed:
    error = OutboundFailed("after 5 s")
    error.__cause__ = TimeoutError()
    return error


@pytest.mark.parametrize(
    ("error", "kept"),
    [(OutboundRefused("no"), "refused"), (OutboundFailed("reset"), "unusable"), (failed_late(), "late")],
    ids=["refused", "unusable", "late"],
)
async def test_a_call_without_a_reply_is_recorded_as_that(
    tmp_path: Path, error: OutboundRefused | OutboundFailed, kept: str
) -> None:  # V15
    recorder = create_recording(tmp_path, "MZ1", lambda: 0.0)
    outbound = RecordedOutbound(ScriptedOutbound({"https://shop.example/a": [error]}), recorder.write)
    with pytest.raises(type(error)):
        await outbound.request("GET", "https://shop.example/a", timeout_s=5)
    recorder.close()
    [entry] = read_recording((tmp_path / "MZ1.jsonl").read_bytes(), TwilioStreams())
    assert entry.message == {"method": "GET", "url": "https://shop.example/a", "body": None, "failed": kept}


class PunctualBook(Book):
    async def notice(self, notice: HandlerNotice) -> None:
        assert isinstance(notice, Turn)
        self.asked.append(f"{notice.text} at {asyncio.get_running_loop().time():.1f}")


def test_items_that_another_config_made_are_none_of_the_replays() -> None:  # V15
    """They would be taken for turns of the caller, whose text is waited for."""
    made = {"type": "message", "id": "own_7", "role": "user", "content": []}
    said = {"type": "message", "id": "u1", "role": "user", "content": []}
    transcript = "conversation.item.input_audio_transcription.completed"
    book = PunctualBook()
    entries = (
        START,
        Entry(100.0, "model", True, {"type": "conversation.item.create", "item": made}),
        Entry(200.0, "model", False, {"type": "conversation.item.added", "item": made}),
        Entry(300.0, "model", False, {"type": "conversation.item.added", "item": said}),
        Entry(400.0, "model", False, {"type": transcript, "item_id": "u1", "transcript": "Hello"}),
        Entry(900.0, "line", False, {"event": "stop", "streamSid": "MZ1", "stop": {}}),
    )
    replay(entries, lambda *_: book.answer, SessionSettings("Apologise."), TwilioStreams())
    assert book.asked == ["open", "started", "Hello at 0.4", "ended"]


def media(timestamp: int) -> bytes:
    event = {"event": "media", "streamSid": "MZ1", "media": {"timestamp": str(timestamp), "payload": "//8="}}
    return orjson.dumps(event)


def test_bare_events_of_twilio_come_at_the_times_of_their_audio() -> None:  # V15
    stop = orjson.dumps({"event": "stop", "streamSid": "MZ1", "stop": {}})
    lines = [orjson.dumps(START.message), media(0), media(20), media(2500), media(2480), stop]
    entries = list(read_recording(b"\n".join(lines), TwilioStreams()))
    assert [entry.at_ms for entry in entries] == [0, 0, 20, 2500, 2500, 2500]
    book = Book()
    done = replay(entries, lambda *_: book.answer, SessionSettings("Apologise."), TwilioStreams()).done
    assert book.asked == ["open", "started", "ended"]  # the call is there long enough for its session
    assert done[-1].at_ms == 2500


def test_a_script_plays_the_model() -> None:  # V15
    script = Script.of(Say("Good evening", 400), UseTool("look_up", {}))
    numbers = itertools.count(1)

    def opened(send: Callable[[bytes], None]) -> RealtimeSession:
        return RealtimeSession(
            send, model="m", script=script, pace=Pace(speed=1.0), numbers=lambda: next(numbers)
        )

    lines = [orjson.dumps(START.message), *(media(at) for at in range(0, 4000, 20))]
    entries = read_recording(b"\n".join(lines), TwilioStreams())
    book = Book()
    replayed = replay(
        entries, lambda *_: book.answer, SessionSettings("Apologise."), TwilioStreams(), model=opened
    )
    played = [message for message in replayed.to("line") if isinstance(message, dict)]
    assert sum(message["event"] == "media" for message in played) == 2
    assert book.asked[:2] == ["open", "started"]


class TestCommand:
    """`voice replay`, with its options."""

    def replayed(self, tmp_path: Path, config: dict[str, Any], *options: str) -> list[Any]:
        for name, content in (
            ("config.json", orjson.dumps(config)),
            ("events.jsonl", b"\n".join([orjson.dumps(START.message), *map(media, range(0, 6000, 20))])),
        ):
            (tmp_path / name).write_bytes(content)
        files = ("--config", str(tmp_path / "config.json"), "--events", str(tmp_path / "events.jsonl"))
        done = CliRunner().invoke(cli, ["replay", *files, *options])
        assert done.exit_code == 0, done.output
        return [orjson.loads(line) for line in done.stdout.splitlines()]

    def test_answers_of_http_calls_and_the_model_can_be_named(self, tmp_path: Path) -> None:  # V15
        http, script = tmp_path / "http.json", tmp_path / "script.json"
        http.write_text('{"POST /tool": {"status": 409, "body": {"message": "full"}}, "POST /start": {}}')
        script.write_text('{"reactions": [{"steps": [{"tool": "look_up", "arguments": {"q": "x"}}]}]}')
        steps = self.replayed(
            tmp_path, simple_config(base_url=BUSINESS), "--http", str(http), "--script", str(script)
        )
        asked = [step["message"]["url"] for step in steps if step["to"] == "http"]
        assert asked == [f"{BUSINESS}/start", f"{BUSINESS}/tool", f"{BUSINESS}/end"]
        items = [
            s["message"].get("item", {}) for s in steps if s["to"] == "model" and s["message"] != "(closed)"
        ]
        [output] = [item["output"] for item in items if item.get("type") == "function_call_output"]
        assert "409" in output

    @pytest.mark.parametrize("text", ["[]", "{", '{"/orders": 1}', '{"post /orders": 1}'])
    def test_answers_that_are_none_are_refused(self, tmp_path: Path, text: str) -> None:  # V15
        file = tmp_path / "http.json"
        file.write_text(text)
        with pytest.raises(CorrectTheInput, match="POST /orders"):
            voice_replay._answers(file)  # type: ignore[attr-defined]

    @pytest.mark.parametrize(("text", "told"), [("[]", "an object"), ("{", "JSON"), (None, "No such file")])
    def test_a_script_that_is_none_is_refused_in_one_line(
        self, tmp_path: Path, text: str | None, told: str
    ) -> None:  # V15
        file = tmp_path / "script.json"
        if text is not None:
            file.write_text(text)
        with pytest.raises(CorrectTheInput, match=told) as refused:
            voice_replay._played(file, "m")  # type: ignore[attr-defined]
        assert "\n" not in refused.value.detail
        assert "pydantic" not in refused.value.detail

    def test_a_call_ends_at_its_configs_time_limit(self, tmp_path: Path) -> None:  # V12, V15
        steps = self.replayed(tmp_path, {**simple_config(base_url=BUSINESS), "max_duration_s": 3.0})
        texts = [
            part["text"]
            for step in steps
            if step["message"] != "(closed)"
            for part in step["message"].get("item", {}).get("content", ())
        ]
        assert SAY_GOODBYE in texts
        assert steps[-1]["at_ms"] < 5000

    def test_a_config_with_a_flow_asks_the_engine_that_was_recorded(self, tmp_path: Path) -> None:  # V15
        session = {"mode": "flow", "engine_url": "http://127.0.0.1:8080", "version": "v1"}
        config = {key: simple_config()[key] for key in ("version", "agent")} | {"session": session}
        agent_data = {
            **{"conversationId": "c", "contactId": "k", "tenantId": "t", "revision": 1, "command": "/start"},
            **{"taskId": "t1", "taskName": "Reception", "taskType": "AIO", "prompt": "Be kind.\n\nempty"},
            **{"prefixHash": "h", "channel": "phone", "language": "en-GB"},
        }
        http = tmp_path / "http.json"
        http.write_bytes(orjson.dumps({"POST /v1/handle-new-contact": agent_data}))
        steps = self.replayed(tmp_path, config, "--http", str(http))
        assert self.replayed(tmp_path, config, "--http", str(http)) == steps
        paths = [urlsplit(step["message"]["url"]).path for step in steps if step["to"] == "http"]
        assert (paths[0], paths[-1]) == ("/v1/handle-new-contact", "/v1/handle-end-contact")
        sent = [step["message"] for step in steps if step["to"] == "model"]
        assert sent[0]["session"]["instructions"] == "Be kind.\n\nempty"
        assert sent[1]["item"]["content"][0]["text"] == "/start"


async def test_requests_to_the_engine_are_recorded_like_any_other(tmp_path: Path) -> None:  # V15
    async def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/v1/gone":
            raise httpx2.ConnectError("refused", request=request)
        return httpx2.Response(200, json={"a": 1}, headers={"ETag": '"7"'})

    recorder = create_recording(tmp_path, "MZ1", lambda: 0.0)
    inner = httpx2.AsyncClient(base_url="http://engine", transport=httpx2.MockTransport(answer))
    client = httpx2.AsyncClient(base_url="http://engine", transport=RecordedTransport(inner, recorder.write))
    reply = await client.post("/v1/handle-utterance", json={"body": "hello"})
    assert (reply.json(), reply.headers["etag"]) == ({"a": 1}, '"7"')
    with pytest.raises(httpx2.ConnectError):
        await client.get("/v1/gone")
    recorder.close()
    first, second = read_recording((tmp_path / "MZ1.jsonl").read_bytes(), TwilioStreams())
    url = "http://engine/v1/handle-utterance"
    assert first.message == {
        **{"method": "POST", "url": url, "body": {"body": "hello"}, "status": 200, "answer": {"a": 1}}
    }
    assert isinstance(second.message, dict)
    assert second.message["failed"] == "unusable"
