"""Commands to the model, checked against the models of the `openai` package."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.realtime import RealtimeClientEvent
from pydantic import BaseModel, TypeAdapter

from channels.voice.call.events import ItemAdded, ModelError
from channels.voice.call.ports import CustomVoice, ModelLink, SessionSettings, Turn, TurnDetection
from channels.voice.wires.openai_realtime import DEFAULT_URL, RealtimeLink, realtime_url, session_of
from channels.voice.wires.realtime_events import decode

CLIENT_EVENT: TypeAdapter[Any] = TypeAdapter(RealtimeClientEvent)
NOW = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)
TOOL = {
    "type": "function",
    "name": "book",
    "description": "Books a table.",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    "strict": True,
}
SETTINGS = SessionSettings(
    instructions="Be brief.",
    tools=(TOOL,),
    voice="marin",
    speed=1.1,
    language="fr",
    turn_detection=TurnDetection(0.6, 700, 250),
)


class Wire:
    """Keeps what a link sends; every frame must be one that the protocol knows, to the last field."""

    def __init__(self, **options: Any) -> None:
        self.frames: list[dict[str, Any]] = []
        self.closed = 0
        self.link = RealtimeLink(self._take, self._close, **options)

    def _take(self, frame: bytes) -> None:
        message = json.loads(frame)
        known = CLIENT_EVENT.validate_python(message)
        assert list(unknown_fields(known)) == []
        self.frames.append(message)

    def _close(self) -> None:
        self.closed += 1


def unknown_fields(node: Any) -> Iterator[str]:
    """The package's models keep fields that they do not know; those are what the server refuses."""
    if isinstance(node, BaseModel):
        yield from node.model_extra or {}
        for key in type(node).model_fields:
            yield from unknown_fields(getattr(node, key))
    elif isinstance(node, list):
        for value in node:
            yield from unknown_fields(value)


def test_the_first_configuration_says_everything() -> None:  # V12
    wire = Wire()
    wire.link.configure(SETTINGS)
    assert wire.frames == [
        {
            "type": "session.update",
            "event_id": "session.update:1",
            "session": {
                "type": "realtime",
                "instructions": "Be brief.",
                "tools": [{key: TOOL[key] for key in ("type", "name", "description", "parameters")}],
                "tool_choice": "auto",
                "output_modalities": ["audio"],
                "audio": {
                    "input": {
                        "format": {"type": "audio/pcmu"},
                        "noise_reduction": {"type": "near_field"},
                        "transcription": {"model": "whisper-1", "language": "fr"},
                        "turn_detection": {
                            "type": "server_vad",
                            "threshold": 0.6,
                            "silence_duration_ms": 700,
                            "prefix_padding_ms": 250,
                            "create_response": True,
                            "interrupt_response": False,
                        },
                    },
                    "output": {"format": {"type": "audio/pcmu"}, "voice": "marin", "speed": 1.1},
                },
            },
        }
    ]


@pytest.mark.parametrize(
    ("fmt", "wire_format"),
    [
        ("g711_ulaw", {"type": "audio/pcmu"}),
        ("g711_alaw", {"type": "audio/pcma"}),
        ("pcm16", {"type": "audio/pcm", "rate": 24000}),
    ],
)
def test_formats_are_said_in_the_wires_names(fmt: Any, wire_format: dict[str, Any]) -> None:  # V12
    wire = Wire()
    wire.link.configure(replace(SETTINGS, input_format=fmt, output_format=fmt))
    audio = wire.frames[0]["session"]["audio"]
    assert (audio["input"]["format"], audio["output"]["format"]) == (wire_format, wire_format)


def test_a_voice_of_ones_own_is_sent_by_its_id() -> None:  # V12, voice-smaller
    wire = Wire()
    wire.link.configure(replace(SETTINGS, voice=CustomVoice("voice_1")))
    assert wire.frames[0]["session"]["audio"]["output"]["voice"] == {"id": "voice_1"}


def test_later_configurations_leave_out_what_cannot_change() -> None:  # V12
    wire = Wire()
    wire.link.configure(SETTINGS)
    wire.link.configure(replace(SETTINGS, instructions="Sell.", tools=(), voice="cedar"))
    session = wire.frames[1]["session"]
    assert (session["instructions"], session["tools"]) == ("Sell.", [])
    assert "output" not in session["audio"]
    assert session["audio"]["input"].keys() == {"transcription", "turn_detection"}


