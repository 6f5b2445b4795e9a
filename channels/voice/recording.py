"""Recordings of calls: one JSON object a line, in the order in which things happened (V15).

    {"at_ms": 0.0, "side": "line", "sent": false, "message": {"event": "start", ...}}
    {"at_ms": 81.5, "side": "http", "sent": true, "message": {"method": "POST", "url": ..., "body": ...,
        "status": 200, "answer": ...}}
    {"at_ms": 93.2, "side": "model", "sent": true, "message": {"type": "session.update", ...}}

`sent` says that this side sent it. A message that is not JSON is kept as text. An HTTP call that got no reply
has `failed` in place of `status` and `answer`: why not, a word of `Failure`. Recordings hold everything
that was said, keys excepted: they are only made where somebody asks for them, readable by nobody else.
"""

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, cast

import httpx2
import orjson
import structlog

from channels.voice.carriers.carrier import StreamCodec
from flow_engine.errors import CallTheOperator
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, OutboundReply, OutboundSender
from flow_engine.values import JsonValue

Side = Literal["line", "model", "http"]
Failure = Literal["refused", "late", "unusable"]
SIDES: Final[tuple[Side, ...]] = ("line", "model", "http")

log: Any = structlog.get_logger("flow_engine.voice")

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Entry:
    at_ms: float
    side: Side
    sent: bool
    message: JsonValue


class RecordingRefused(ValueError):
    """A file that is no recording, JSON lines; the message names the number of the invalid line and what was
    expected."""


class Recorder:
    """Writes one call's recording. `clock` gives monotonic seconds. A file that cannot be written breaks the
    recording off, which is logged: the failure ends nothing."""

    def __init__(self, file: BinaryIO, clock: Callable[[], float]) -> None:
        self._file = file
        self._clock = clock
        self._began = clock()

    def __call__(self, side: Literal["line", "model"], sent: bool, message: bytes) -> None:
        self.write(side, sent, as_json(message))

    def write(self, side: Side, sent: bool, message: JsonValue) -> None:
        at_ms = round((self._clock() - self._began) * 1000, 3)
        entry = {"at_ms": at_ms, "side": side, "sent": sent, "message": message}
        if self._file.closed:
            return
        try:
            self._file.write(orjson.dumps(entry) + b"\n")
            self._file.flush()
        except OSError as error:
            log.error("recording_broken_off", file=Path(self._file.name).name, reason=error.strerror)
            self.close()

    def close(self) -> None:
        with suppress(OSError):  # it is closed all the same, without what could not be written
            self._file.close()


def open_directory(directory: Path, what: Literal["recordings", "requests"] = "recordings") -> None:
    """Make it, where it is not there, and see that it takes files. Raises CallTheOperator
    `recordings_unusable`, `requests_unusable`."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        reason = "it is no directory" if isinstance(error, FileExistsError) else error.strerror
        message = f"{what} cannot be kept in {directory}: {reason}"
        raise CallTheOperator(f"{what}_unusable", message) from error


def create_recording(directory: Path, stream_id: str, clock: Callable[[], float]) -> Recorder:
    """A new file in `directory`, named after the line's stream, and numbered from 2 on where another call has
    that name. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    stem, number = _UNSAFE.sub("-", stream_id)[:80] or "call", 1
    while True:
        name = f"{stem}.jsonl" if number == 1 else f"{stem}-{number}.jsonl"
        try:
            return Recorder(open(directory / name, "xb", opener=_for_its_owner), clock)
        except FileExistsError:
            number += 1


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class RecordedOutbound:
    """Implements OutboundSender: passes calls on and writes them down with their answers."""

    def __init__(self, inner: OutboundSender, write: Callable[[Side, bool, JsonValue], None]) -> None:
        self._inner = inner
        self._write = write

    async def request(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> OutboundReply:
        body = as_json(content) if content else None
        call: dict[str, JsonValue] = {"method": method, "url": url, "body": body}
        try:
            reply = await self._inner.request(
                method, url, timeout_s=timeout_s, headers=headers, content=content
            )
        except (OutboundRefused, OutboundFailed) as error:
            late = isinstance(error.__cause__, TimeoutError)
            why: Failure = "refused" if isinstance(error, OutboundRefused) else "late" if late else "unusable"
            self._write("http", True, {**call, "failed": why})
            raise
        answer = as_json(reply.body) if reply.body else None
        self._write("http", True, {**call, "status": reply.status, "answer": answer})
        return reply


class RecordedTransport(httpx2.AsyncBaseTransport):
    """Sends by a client that is another's, and writes its requests down with their answers, as JSON."""

    def __init__(self, client: httpx2.AsyncClient, write: Callable[[Side, bool, JsonValue], None]) -> None:
        self._client = client
        self._write = write

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raises what the client does."""
        body = as_json(request.content) if request.content else None
        call: dict[str, JsonValue] = {"method": request.method, "url": str(request.url), "body": body}
        try:
            reply = await self._client.send(request)
        except httpx2.RequestError:
            self._write("http", True, {**call, "failed": "unusable"})
            raise
        answer = as_json(reply.content) if reply.content else None
        self._write("http", True, {**call, "status": reply.status_code, "answer": answer})
        tag = {"ETag": reply.headers["ETag"]} if "ETag" in reply.headers else {}
        return httpx2.Response(reply.status_code, headers=tag, content=reply.content)


def read_recording(content: bytes, codec: StreamCodec) -> Iterator[Entry]:
    """The entries of a recording, JSON lines. A line may also be a bare frame of the carrier's stream or of
    the model, with or without `at_ms`: it then comes from there, at the time in milliseconds that the frame
    has, else at that of the line before. Raises RecordingRefused."""
    at_ms = 0.0
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            entry = _entry(line, number, at_ms, codec)
            at_ms = entry.at_ms
            yield entry


def _entry(line: bytes, number: int, last_ms: float, codec: StreamCodec) -> Entry:
    try:
        read = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise RecordingRefused(f"line {number}: not JSON: {error}") from error
    if not isinstance(read, dict):
        raise RecordingRefused(f"line {number}: not an object")
    fields = cast("dict[str, JsonValue]", read)
    at_ms, frame = fields.get("at_ms", last_ms), codec.recorded(fields)
    if "at_ms" not in fields and frame is not None and frame.at_ms is not None:
        at_ms = max(last_ms, frame.at_ms)
    if isinstance(at_ms, bool) or not isinstance(at_ms, int | float) or at_ms < last_ms:
        raise RecordingRefused(f"line {number}: at_ms has to be a number, at least {last_ms:g}")
    if frame is not None or "type" in fields:
        side: Side = "model" if frame is None else "line"
        return Entry(at_ms, side, False, {key: fields[key] for key in fields if key != "at_ms"})
    side_read = fields.get("side")
    if side_read not in SIDES or "message" not in fields:
        raise RecordingRefused(
            f"line {number}: expected side ({', '.join(SIDES)}) and message, or a frame of a line or model"
        )
    return Entry(at_ms, side_read, fields.get("sent") is True, fields["message"])


def as_json(message: bytes) -> JsonValue:
    try:
        return cast(JsonValue, orjson.loads(message))
    except orjson.JSONDecodeError:
        return message.decode("utf-8", "replace")
