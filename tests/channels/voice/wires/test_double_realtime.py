"""The fake Realtime server, driven by the real link and read by the real codec."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai.types.realtime import RealtimeServerEvent
from picows import WSHandshakeError, ws_connect
from pydantic import TypeAdapter, ValidationError

from channels.voice.call.events import (
    AgentAudio,
    FunctionCall,
    InputTranscript,
    ItemAdded,
    ModelError,
    ModelEvent,
    OutputBufferState,
    OutputTranscript,
    OutputTranscriptDelta,
    ResponseEnded,
    ResponseStarted,
    SessionUpdated,
    SpeechStarted,
    SpeechStopped,
    Unreadable,
)
from channels.voice.call.ports import SessionSettings
from channels.voice.testing.fake_realtime import FakeRealtime, Fault
from channels.voice.testing.fake_response import Pace
from channels.voice.testing.realtime_session import RealtimeSession, item_number
from channels.voice.testing.script import Fail, Reaction, Say, Script, UseTool, read_script
from channels.voice.testing.signals import Stretch, silence, speech, stretches
from channels.voice.testing.sockets import MOST_BYTES, Socket, eventually
from channels.voice.wires.openai_realtime import RealtimeLink, realtime_url
from channels.voice.wires.realtime_events import decode

pytestmark = pytest.mark.anyio

SERVER_EVENT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
SETTINGS = SessionSettings(instructions="Be brief.", tools=({"name": "book", "parameters": {}},))


class Client:
    """A model's side that is connected, and all that came from it."""

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []
        self.events: list[ModelEvent] = []
        self.socket = Socket(self._take)
        self.link = RealtimeLink(self.socket.send, self.socket.close)

    def _take(self, message: bytes) -> None:
        event = decode(message)
        if not isinstance(event, Unreadable):
            frame = json.loads(message)
            assert_known(frame)
            self.frames.append(frame)
        if event is not None:
            self.events.append(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def hear(self, raw: bytes) -> None:
        for at in range(0, len(raw), 160):
            self.link.append_audio(base64.b64encode(raw[at : at + 160]))

    def say(self, text: str) -> None:
        self.hear(speech(text, 400) + silence(600))

    async def until(self, kind: type[Any], count: int = 1) -> Any:
        await eventually(lambda: len(self.of(kind)) >= count)
        return self.of(kind)[count - 1]


def assert_known(frame: dict[str, Any]) -> None:
    known = SERVER_EVENT.validate_python(frame)
    assert known.type == frame["type"]
    assert known.event_id
    assert not known.model_extra, f"{frame['type']} with {known.model_extra}"


@asynccontextmanager
async def connected(server: FakeRealtime, url: str | None = None, **headers: str) -> AsyncIterator[Client]:
    client = Client()
    target = url or realtime_url(server.url, "model", "gpt-realtime")
    await ws_connect(lambda: client.socket, target, extra_headers=headers, max_frame_size=MOST_BYTES)
    try:
        yield client
    finally:
        client.socket.drop()
        await client.socket.closed.wait()


@asynccontextmanager
async def talking(
    script: Script | None = None, pace: Pace | None = None
) -> AsyncIterator[tuple[Client, RealtimeSession]]:
    """A configured session."""
    async with FakeRealtime(script or Script(), pace=pace) as server, connected(server) as client:
        client.link.configure(SETTINGS)
        await client.until(SessionUpdated)
        yield client, await server.session()


class TestTurns:
    async def test_a_session_confirms_what_it_was_asked_for(self) -> None:
        """V12"""
        async with talking() as (client, session):
            assert client.frames[0]["type"] == "session.created"
            assert client.of(SessionUpdated) == [SessionUpdated("g711_ulaw", "g711_ulaw")]
            assert session.settings.wire["instructions"] == "Be brief."
            assert len(session.received("session.update")) == len(session.commands) == 1
            assert session.errors == []

    async def test_a_turn_of_the_caller_is_noticed_written_down_and_answered(self) -> None:
        """V12"""
        async with talking(Script.of(Say("Good evening!", 500))) as (client, session):
            client.say("A table, please.")
            await client.until(ResponseEnded)
            await client.until(InputTranscript)
            kinds = [type(event) for event in client.events if not isinstance(event, InputTranscript)]
            assert kinds[1:9] == [
                SpeechStarted,
                SpeechStopped,
                ItemAdded,
                ItemAdded,
                ResponseStarted,
                ItemAdded,
                OutputTranscriptDelta,
                AgentAudio,
            ]
            heard = client.of(InputTranscript)[0]
            assert heard.text == "A table, please."
            speech = [f for f in client.frames if f["type"].startswith("input_audio_buffer.speech")]
            assert [frame["item_id"] for frame in speech] == [heard.item_id] * 2
            assert [said.text for said in client.of(OutputTranscript)] == ["Good evening!"]
            assert client.of(ResponseEnded)[0].status == "completed"
            assert len(session.appends) == 50
            assert session.errors == []

    async def test_turns_begin_and_end_where_the_audio_does(self) -> None:
        """V12"""
        async with talking() as (client, _):
            client.hear(silence(1000))
            client.say("Hello.")
            await client.until(SpeechStopped)
            told = {frame["type"]: frame for frame in client.frames}
            assert told["input_audio_buffer.speech_started"]["audio_start_ms"] == 700
            assert told["input_audio_buffer.speech_stopped"]["audio_end_ms"] == 1900

    async def test_speech_that_lost_too_much_is_a_turn_without_words(self) -> None:
        """V12"""
        async with talking() as (client, _):
            client.hear(speech("Hello there, and good evening.", 200)[:40] + silence(600))
            assert (await client.until(InputTranscript)).text == ""

    async def test_audio_says_whose_it_is(self) -> None:
        """V12"""
        async with talking(Script.of([Say("One.", 450), Say("Two.", 200)])) as (client, _):
            client.link.create_response()
            await client.until(ResponseEnded)
            parts = client.of(AgentAudio)
            items = list(dict.fromkeys(part.item_id for part in parts))
            raw = b"".join(base64.b64decode(part.payload) for part in parts)
            assert [len(base64.b64decode(part.payload)) // 8 for part in parts] == [200, 200, 50, 200]
            assert stretches(raw) == [
                Stretch(item_number(items[0]), 0, 450),
                Stretch(item_number(items[1]), 0, 200),
            ]

    async def test_audio_comes_faster_than_it_plays(self) -> None:
        """V12"""
        async with talking(Script.of(Say("Long.", 2000)), Pace(chunk_ms=100, speed=20)) as (client, session):
            client.link.create_response()
            await client.until(ResponseEnded)
            lasted = session.sent("response.done")[0].at - session.sent("response.created")[0].at
            assert 0.08 < lasted < 1.0

    async def test_other_formats_are_heard_and_spoken_too(self) -> None:
        """V12"""
        async with FakeRealtime(Script.of(Say("Yes.", 200))) as server, connected(server) as client:
            client.link.configure(SessionSettings("", input_format="pcm16", output_format="pcm16"))
            client.hear(speech("Anyone?", 200, "pcm16") + silence(600, "pcm16"))
            await client.until(ResponseEnded)
            assert (await client.until(InputTranscript)).text == "Anyone?"
            assert len(base64.b64decode(client.of(AgentAudio)[0].payload)) == 200 * 48

    async def test_a_session_that_answers_by_itself_can_be_interrupted_by_speech(self) -> None:
        """V12"""
        async with talking(Script.of(Say("Long.", 9000)), Pace(speed=1)) as (client, _):
            detection = {"type": "server_vad", "interrupt_response": True}
            update = {"type": "realtime", "audio": {"input": {"turn_detection": detection}}}
            client.socket.send(json.dumps({"type": "session.update", "session": update}))
            client.link.create_response()
            await client.until(AgentAudio)
            client.hear(speech("Stop.", 200))
            ended = await client.until(ResponseEnded)
            assert (ended.status, ended.reason) == ("cancelled", "turn_detected")

    async def test_a_turn_that_ends_while_the_model_speaks_gets_no_response_of_its_own(self) -> None:
        """V12"""
        async with talking(Script.of(Say("Long.", 9000)), Pace(speed=1)) as (client, _):
            client.link.create_response()
            await client.until(AgentAudio)
            client.say("But...")
            error = await client.until(ModelError)
            assert (error.code, error.event_id) == ("conversation_already_has_active_response", None)


class TestScript:
    async def test_reactions_are_chosen_by_what_the_model_was_told(self) -> None:
        """V12"""
        script = Script(
            (
                Reaction((UseTool("book", {"at": "20:00"}),), when="user: a table"),
                Reaction((Say("Booked."),), when="tool: "),
                Reaction((Say("Bye."),), when="instructions: leave"),
            ),
            otherwise=(Say("Pardon?"),),
        )
        async with talking(script) as (client, session):
            client.link.add_text("user", "A table!")
            client.link.create_response()
            asked = await client.until(FunctionCall)
            assert (asked.name, json.loads(asked.arguments)) == ("book", {"at": "20:00"})
            await client.until(ResponseEnded)
            client.link.send_function_output(asked.call_id, '{"ok": true}')
            client.link.create_response()
            await client.until(ResponseEnded, 2)
            client.socket.send('{"type":"response.create","response":{"instructions":"Leave now."}}')
            await client.until(ResponseEnded, 3)
            client.link.create_response()
            await client.until(ResponseEnded, 4)
            assert [said.text for said in client.of(OutputTranscript)] == ["Booked.", "Bye.", "Pardon?"]
            assert session.errors == []

    async def test_one_response_may_speak_and_use_several_tools(self) -> None:
        """V12"""
        steps = [Say("One moment.", 200), UseTool("book"), UseTool("note", "no JSON {")]
        async with talking(Script.of(steps)) as (client, _):
            client.link.create_response()
            await client.until(ResponseEnded)
            assert [(asked.name, asked.arguments) for asked in client.of(FunctionCall)] == [
                ("book", "{}"),
                ("note", "no JSON {"),
            ]
            done = client.frames[-1]["response"]
            kinds = [item["type"] for item in done["output"]]
            assert kinds == ["message", "function_call", "function_call"]
            assert done["usage"]["output_token_details"]["audio_tokens"] == 4

    @pytest.mark.parametrize(
        ("step", "ended"),
        [
            (Fail("insufficient_quota", "Used up."), ("failed", "insufficient_quota: Used up.")),
            (Fail("content_filter", status="incomplete"), ("incomplete", "content_filter")),
        ],
    )
    async def test_a_response_may_fail(self, step: Fail, ended: tuple[str, str]) -> None:
        """V12"""
        async with talking(Script.of(step)) as (client, _):
            client.link.create_response()
            event = await client.until(ResponseEnded)
            assert (event.status, event.reason) == ended

    async def test_each_connection_has_its_own_script(self) -> None:
        """V12"""
        first, later = Script.of(Say("First.", 200)), Script.of(Say("Later.", 200))
        async with FakeRealtime(first, later) as server:
            for text in ("First.", "Later.", "Later."):
                async with connected(server) as client:
                    client.link.create_response()
                    assert (await client.until(OutputTranscript)).text == text

    def test_a_script_is_read_from_a_file(self, tmp_path: Path) -> None:
        """V12"""
        file = tmp_path / "script.json"
        file.write_text(
            '{"reactions": [{"when": "user: hello", "think_ms": 50, "steps": [{"text": "Hi!", "ms": 900},'
            ' {"tool": "book", "arguments": {"at": 1}}, {"code": "x", "message": "y"}]}]}'
        )
        steps = (Say("Hi!", 900), UseTool("book", {"at": 1}), Fail("x", "y"))
        assert read_script(file) == Script((Reaction(steps, "user: hello", 50),))

    @pytest.mark.parametrize("text", ['{"reaction": []}', '{"reactions": [{"steps": [{"says": "x"}]}]}', "["])
    def test_a_script_with_a_mistake_is_refused(self, text: str, tmp_path: Path) -> None:
        """V12"""
        file = tmp_path / "script.json"
        file.write_text(text)
        with pytest.raises(ValidationError):
            read_script(file)


class TestCancel:
    async def test_a_cancelled_response_stops_and_says_so(self) -> None:
        """V12"""
        async with talking(Script.of(Say("Long.", 9000)), Pace(chunk_ms=100, speed=2)) as (client, session):
            client.link.create_response()
            started = await client.until(ResponseStarted)
            await client.until(AgentAudio, 2)
            client.link.cancel(started.response_id)
            ended = await client.until(ResponseEnded)
            assert (ended.status, ended.reason) == ("cancelled", "client_cancelled")
            assert len(client.of(AgentAudio)) < 10
            item = session.conversation.items[0]
            assert (item.status, item.audio_ms) == ("incomplete", 100 * len(client.of(AgentAudio)))
            assert session.errors == []

    async def test_audio_may_come_late(self) -> None:
        """V12"""
        pace = Pace(chunk_ms=100, speed=2, late_ms=600)
        async with talking(Script.of(Say("Long.", 9000)), pace) as (client, _):
            client.link.create_response()
            started = await client.until(ResponseStarted)
            await client.until(AgentAudio)
            client.link.cancel(started.response_id)
            before = len(client.of(AgentAudio))
            await client.until(ResponseEnded)
            assert before + 6 <= len(client.of(AgentAudio)) <= before + 7

    async def test_a_tool_that_is_cut_off_is_not_complete(self) -> None:
        """V12"""
        script = Script(
            (
                Reaction(
                    (Say("So...", 400), UseTool("book")),
                ),
            )
        )
        async with talking(script, Pace(chunk_ms=100, speed=2)) as (client, _):
            client.link.create_response()
            started = await client.until(ResponseStarted)
            await client.until(AgentAudio)
            client.link.cancel(started.response_id)
            await client.until(ResponseEnded)
            assert client.of(FunctionCall) == []


COMMANDS_REFUSED: list[tuple[Callable[[RealtimeLink], object], str]] = [
    (lambda link: link.cancel("resp_0"), "response_cancel_not_active"),
    (lambda link: link.delete_item("item_0"), "item_delete_invalid_item_id"),
    (lambda link: link.truncate("item_0", 0, 100), "item_truncate_invalid_item_id"),
    (lambda link: link.send_function_output("call_0", "{}"), "invalid_tool_call_id"),
    (lambda link: link.clear_playback(), "invalid_value"),
    (lambda link: link.append_audio(b"not base64"), "invalid_value"),
]

FRAMES_REFUSED: list[tuple[dict[str, Any], str, str | None]] = [
    (
        {"type": "session.update", "session": {"instructions": "x"}},
        "missing_required_parameter",
        "session.type",
    ),
    (
        {"type": "session.update", "session": {"type": "realtime", "modalities": ["audio"]}},
        "unknown_parameter",
        "session.modalities",
    ),
    (
        {"type": "session.update", "session": {"type": "realtime", "temperature": 0.7}},
        "unknown_parameter",
        "session.temperature",
    ),
    (
        {
            "type": "session.update",
            "session": {"type": "realtime", "audio": {"output": {"voice": "nova"}}},
        },
        "invalid_value",
        "session.audio.output.voice",
    ),
    (
        {
            "type": "session.update",
            "session": {"type": "realtime", "audio": {"input": {"format": {"type": "g711_ulaw"}}}},
        },
        "invalid_value",
        "session.audio.input.format.type",
    ),
    (
        {"type": "response.create", "response": {"modalities": ["audio"]}},
        "unknown_parameter",
        "response.modalities",
    ),
    (
        {
            "type": "conversation.item.create",
            "item": {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "input_text", "text": "x"}],
            },
        },
        "invalid_value",
        None,
    ),
    (
        {
            "type": "conversation.item.create",
            "item": {"type": "function_call", "name": "x", "arguments": "{}"},
        },
        "invalid_value",
        "item",
    ),
    (
        {
            "type": "conversation.item.create",
            "previous_item_id": "item_0",
            "item": {"type": "message", "role": "user", "content": []},
        },
        "item_create_invalid_previous_item_id",
        "previous_item_id",
    ),
    ({"type": "input_audio_buffer.commit"}, "input_audio_buffer_commit_empty", None),
    ({"type": "no.such.command"}, "invalid_value", "type"),
    ({"no": "type"}, "invalid_value", "type"),
]