@pytest.mark.parametrize(("speed", "said"), [(1.4, 1.4), (None, 1.0)])
def test_a_changed_speed_is_said_without_the_voice(speed: float | None, said: float) -> None:  # V12
    wire = Wire()
    wire.link.configure(SETTINGS)
    wire.link.configure(replace(SETTINGS, speed=speed))
    assert wire.frames[1]["session"]["audio"]["output"] == {"speed": said}


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("session.audio.output.speed", {"type", "instructions", "tools", "tool_choice"}),
        (None, {"type", "instructions", "tools", "tool_choice"}),
        ("session.tools[0].parameters", {"type", "instructions", "tool_choice"}),
    ],
)
def test_a_change_that_is_refused_is_made_once_more_without_what_was_refused(  # V12
    param: str | None, fields: set[str]
) -> None:
    wire = Wire()
    wire.link.configure(SETTINGS)
    wire.link.configure(replace(SETTINGS, instructions="Sell.", speed=1.4))
    wire.link.configure_again(ModelError("invalid_value", "no", "session.update:2", param))
    wire.link.configure_again(ModelError("invalid_value", "no", "session.update:3"))
    again = wire.frames[2]["session"]
    assert (len(wire.frames), again.keys(), again["instructions"]) == (3, fields, "Sell.")
    wire.link.configure(replace(SETTINGS, speed=1.4))
    assert wire.frames[3]["session"]["audio"]["output"] == {"speed": 1.4}


def test_neither_a_first_configuration_nor_an_older_change_is_made_again() -> None:  # V12
    wire = Wire()
    wire.link.configure(SETTINGS)
    wire.link.configure_again(ModelError("invalid_value", "no", "session.update:1"))
    wire.link.configure(replace(SETTINGS, instructions="Sell."))
    wire.link.configure(replace(SETTINGS, instructions="Pay."))
    wire.link.configure_again(ModelError("invalid_value", "no", "session.update:2"))
    assert len(wire.frames) == 3


def test_without_a_transcription_model_there_is_no_transcription() -> None:  # V12
    wire = Wire()
    wire.link.configure(replace(SETTINGS, transcription_model=None))
    assert wire.frames[0]["session"]["audio"]["input"]["transcription"] is None


def test_the_model_never_interrupts_itself() -> None:  # V12
    wire = Wire()
    for allowed in (True, False):
        wire.link.configure(replace(SETTINGS, allow_interruptions=allowed))
    detections = [frame["session"]["audio"]["input"]["turn_detection"] for frame in wire.frames]
    assert [detection["interrupt_response"] for detection in detections] == [False, False]


def test_a_call_whose_audio_goes_elsewhere_says_no_format() -> None:  # V12
    wire = Wire(carries_audio=False)
    wire.link.configure(SETTINGS)
    wire.link.clear_playback()
    audio = wire.frames[0]["session"]["audio"]
    assert "format" not in audio["input"]
    assert audio["output"] == {"voice": "marin", "speed": 1.1}
    assert wire.frames[0]["session"] == session_of(SETTINGS, carries_audio=False)
    assert wire.frames[1]["type"] == "output_audio_buffer.clear"


COMMANDS: list[tuple[str, Callable[[ModelLink], object], dict[str, Any]]] = [
    ("response.create", lambda link: link.create_response(), {}),
    ("response.cancel", lambda link: link.cancel("resp_1"), {"response_id": "resp_1"}),
    (
        "conversation.item.truncate",
        lambda link: link.truncate("item_1", 0, 3010),
        {"item_id": "item_1", "content_index": 0, "audio_end_ms": 3010},
    ),
    ("conversation.item.delete", lambda link: link.delete_item("item_1"), {"item_id": "item_1"}),
    (
        "conversation.item.create",
        lambda link: link.send_function_output("call_1", '{"ok":true}'),
        {
            "item": {
                "id": "own_1",
                "type": "function_call_output",
                "call_id": "call_1",
                "output": '{"ok":true}',
            }
        },
    ),
    (
        "conversation.item.create",
        lambda link: link.add_text("system", "Hurry."),
        {
            "item": {
                "id": "own_1",
                "type": "message",
                "role": "system",
                "content": [{"type": "input_text", "text": "Hurry."}],
            }
        },
    ),
    ("input_audio_buffer.append", lambda link: link.append_audio(b"/38A"), {"audio": "/38A"}),
]


