"""Server events of the Realtime protocol, built with the models of the `openai` package."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from channels.voice.call.events import (
    AgentAudio,
    AgentAudioEnded,
    FunctionCall,
    InputTranscript,
    ItemAdded,
    ModelError,
    ModelEvent,
    OutputBufferState,
    OutputTranscript,
    ResponseEnded,
    ResponseStarted,
    SessionUpdated,
    SpeechStarted,
    SpeechStopped,
    Unreadable,
)
from channels.voice.wires.realtime_events import decode

SERVER_EVENT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
PAYLOAD = base64.b64encode(b"\x7f" * 800)
PLACE = {"response_id": "resp_1", "item_id": "item_1", "output_index": 0, "content_index": 0}
CALL = {
    "id": "item_2",
    "type": "function_call",
    "status": "completed",
    "call_id": "call_1",
    "name": "book",
    "arguments": '{"at": 1}',
}
MESSAGE = {"id": "item_1", "type": "message", "role": "assistant", "content": [], "status": "in_progress"}


def ended(status: str, **details: Any) -> dict[str, Any]:
    response = {"id": "resp_1", "status": status, "status_details": details or None, "output": []}
    return {"type": "response.done", "response": response}


def session(**audio: Any) -> dict[str, Any]:
    return {"type": "session.updated", "session": {"type": "realtime", "audio": audio}}


def heard(outcome: str, **fields: Any) -> dict[str, Any]:
    kind = f"conversation.item.input_audio_transcription.{outcome}"
    return {"type": kind, "item_id": "item_0", "content_index": 0, **fields}


def item_done(**item: Any) -> dict[str, Any]:
    return {
        "type": "response.output_item.done",
        "response_id": "resp_1",
        "output_index": 1,
        "item": {**CALL, **item},
    }


def failed(**error: Any) -> dict[str, Any]:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": "No.", **error}}


EVENTS: list[tuple[dict[str, Any], ModelEvent]] = [
    (
        {"type": "response.output_audio.delta", "delta": PAYLOAD.decode(), **PLACE},
        AgentAudio("resp_1", "item_1", 0, PAYLOAD),
    ),
    ({"type": "response.output_audio.done", **PLACE}, AgentAudioEnded("item_1")),
    (
        {"type": "response.output_audio_transcript.done", "transcript": "Bonsoir !", **PLACE},
        OutputTranscript("item_1", "Bonsoir !"),
    ),
    (
        {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}},
        ResponseStarted("resp_1"),
    ),
    (ended("completed"), ResponseEnded("resp_1", "completed")),
    (
        ended("cancelled", type="cancelled", reason="client_cancelled"),
        ResponseEnded("resp_1", "cancelled", "client_cancelled"),
    ),
    (
        ended("incomplete", type="incomplete", reason="max_output_tokens"),
        ResponseEnded("resp_1", "incomplete", "max_output_tokens"),
    ),
    (
        ended("failed", type="failed", error={"code": "insufficient_quota", "message": "Used up."}),
        ResponseEnded("resp_1", "failed", "insufficient_quota: Used up."),
    ),
    (item_done(), FunctionCall("resp_1", "call_1", "book", '{"at": 1}')),
    ({"type": "conversation.item.added", "item": MESSAGE}, ItemAdded("item_1", "assistant")),
    (
        {"type": "conversation.item.added", "item": {**MESSAGE, "role": "user"}, "previous_item_id": None},
        ItemAdded("item_1", "user"),
    ),
    (
        {"type": "conversation.item.added", "item": {**CALL, "status": "in_progress"}},
        ItemAdded("item_2", None),
    ),
    (
        heard("completed", transcript="Une pizza.", usage={"type": "duration", "seconds": 2}),
        InputTranscript("item_0", "Une pizza."),
    ),
    (heard("failed", error={"type": "server_error", "message": "Broken."}), InputTranscript("item_0", "")),
    (
        {"type": "input_audio_buffer.speech_started", "item_id": "item_0", "audio_start_ms": 120},
        SpeechStarted(),
    ),
    (
        {"type": "input_audio_buffer.speech_stopped", "item_id": "item_0", "audio_end_ms": 900},
        SpeechStopped(),
    ),
    (
        session(input={"format": {"type": "audio/pcmu"}}, output={"format": {"type": "audio/pcma"}}),
        SessionUpdated("g711_ulaw", "g711_alaw"),
    ),
    (
        session(output={"format": {"type": "audio/pcm", "rate": 24000}, "voice": "sage"}),
        SessionUpdated(None, "pcm16"),
    ),
    ({"type": "output_audio_buffer.started", "response_id": "resp_1"}, OutputBufferState(True)),
    ({"type": "output_audio_buffer.stopped", "response_id": "resp_1"}, OutputBufferState(False)),
    ({"type": "output_audio_buffer.cleared", "response_id": "resp_1"}, OutputBufferState(False)),
    (
        failed(code="response_cancel_not_active", event_id="response.cancel:4"),
        ModelError("response_cancel_not_active", "No.", "response.cancel:4"),
    ),
    (failed(), ModelError("invalid_request_error", "No.", None)),
]

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(("fields", "event"), EVENTS, ids=[fields["type"] for fields, _ in EVENTS])
def test_each_server_event_is_ours(fields: dict[str, Any], event: ModelEvent) -> None:  # V12
    built = SERVER_EVENT.validate_python({"event_id": "event_1", **fields})
    frame = built.model_dump_json(exclude_unset=True)
    assert decode(frame) == event
    assert decode(frame.encode()) == event
    # The same with every field that the server may send as null.
    assert decode(built.model_dump_json()) == event


@pytest.mark.parametrize(
    ("beta", "current"),
    [
        ("response.audio.delta", "response.output_audio.delta"),
        ("response.audio.done", "response.output_audio.done"),
        ("response.audio_transcript.done", "response.output_audio_transcript.done"),
        ("conversation.item.created", "conversation.item.added"),
    ],
)
def test_names_of_the_beta_mean_the_same(beta: str, current: str) -> None:  # V12
    for fields, event in EVENTS:
        if fields["type"] == current:
            assert decode(json.dumps({**fields, "type": beta})) == event


def test_a_beta_server_confirms_its_formats_in_our_names() -> None:  # V12
    told = {"input_audio_format": "g711_ulaw", "output_audio_format": "pcm16", "voice": "alloy"}
    frame = json.dumps({"type": "session.updated", "session": told})
    assert decode(frame) == SessionUpdated("g711_ulaw", "pcm16")


def test_a_format_that_we_do_not_have_keeps_its_own_name() -> None:  # V12
    formats = session(
        input={"format": {"type": "audio/opus"}},
        output={"format": {"type": "audio/pcm", "rate": 16000}, "voice": {"id": "voice_1"}},
    )
    assert decode(json.dumps(formats)) == SessionUpdated("audio/opus", "audio/pcm at 16000")


@pytest.mark.parametrize("status", ["in_progress", "incomplete"])
def test_a_call_of_a_tool_that_was_cut_off_is_not_run(status: str) -> None:  # V12
    assert decode(json.dumps(item_done(status=status))) is None


def test_arguments_that_are_done_run_nothing_yet() -> None:  # V12
    fields = {**PLACE, "call_id": "call_1", "name": "book", "arguments": "{}"}
    assert decode(json.dumps({"type": "response.function_call_arguments.done", **fields})) is None


def test_a_response_of_unknown_status_has_ended_too() -> None:  # V12
    assert decode(json.dumps(ended("expired"))) == ResponseEnded(
        "resp_1", "failed", "a status that is not known"
    )


@pytest.mark.parametrize(
    "frame",
    [
        '{"type":"session.created","session":{}}',
        '{"type":"rate_limits.updated"}',
        '{"type":"a.type.to.come"}',
        json.dumps(item_done(type="message", role="assistant", content=[])),
    ],
)
def test_events_that_nobody_needs_give_nothing(frame: str) -> None:  # V12
    assert decode(frame) is None


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "[]",
        "7",
        "{}",
        '{"type":null}',
        '{"type":{"a":1}}',
        '{"type":"error"}',
        '{"type":"response.created","response":{}}',
        '{"type":"response.done","response":{"id":"resp_1"}}',
        '{"type":"response.output_audio.delta"}',
        json.dumps({"type": "response.output_audio.delta", **PLACE, "delta": 'AAAA","type":"x'}),
        json.dumps({"type": "response.output_audio.delta", **PLACE, "delta": "AAAA", "content_index": -1}),
        json.dumps({"type": "response.output_audio.delta", **PLACE, "delta": "AAAA", "content_index": True}),
        json.dumps({"type": "response.output_audio.delta", **PLACE, "delta": "AAAA", "item_id": ""}),
        json.dumps(item_done(arguments={"at": 1})),
        json.dumps(session(input=[])),
        json.dumps(session(output=[])),
        b"\xc3\x28",
        "[" * 100_000,
        '{"type":"error","error":{"message":"\\ud800"}}',
    ],
)
def test_what_is_no_event_is_unreadable(frame: bytes | str) -> None:  # V12
    assert isinstance(decode(frame), Unreadable)


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_garbage_never_raises(frame: bytes | str) -> None:  # V12
    decode(frame)


def places(node: Any) -> list[tuple[Any, Any]]:
    """Every place of a document whose value can be replaced, as container and key."""
    if isinstance(node, dict):
        return [(node, key) for key in node] + [place for value in node.values() for place in places(value)]
    return []


@given(st.sampled_from([fields for fields, _ in EVENTS]), st.data())
def test_an_event_with_anything_replaced_never_raises(fields: dict[str, Any], data: st.DataObject) -> None:
    """V12"""
    broken = copy.deepcopy(fields)
    container, key = data.draw(st.sampled_from(places(broken)))
    if data.draw(st.booleans()):
        container[key] = data.draw(JSON)
    else:
        del container[key]
    decode(json.dumps(broken))


@given(
    st.binary(max_size=600),
    st.text(min_size=1),
    st.sampled_from(['"', "\\", '","delta":"AAAA', '"type":"response.done"', "\u2028", ""]),
    st.permutations(["type", "event_id", "response_id", "item_id", "output_index", "content_index", "delta"]),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t: ")]),
    st.booleans(),
)
def test_audio_is_read_the_same_however_it_is_written(
    raw: bytes, item_id: str, hostile: str, order: list[str], separators: tuple[str, str], ascii_only: bool
) -> None:
    """V12"""
    audio = base64.b64encode(raw)
    fields = {
        "type": "response.output_audio.delta",
        "event_id": f"event{hostile}",
        "response_id": f"resp{hostile}",
        "item_id": item_id,
        "output_index": 0,
        "content_index": 3,
        "delta": audio.decode(),
    }
    frame = json.dumps({key: fields[key] for key in order}, separators=separators, ensure_ascii=ascii_only)
    assert decode(frame.encode()) == AgentAudio(f"resp{hostile}", item_id, 3, audio)