class TestStrictness:
    @pytest.mark.parametrize(("command", "code"), COMMANDS_REFUSED)
    async def test_a_command_that_makes_no_sense_is_an_error_with_its_id(
        self, command: Callable[[RealtimeLink], object], code: str
    ) -> None:
        """V12"""
        async with talking() as (client, session):
            command(client.link)
            error = await client.until(ModelError)
            assert error.code == code
            assert error.event_id is not None
            assert error.event_id.endswith(":2")
            assert [refusal.code for refusal in session.errors] == [code]

    @pytest.mark.parametrize(("frame", "code", "param"), FRAMES_REFUSED)
    async def test_a_frame_of_the_wrong_form_is_an_error(
        self, frame: dict[str, Any], code: str, param: str | None
    ) -> None:
        """V12"""
        async with talking() as (client, session):
            client.socket.send(json.dumps({**frame, "event_id": "mine"}))
            error = await client.until(ModelError)
            assert (error.code, error.event_id) == (code, "mine")
            assert param is None or session.errors[0].param == param

    async def test_what_is_no_json_is_an_error(self) -> None:
        """V12"""
        async with talking() as (client, _):
            client.socket.send("{")
            assert (await client.until(ModelError)).code == "invalid_json"

    async def test_an_item_is_not_truncated_beyond_what_there_is_of_it(self) -> None:
        """V12"""
        async with talking(Script.of(Say("Good evening!", 900))) as (client, session):
            client.link.create_response()
            await client.until(ResponseEnded)
            item = client.of(AgentAudio)[0].item_id
            for heard_ms in (901, 0):
                client.link.truncate(item, 0, heard_ms)
            errors = [await client.until(ModelError, count) for count in (1, 2)]
            assert [error.code for error in errors] == ["invalid_value", "unsupported_content_type"]
            assert errors[0].message == "Audio content of 900ms is already shorter than 901ms"
            client.link.truncate(item, 0, 900)
            client.link.truncate(item, 0, 300)
            await eventually(lambda: session.conversation.items[0].cut_ms == 300)
            client.link.delete_item(item)
            await eventually(lambda: not session.conversation.items)

    async def test_only_one_response_is_active(self) -> None:
        """V12"""
        async with talking(Script.of(Say("Long.", 3000)), Pace(speed=3)) as (client, _):
            client.link.create_response()
            client.link.create_response()
            assert (await client.until(ModelError)).code == "conversation_already_has_active_response"

    async def test_the_next_response_may_be_asked_for_when_one_has_ended(self) -> None:
        """V12"""
        async with talking(Script.of(Say("One.", 20), Say("Two.", 20))) as (client, session):
            client.link.create_response()
            await client.until(ResponseEnded)
            client.link.create_response()
            await client.until(ResponseEnded, 2)
            assert session.errors == []

    async def test_the_voice_stays_once_it_was_heard(self) -> None:
        """V12"""
        async with talking(Script.of(Say("One.", 20))) as (client, _):
            client.link.create_response()
            await client.until(ResponseEnded)
            audio = {"output": {"voice": "cedar"}}
            update = {"type": "session.update", "session": {"type": "realtime", "audio": audio}}
            client.socket.send(json.dumps(update))
            assert (await client.until(ModelError)).code == "cannot_update_voice"
            client.link.configure(SessionSettings("Sell.", voice="cedar"))
            await client.until(SessionUpdated, 2)
            assert len(client.of(ModelError)) == 1