@pytest.mark.parametrize(("kind", "command", "fields"), COMMANDS)
def test_each_command_is_one_frame(
    kind: str, command: Callable[[ModelLink], object], fields: dict[str, Any]
) -> None:
    """V12"""
    wire = Wire()
    command(wire.link)
    assert wire.frames == [{"type": kind, "event_id": f"{kind}:1", **fields}]


def test_every_command_can_be_told_from_the_others() -> None:  # V12
    wire = Wire()
    for _, command, _ in COMMANDS * 2:
        command(wire.link)
    identifiers = [frame["event_id"] for frame in wire.frames]
    assert len(set(identifiers)) == len(identifiers) == 2 * len(COMMANDS)


def test_history_is_told_turn_by_turn_in_the_roles_content_types() -> None:  # V12
    wire = Wire()
    wire.link.add_history([Turn("user", "Hello?", NOW), Turn("assistant", "Good even", NOW, True)])
    assert [(frame["item"]["role"], frame["item"]["content"]) for frame in wire.frames] == [
        ("user", [{"type": "input_text", "text": "Hello?"}]),
        ("assistant", [{"type": "output_text", "text": "Good even"}]),
    ]


def test_items_are_known_by_the_id_that_the_link_gave_them() -> None:  # V12
    wire = Wire()
    given_ids = [wire.link.add_text("user", "One."), wire.link.send_function_output("call_1", "{}")]
    assert [frame["item"]["id"] for frame in wire.frames] == given_ids
    added = [{"type": "conversation.item.added", "item": frame["item"]} for frame in wire.frames]
    assert [decode(json.dumps(event)) for event in added] == [
        ItemAdded(given_ids[0], "user"),
        ItemAdded(given_ids[1], None),
    ]


def test_items_of_the_past_are_no_news() -> None:  # V12
    wire = Wire()
    wire.link.add_history([Turn("user", "Hello?", NOW), Turn("assistant", "Good evening.", NOW)])
    for frame in wire.frames:
        for kind in ("conversation.item.added", "conversation.item.created"):
            assert decode(json.dumps({"type": kind, "item": frame["item"]})) is None


@given(st.binary(max_size=2000))
def test_the_caller_is_passed_on_byte_for_byte(raw: bytes) -> None:  # V12
    wire = Wire()
    wire.link.append_audio(base64.b64encode(raw))
    assert base64.b64decode(wire.frames[0]["audio"]) == raw


@given(st.text())
def test_any_text_arrives_as_it_was(text: str) -> None:  # V12
    wire = Wire()
    wire.link.send_function_output("call_1", text)
    assert wire.frames[0]["item"]["output"] == text


def test_what_no_frame_can_carry_ends_no_call() -> None:  # V12
    wire = Wire()
    wire.link.add_text("user", "half \ud800 a character")
    wire.link.configure(replace(SETTINGS, tools=({"name": "count", "parameters": {"maximum": 2**80}},)))
    assert wire.frames[0]["item"]["content"][0]["text"] == "half ? a character"
    assert wire.frames[1]["session"]["tools"][0]["parameters"] == {"maximum": 2**80}


def test_closing_the_link_closes_its_socket() -> None:  # V12
    wire = Wire()
    wire.link.close()
    assert wire.closed == 1


@pytest.mark.parametrize(
    ("base", "url"),
    [
        (DEFAULT_URL, "wss://api.openai.com/v1/realtime?model=gpt-realtime"),
        ("ws://127.0.0.1:9/rt", "ws://127.0.0.1:9/rt?model=gpt-realtime"),
        ("wss://x.test/rt?api-version=1", "wss://x.test/rt?api-version=1&model=gpt-realtime"),
    ],
)
def test_the_url_names_the_model(base: str, url: str) -> None:  # V12
    assert realtime_url(base, "model", "gpt-realtime") == url


def test_names_in_a_url_cannot_change_it() -> None:  # V12
    assert realtime_url(DEFAULT_URL, "model", "a&b=c d") == f"{DEFAULT_URL}?model=a%26b%3Dc%20d"
    assert realtime_url(DEFAULT_URL, "call_id", "rtc_1") == f"{DEFAULT_URL}?call_id=rtc_1"
