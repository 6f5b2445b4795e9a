"""V15: what a recording keeps of calls that went wrong, and what a replay does with another config."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from adapters.outbound.fake import ScriptedOutbound
from channels.voice.call.ports import HandlerNotice, SessionSettings, Turn
from channels.voice.carriers.twilio.media_streams import TwilioStreams
from channels.voice.recording import Entry, RecordedOutbound, create_recording, read_recording
from channels.voice.replay import replay
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused
from tests.channels.voice.books import Book

pytestmark = pytest.mark.anyio

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
    [entry] = read_recording((tmp_path / "MZ1.jsonl").read_bytes())
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