class TestHandshake:
    async def test_without_the_key_nobody_comes_in(self) -> None:
        """V12"""
        async with FakeRealtime(api_key="sk-1") as server:
            with pytest.raises(WSHandshakeError) as refused:
                async with connected(server):
                    pass
            assert refused.value.response is not None
            assert refused.value.response.status == 401
            async with connected(server, Authorization="Bearer sk-1") as client:
                await eventually(lambda: bool(client.frames))
            assert server.refused == 1

    async def test_a_handshake_may_be_refused_and_the_next_not(self) -> None:
        """V12"""
        async with FakeRealtime(faults=[Fault("refuse", value=503), None]) as server:
            with pytest.raises(WSHandshakeError):
                async with connected(server):
                    pass
            async with connected(server) as client:
                await eventually(lambda: bool(client.frames))

    @pytest.mark.parametrize("headers", [{"OpenAI-Beta": "realtime=v1"}, {}])
    async def test_the_beta_and_a_session_without_a_model_are_closed(self, headers: dict[str, str]) -> None:
        """V12"""
        async with FakeRealtime() as server:
            url = realtime_url(server.url, "model", "gpt-realtime") if headers else server.url
            async with connected(server, url, **headers) as client:
                await asyncio.wait_for(client.socket.closed.wait(), 30)
                assert client.socket.close_code == 4000


