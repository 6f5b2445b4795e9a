"""The frames of Twilio Media Streams."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.voice.call.events import (
    CallerAudio,
    DigitPressed,
    LineEvent,
    MarkReturned,
    StreamStarted,
    StreamStopped,
    Unreadable,
)
from channels.voice.call.ports import Line
from channels.voice.carriers.twilio.media_streams import TwilioLine, decode_line

SID = "MZ1f0"
PAYLOAD = base64.b64encode(b"\xff" * 160).decode()

START: dict[str, Any] = {
    "event": "start",
    "sequenceNumber": "1",
    "streamSid": SID,
    "start": {
        "streamSid": SID,
        "accountSid": "AC1",
        "callSid": "CA1",
        "tracks": ["inbound"],
        "customParameters": {"caller": "+33600000000", "plan": "gold"},
        "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
    },
}
MEDIA: dict[str, Any] = {
    "event": "media",
    "sequenceNumber": "3",
    "media": {"track": "inbound", "chunk": "1", "timestamp": "5", "payload": PAYLOAD},
    "streamSid": SID,
}
MARK: dict[str, Any] = {
    "event": "mark",
    "sequenceNumber": "4",
    "streamSid": SID,
    "mark": {"name": "g3:item:7"},
}
DIGIT: dict[str, Any] = {
    "event": "dtmf",
    "streamSid": SID,
    "sequenceNumber": "5",
    "dtmf": {"track": "inbound_track", "digit": "#"},
}
STOP: dict[str, Any] = {
    "event": "stop",
    "sequenceNumber": "5",
    "streamSid": SID,
    "stop": {"accountSid": "AC1", "callSid": "CA1"},
}
FRAMES: list[tuple[dict[str, Any], LineEvent]] = [
    (START, StreamStarted(SID, "CA1", {"caller": "+33600000000", "plan": "gold"})),
    (MEDIA, CallerAudio(PAYLOAD.encode())),
    (MARK, MarkReturned("g3:item:7")),
    (DIGIT, DigitPressed("#")),
    (STOP, StreamStopped()),
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


def changed(message: dict[str, Any], **fields: Any) -> str:
    """The message with fields of the object that its event names set, or taken away where given `...`."""
    copied = copy.deepcopy(message)
    inner = copied[message["event"]]
    for key, value in fields.items():
        if value is ...:
            del inner[key]
        else:
            inner[key] = value
    return json.dumps(copied)


@pytest.mark.parametrize(("message", "event"), FRAMES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("indent", [None, 2])
def test_each_frame_is_its_event(
    message: dict[str, Any], event: LineEvent, indent: int | None
) -> None:  # V12
    frame = json.dumps(message, indent=indent)
    assert decode_line(frame) == event
    assert decode_line(frame.encode()) == event


@pytest.mark.parametrize(
    "frame",
    [
        '{"event":"connected","protocol":"Call","version":"1.0.0"}',
        '{"event":"something.new"}',
        changed(MEDIA, track="outbound"),
    ],
)
def test_frames_that_nobody_needs_give_nothing(frame: str) -> None:  # V12
    assert decode_line(frame) is None


def test_a_stream_without_parameters_or_call_starts_too() -> None:  # V12
    frame = changed(START, customParameters=..., callSid=...)
    assert decode_line(frame) == StreamStarted(SID, None, {})


def test_media_without_a_track_is_the_callers() -> None:  # V12
    assert decode_line(changed(MEDIA, track=...)) == CallerAudio(PAYLOAD.encode())


@pytest.mark.parametrize(
    "media_format",
    [
        {"encoding": "audio/x-l16", "sampleRate": 8000, "channels": 1},
        {"encoding": "audio/x-mulaw", "sampleRate": 16000, "channels": 1},
        {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 2},
        {},
        None,
        "audio/x-mulaw",
    ],
)
def test_a_stream_in_another_format_is_not_read(media_format: object) -> None:  # V12
    assert isinstance(decode_line(changed(START, mediaFormat=media_format)), Unreadable)


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "[]",
        "null",
        '"media"',
        "{}",
        '{"event":7}',
        '{"event":["media"]}',
        '{"event":"media"}',
        '{"event":"media","media":[]}',
        '{"event":"start"}',
        '{"event":"mark","mark":{}}',
        '{"event":"dtmf","dtmf":{"digit":""}}',
        changed(MEDIA, payload=...),
        changed(MEDIA, payload=7),
        changed(MEDIA, payload='AAAA","x":"A'),
        changed(MEDIA, track=1),
        changed(START, streamSid=""),
        changed(START, callSid=5),
        changed(START, customParameters=[]),
        changed(START, customParameters={"caller": 1}),
        b"\xff\xfe",
        b'{"event":"media","media":{"payload":"\xff\xff\xff\xff"}}',
        "[" * 100_000,
        '{"event":' * 2_000,
        '{"event":"mark","mark":{"name":"\\ud800"}}',
    ],
)
def test_what_is_no_frame_is_unreadable(frame: bytes | str) -> None:  # V12
    assert isinstance(decode_line(frame), Unreadable)


def test_what_is_unreadable_is_not_repeated() -> None:  # V12 V14
    secret = "+33612345678"
    for message, _ in FRAMES:
        for key in message:
            found = decode_line(json.dumps({**message, key: {secret: secret}}))
            assert secret not in repr(found)


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_garbage_never_raises(frame: bytes | str) -> None:  # V12
    decode_line(frame)


@given(st.sampled_from([frame for frame, _ in FRAMES]), st.data())
def test_a_frame_with_any_field_replaced_never_raises(message: dict[str, Any], data: st.DataObject) -> None:
    """V12"""
    broken = copy.deepcopy(message)
    place = broken[message["event"]] if data.draw(st.booleans()) else broken
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(JSON)
    decode_line(json.dumps(broken))


@given(st.text(min_size=1), st.binary(max_size=300), st.text())
def test_what_the_line_sends_is_exactly_what_was_meant(sid: str, raw: bytes, name: str) -> None:  # V12
    sent: list[bytes] = []
    line: Line = TwilioLine(sid, sent.append, lambda: None)
    audio = base64.b64encode(raw)
    line.play(audio)
    line.mark(name)
    line.clear()
    assert [json.loads(frame) for frame in sent] == [
        {"event": "media", "streamSid": sid, "media": {"payload": audio.decode()}},
        {"event": "mark", "streamSid": sid, "mark": {"name": name}},
        {"event": "clear", "streamSid": sid},
    ]


def test_closing_the_line_closes_its_socket() -> None:  # V12
    closed: list[bool] = []
    TwilioLine(SID, lambda _: None, lambda: closed.append(True)).close()
    assert closed == [True]
