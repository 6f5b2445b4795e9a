"""V15: recordings are written and read, and time is virtual."""

from __future__ import annotations

import asyncio
import errno
import io
import stat
import time
from pathlib import Path

import orjson
import pytest
from structlog.testing import capture_logs

from adapters.outbound.fake import ScriptedOutbound
from channels.voice.carriers.twilio.media_streams import TwilioStreams
from channels.voice.recording import (
    Entry,
    RecordedOutbound,
    Recorder,
    RecordingRefused,
    create_recording,
    read_recording,
)
from channels.voice.replay import NothingLeftToDo, run_in_virtual_time
from channels.voice.testing.fake_realtime import FakeRealtime
from channels.voice.testing.fake_twilio import FakeTwilioCall
from channels.voice.testing.script import Say, Script
from channels.voice.testing.sockets import eventually
from flow_engine.ports.outbound import OutboundReply
from service.voice import trial_agent
from tests.channels.voice.business_server import business_server
from tests.channels.voice.served_agent import simple_config

pytestmark = pytest.mark.anyio


def test_what_is_recorded_reads_back_as_it_happened(tmp_path: Path) -> None:  # V15
    now = [5.0]
    recorder = create_recording(tmp_path / "calls", "MZ1/../x", lambda: now[0])
    recorder("line", sent=False, message=b'{"event": "start"}')
    now[0] = 5.25
    recorder("model", sent=True, message=b"not json")
    recorder.close()
    [file] = (tmp_path / "calls").iterdir()
    assert file.name == "MZ1-x.jsonl"
    assert list(read_recording(file.read_bytes(), TwilioStreams())) == [
        Entry(0.0, "line", False, {"event": "start"}),
        Entry(250.0, "model", True, "not json"),
    ]


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        (("MZ1", "MZ1", "MZ1"), ["MZ1-2.jsonl", "MZ1-3.jsonl", "MZ1.jsonl"]),
        (("a/b", "a.b", "a-b-2"), ["a-b-2-2.jsonl", "a-b-2.jsonl", "a-b.jsonl"]),
        (("x" * 81, "x" * 82), ["x" * 80 + "-2.jsonl", "x" * 80 + ".jsonl"]),
    ],
)
def test_calls_whose_streams_would_have_one_name_have_a_recording_each(  # V15
    tmp_path: Path, ids: tuple[str, ...], names: list[str]
) -> None:
    for stream_id in ids:
        recorder = create_recording(tmp_path, stream_id, time.monotonic)
        recorder("line", sent=False, message=b'{"event": "start"}')
        recorder.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == names
    assert all(file.read_bytes().count(b"start") == 1 for file in tmp_path.iterdir())


def test_nobody_else_may_read_a_recording(tmp_path: Path) -> None:  # V15
    create_recording(tmp_path / "calls", "MZ1", time.monotonic).close()
    [file] = (tmp_path / "calls").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "calls").stat().st_mode) == 0o700


class FullDisk(io.RawIOBase):
    """Takes so many bytes."""

    name = "calls/MZ1.jsonl"

    def __init__(self, room: int) -> None:
        self.room = room

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = min(len(data), self.room)
        self.room -= taken
        return taken


def recorder_on_a_full_disk(room: int) -> Recorder:
    return Recorder(io.BufferedWriter(FullDisk(room)), time.monotonic)


def test_a_recording_that_cannot_be_written_is_broken_off_and_logged_once() -> None:  # V12, V14, V15
    recorder = recorder_on_a_full_disk(100)
    with capture_logs() as logged:
        for _ in range(5):
            recorder("line", sent=False, message=b'{"event": "media"}')
        recorder.close()
    assert logged == [
        {
            "event": "recording_broken_off",
            "log_level": "error",
            "file": "MZ1.jsonl",
            "reason": "No space left on device",
        }
    ]


async def test_a_call_goes_on_when_its_recording_breaks_off(  # V5, V12
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("channels.voice.recording.create_recording", lambda *_: recorder_on_a_full_disk(4000))
    async with (
        FakeRealtime(Script.of(Say("Hello", 200), Say("Yes", 200))) as model,
        business_server() as business,
        trial_agent(
            orjson.dumps(simple_config()), model.url, base_url=business.url, recordings=tmp_path
        ) as agent,
    ):
        async with FakeTwilioCall(agent.line_url) as call:
            await eventually(lambda: len(call.playout.heard) == 1)
            await call.say("Are you there?", 300)
            await eventually(lambda: len(call.playout.heard) == 2)
            await call.hang_up()
        await eventually(lambda: business.count("/end") == 1)


async def test_http_calls_are_recorded_with_their_answers(tmp_path: Path) -> None:  # V15
    recorder = create_recording(tmp_path, "MZ1", time.monotonic)
    inner = ScriptedOutbound({"https://shop.example/orders": [OutboundReply(201, b'{"id": 7}')]})
    outbound = RecordedOutbound(inner, recorder.write)
    await outbound.request("POST", "https://shop.example/orders", timeout_s=5, content=b'{"n":1}')
    recorder.close()
    [entry] = read_recording((tmp_path / "MZ1.jsonl").read_bytes(), TwilioStreams())
    assert entry.message == {
        "method": "POST",
        "url": "https://shop.example/orders",
        "body": {"n": 1},
        "status": 201,
        "answer": {"id": 7},
    }


def test_bare_events_of_both_wires_are_read_too() -> None:  # V15
    lines = [{"event": "stop"}, {"at_ms": 40, "type": "response.created"}, {"event": "mark"}]
    read = list(read_recording(b"\n".join(map(orjson.dumps, lines)), TwilioStreams()))
    assert [(entry.at_ms, entry.side) for entry in read] == [(0.0, "line"), (40, "model"), (40, "line")]
    assert read[1].message == {"type": "response.created"}


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b'{"at_ms": -1, "event": "stop"}',
        b'{"at_ms": true, "event": "stop"}',
        b'{"side": "phone", "message": {}}',
        b'{"side": "line"}',
    ],
)
def test_a_file_that_is_no_recording_is_refused_with_its_line(line: bytes) -> None:  # V15
    with pytest.raises(RecordingRefused, match=r"^line 2: "):
        list(read_recording(b'{"event": "start"}\n' + line, TwilioStreams()))


def test_an_hour_passes_in_a_moment_and_in_order() -> None:
    async def hour() -> list[str]:
        done: list[str] = []

        async def after(seconds: float, name: str) -> None:
            await asyncio.sleep(seconds)
            done.append(f"{name} {asyncio.get_running_loop().time():g}")

        await asyncio.gather(after(3600, "late"), after(0.02, "early"), after(60, "middle"))
        return done

    began = time.monotonic()
    assert run_in_virtual_time(hour()) == ["early 0.02", "middle 60", "late 3600"]
    assert time.monotonic() - began < 60


def test_waiting_for_ever_is_an_error() -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(NothingLeftToDo):
        run_in_virtual_time(wait_for_ever())