class TestFaults:
    @pytest.mark.parametrize(
        ("fault", "code"),
        [(Fault("close", value=1011), 1011), (Fault("drop"), 1006), (Fault("expire"), 1001)],
    )
    async def test_a_connection_ends(self, fault: Fault, code: int) -> None:
        """V12"""
        async with FakeRealtime(faults=[fault]) as server, connected(server) as client:
            await asyncio.wait_for(client.socket.closed.wait(), 30)
            assert client.socket.close_code == code
            if fault.kind == "expire":
                assert client.of(ModelError)[0].code == "session_expired"

    @pytest.mark.parametrize("kind", ["garbage", "oversized"])
    async def test_a_frame_is_bad_and_the_session_goes_on(self, kind: Any) -> None:
        """V12"""
        async with FakeRealtime(faults=[Fault(kind, 2)]) as server, connected(server) as client:
            client.link.configure(SETTINGS)
            await client.until(Unreadable)
            client.link.create_response()
            await client.until(ResponseEnded)

    async def test_an_error_concerns_nobody(self) -> None:
        """V12"""
        async with FakeRealtime(faults=[Fault("error")]) as server, connected(server) as client:
            assert (await client.until(ModelError)).event_id is None

    async def test_a_connection_stalls(self) -> None:
        """V12"""
        async with FakeRealtime(faults=[Fault("stall", 2)]) as server, connected(server) as client:
            client.link.configure(SETTINGS)
            await client.until(SessionUpdated)
            client.link.create_response()
            await asyncio.sleep(0.1)
            assert client.of(ResponseStarted) == []
            assert not client.socket.closed.is_set()


