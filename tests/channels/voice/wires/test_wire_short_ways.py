"""The short way of a frame of audio gives what the full one does, whatever is in the frame."""

from __future__ import annotations

import base64
import json

from hypothesis import given
from hypothesis import strategies as st

from channels.voice.carriers.twilio import media_streams
from channels.voice.wires import realtime_events

AUDIO = st.binary(max_size=60).map(lambda raw: base64.b64encode(raw).decode())
SCALARS = st.none() | st.booleans() | st.integers(-2, 2) | st.text(max_size=8)
ANY = (
    SCALARS
    | AUDIO
    | st.lists(SCALARS, max_size=2)
    | st.dictionaries(st.text(max_size=3), SCALARS, max_size=2)
)
TEXTS = AUDIO | st.text(alphabet='AZaz09+/=-_ "\\\u00e9\x00', max_size=12)


def fields(**usual: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    """The usual ones, in any order, each perhaps missing or anything else."""
    each = {name: st.one_of(value, value, value, ANY) for name, value in usual.items()}
    return st.fixed_dictionaries({}, optional=each).flatmap(
        lambda found: st.permutations(sorted(found)).map(lambda names: {name: found[name] for name in names})
    )


MEDIA = fields(
    event=st.just("media") | st.just("stop"),
    streamSid=st.just("MZ1"),
    media=fields(track=st.sampled_from(["inbound", "outbound"]), chunk=st.just("1"), payload=TEXTS),
)
DELTAS = fields(
    type=st.sampled_from(["response.output_audio.delta", "response.audio.delta"]),
    event_id=st.just("event_1"),
    response_id=st.sampled_from(["r1", ""]),
    item_id=st.sampled_from(["i1", ""]),
    content_index=st.integers(-1, 3),
    delta=TEXTS,
)


@given(MEDIA, st.sampled_from([None, 1]))
def test_audio_of_the_line_is_the_same_by_both_ways(message: dict[str, object], indent: int | None) -> None:
    """V12"""
    frame = json.dumps(message, indent=indent).encode()
    assert media_streams.decode_line(frame) == media_streams.decode_any(frame)


@given(DELTAS, st.sampled_from([None, 1]))
def test_audio_of_the_model_is_the_same_by_both_ways(message: dict[str, object], indent: int | None) -> None:
    """V12"""
    frame = json.dumps(message, indent=indent).encode()
    assert realtime_events.decode(frame) == realtime_events.decode_any(frame)


@given(DELTAS | MEDIA, st.integers(0, 400))
def test_a_frame_that_is_cut_is_the_same_by_both_ways(message: dict[str, object], end: int) -> None:  # V12
    frame = json.dumps(message).encode()[:end]
    assert media_streams.decode_line(frame) == media_streams.decode_any(frame)
    assert realtime_events.decode(frame) == realtime_events.decode_any(frame)
