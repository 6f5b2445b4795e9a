"""The model's SIP connector on this machine: calls that ring, its REST interface, the way to their sessions.

    async with FakeRealtime(script) as realtime, FakeSip(realtime) as sip:
        ...  # an agent with FLOW_ENGINE_REALTIME_URL=sip.url
        webhook = sip.ring("rtc_1", secret, {"From": "<sip:+33612345678@carrier.example>"})
        await http.post("/sip", content=webhook.body, headers=webhook.headers)
        session = await sip.session("rtc_1")
        session.hear("A table for two, please.")
        sip.hang_up("rtc_1")

It stands before a `FakeRealtime`, whose sessions play by themselves here. A session can be joined while its
call lasts, which is from being accepted until somebody hangs up.
"""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Final, Literal, Self
from urllib.parse import parse_qs, unquote, urlsplit

import orjson

from channels.voice.testing import realtime_checks, realtime_session, sockets
from channels.voice.testing.fake_realtime import PATH, Connection, FakeRealtime
from channels.voice.wires.frames import Object, read_object

Action = Literal["accept", "reject", "refer", "hangup"]
State = Literal["ringing", "live", "over"]

_ACTIONS: Final[Mapping[str, Action]] = {
    "accept": "accept",
    "reject": "reject",
    "refer": "refer",
    "hangup": "hangup",
}
_MOST_HEAD_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Webhook:
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class Request:
    """One use of the REST interface; `body` is its JSON, empty where there was none."""

    call_id: str
    action: Action
    body: Object
    status: int


@dataclass(slots=True)
class _Reading:
    method: str
    target: str
    headers: Mapping[str, str]
    head: bytes


class FakeSip:
    """On a port of loopback. `fails` holds, for an action, the statuses of its next answers instead of what
    it does; 0 is none at all. With `api_key` every request must carry it."""

    def __init__(
        self,
        realtime: FakeRealtime,
        *,
        fails: Mapping[Action, list[int]] | None = None,
        api_key: str | None = None,
    ) -> None:
        self.requests: list[Request] = []
        self.states: dict[str, State] = {}
        self.mistakes: list[str] = []
        """What the real server would not have taken."""
        self._realtime = realtime
        self._fails = {action: list(statuses) for action, statuses in (fails or {}).items()}
        self._api_key = api_key
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_MOST_HEAD_BYTES)
        self._port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self._port}{PATH}"

    def ring(self, call_id: str, secret: str, sip_headers: Mapping[str, str] | None = None) -> Webhook:
        """A call that waits to be accepted, and the webhook that tells of it, signed with the secret."""
        self.states[call_id] = "ringing"
        headers = [{"name": name, "value": value} for name, value in (sip_headers or {}).items()]
        data = {"call_id": call_id, "sip_headers": headers}
        event = {"id": f"evt_{call_id}", "object": "event", "type": "realtime.call.incoming"}
        return signed(orjson.dumps({**event, "created_at": int(time.time()), "data": data}), secret, call_id)

    async def session(
        self, call_id: str, number: int = 0, within_s: float = 5.0
    ) -> realtime_session.RealtimeSession:
        """Wait for somebody to join the call's session, up to `within_s` seconds. Raises TimeoutError."""
        await sockets.eventually(lambda: len(self.joined(call_id)) > number, within_s)
        session = self.joined(call_id)[number].session
        if session is None:
            raise TimeoutError
        return session

    def joined(self, call_id: str) -> list[Connection]:
        """The connections to the call's session, oldest first."""
        return [each for each in self._realtime.connections if each.query.get("call_id") == [call_id]]

    def asked(self, call_id: str) -> list[Action]:
        """What requests to the REST interface did with the call."""
        return [each.action for each in self.requests if each.call_id == call_id and each.status == 200]

    def hang_up(self, call_id: str) -> None:
        """The call is over: its session ends."""
        self.states[call_id] = "over"
        for connection in self.joined(call_id):
            connection.close(1000)

    def press(self, call_id: str, keys: str) -> None:
        """The caller presses keys of the phone."""
        session = self.joined(call_id)[-1].session
        for key in keys:
            if session is not None:
                session.emit(
                    "input_audio_buffer.dtmf_event_received", event=key, received_at=int(time.time())
                )

    # Inside ----------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._answer(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        pairs = (line.partition(":") for line in lines[1:] if line)
        read = _Reading(method, target, {name.lower(): value.strip() for name, _, value in pairs}, head)
        if self._api_key is not None and read.headers.get("authorization") != f"Bearer {self._api_key}":
            status = 401
        elif method == "POST":
            body = await reader.readexactly(int(read.headers["content-length"]))
            call_id, _, action_name = read.target.removeprefix(f"{PATH}/calls/").rpartition("/")
            call_id = unquote(call_id)
            action = _ACTIONS.get(action_name)
            if action is None:
                status = 404
            else:
                request = Request(call_id, action, read_object(body) if body else {}, 200)
                self.requests.append(request)
                failures = self._fails.get(action)
                if failures:
                    request.status = failures.pop(0)
                    if request.status == 0:
                        await asyncio.Event().wait()
                else:
                    request.status = self._done(request)
                status = request.status
        else:
            call_id = parse_qs(urlsplit(target).query).get("call_id", [""])[0]
            if self.states.get(call_id) == "live":
                port = urlsplit(self._realtime.url).port
                behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", port)
                behind_writer.write(read.head)
                ways = [
                    asyncio.ensure_future(_pass_on(reader, behind_writer)),
                    asyncio.ensure_future(_pass_on(behind_reader, writer)),
                ]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)
                    behind_writer.close()
                    with contextlib.suppress(OSError):
                        await behind_writer.wait_closed()
                return
            status = 404
        phrase = HTTPStatus(status).phrase
        writer.write(f"HTTP/1.1 {status} {phrase}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()

    def _done(self, request: Request) -> int:
        wanted: State = "ringing" if request.action in ("accept", "reject") else "live"
        if self.states.get(request.call_id) != wanted:
            return 404
        if request.action == "accept":
            refusal = realtime_checks.refusal_of({"type": "session.update", "session": request.body})
            if refusal is not None or "model" not in request.body:
                self.mistakes.append(f"accept: {refusal}")
                return 400
            self.states[request.call_id] = "live"
        elif request.action == "reject":
            self.states[request.call_id] = "over"
        else:
            asyncio.get_running_loop().call_soon(self.hang_up, request.call_id)
        return 200


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(64 * 1024):
        writer.write(data)
        await writer.drain()


def signed(body: bytes, secret: str, webhook_id: str, at_s: float | None = None) -> Webhook:
    """A webhook as OpenAI signs it; `secret` is `whsec_` and base64. `at_s` is now by default."""
    timestamp = str(int(time.time() if at_s is None else at_s))
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.new(key, f"{webhook_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    headers = {
        "webhook-id": webhook_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }
    return Webhook(headers, body)