class TestSip:
    async def test_the_servers_own_playing_is_reported(self) -> None:
        """V12"""
        async with (
            FakeRealtime(Script.of(Say("Hi!", 100), Say("Long.", 9000))) as server,
            connected(server, realtime_url(server.url, "call_id", "rtc_1")) as client,
        ):
            session = await server.session()
            client.link.create_response()
            await client.until(OutputBufferState, 2)
            assert client.of(OutputBufferState) == [OutputBufferState(True), OutputBufferState(False)]
            assert client.of(AgentAudio) == []
            session.hear("And now?")
            await client.until(OutputBufferState, 3)
            client.link.cancel((await client.until(ResponseStarted, 2)).response_id)
            client.link.clear_playback()
            await client.until(OutputBufferState, 4)
            assert any(frame["type"] == "output_audio_buffer.cleared" for frame in client.frames)
            await client.until(ResponseEnded, 2)
            assert len(client.of(OutputBufferState)) == 4
            assert server.connections[0].query == {"call_id": ["rtc_1"]}


class TestCommandLine:
    async def test_it_serves_a_script_until_it_is_stopped(self, tmp_path: Path) -> None:
        """V12"""
        file = tmp_path / "script.json"
        file.write_text('{"reactions": [{"steps": [{"text": "Hello from afar.", "ms": 200}]}]}')
        module = "channels.voice.testing.fake_realtime"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, "--port", "0", "--script", str(file)),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            url = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
            client = Client()
            await ws_connect(lambda: client.socket, realtime_url(url, "model", "gpt-realtime"))
            client.link.create_response()
            assert (await client.until(OutputTranscript)).text == "Hello from afar."
            client.socket.drop()
        finally:
            process.terminate()
            await process.wait()
