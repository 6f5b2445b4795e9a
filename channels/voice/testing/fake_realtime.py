"""A Realtime server that runs on this machine, plays a script, and is strict.

    async with FakeRealtime(Script.of(Say("Good evening!"))) as server:
        ...  # connect to server.url
        session = await server.session()
        assert session.errors == []

It hears callers that the other doubles speak (`signals.speech`), takes turns as the real one does, and makes
audio that tells whose it is, which `FakeTwilioCall` turns into a log of what was really heard. From the
command line:

    python -m channels.voice.testing.fake_realtime --port 8765 --script FILE
"""

import argparse
import asyncio
import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self
from urllib.parse import parse_qs, urlsplit

from picows import (
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_create_server,  # pyright: ignore[reportUnknownVariableType]
)

from channels.voice.testing import fake_response, realtime_checks, realtime_session, sockets
from channels.voice.testing.script import Script, read_script

PATH: Final = "/v1/realtime"
_OVERSIZED_BYTES: Final = 10 * 1024 * 1024
_NO_SUCH_PROTOCOL: Final = 4000


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with one connection, when so many events have been sent.

    refuse      the handshake is answered with the HTTP status `value`
    close       with the close code `value`
    drop        without a close
    stall       nothing is read or sent any more
    garbage     a frame that is not JSON, then on
    oversized   a frame of `value` bytes, 10 MiB if 0, then on
    error       an error event that concerns no command, then on
    expire      the session has lasted too long: an error event, then a close
    """

    kind: Literal["refuse", "close", "drop", "stall", "garbage", "oversized", "error", "expire"]
    after_events: int = 1
    value: int = 0


class Connection:
    """One client of the server, and the ways to treat it badly."""

    def __init__(self, request: WSUpgradeRequest, fault: Fault | None) -> None:
        self.headers: Mapping[str, str] = request.headers
        self.query = parse_qs(urlsplit(request.path.decode("latin-1")).query)
        self.socket = sockets.Socket(self._receive, self._open, self._closed)
        self.session: realtime_session.RealtimeSession | None = None
        self._fault = fault
        self._sent = 0
        self._is_stalled = False

    def close(self, code: int = 1000, reason: str = "") -> None:
        self.socket.close(code, reason)

    def drop(self) -> None:
        self.socket.drop()

    def stall(self) -> None:
        """Nothing is read or sent any more, but the connection stays: the other side has to fail by its own
        clock."""
        self._is_stalled = True
        self.socket.stop_reading()

    def send_raw(self, frame: bytes | str) -> None:
        self.socket.send(frame)

    def error(self, code: str = "server_error", message: str = "The server had an error.") -> None:
        """An error event that concerns no command."""
        if self.session is not None:
            self.session.refuse(realtime_checks.Refusal(code, message), None, "server_error")

    def expire(self) -> None:
        self.error("session_expired", "Your session hit the maximum duration of 60 minutes.")
        self.close(1001)

    def send(self, frame: bytes) -> None:
        """An event of the session."""
        if not self._is_stalled:
            self.socket.send(frame)
        self._sent += 1
        fault = self._fault
        if fault is not None and self._sent >= fault.after_events:
            self._fault = None
            match fault.kind:
                case "close":
                    self.close(fault.value or 1011)
                case "drop":
                    self.drop()
                case "stall":
                    self.stall()
                case "garbage":
                    self.send_raw('{"type": "response.output_audio.delta", "delta": \x00')
                case "oversized":
                    self.send_raw(b'"%b"' % (b"x" * ((fault.value or _OVERSIZED_BYTES) - 2)))
                case "error":
                    self.error()
                case "expire":
                    self.expire()
                case _:
                    pass

    def _open(self) -> None:
        if "realtime=v1" in self.headers.get("OpenAI-Beta", ""):
            self.close(_NO_SUCH_PROTOCOL, "The beta of the Realtime protocol is gone")
        elif not self.query.keys() & {"model", "call_id"}:
            self.close(_NO_SUCH_PROTOCOL, "You must provide a model parameter")
        elif self.session is not None:
            self.session.begin()

    def _receive(self, message: bytes) -> None:
        if self.session is not None and not self._is_stalled:
            self.session.receive(message)

    def _closed(self) -> None:
        if self.session is not None:
            self.session.stop()


class FakeRealtime:
    """On a port of loopback. Of several scripts, the first is for the first connection and so on, the last
    for all that follow; a fault is for one connection each, in order. With `api_key` a handshake without it
    is refused."""

    def __init__(
        self,
        *scripts: Script,
        pace: fake_response.Pace | None = None,
        faults: Sequence[Fault | None] = (),
        api_key: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.connections: list[Connection] = []
        self.refused = 0
        """Handshakes that were."""
        self._scripts = scripts or (Script(),)
        self._pace = pace or fake_response.Pace()
        self._faults = list(faults)
        self._api_key = api_key
        self._host, self._port = host, port
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> Self:
        self._server = await ws_create_server(
            self._upgrade, self._host, self._port, max_frame_size=sockets.MOST_BYTES
        )
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for connection in self.connections:
            if connection.socket.is_open:
                connection.drop()
                await connection.socket.closed.wait()
        for session in self.sessions:
            session.stop()
            await session.stopped()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"ws://{self._host}:{self._port}{PATH}"

    @property
    def sessions(self) -> list[realtime_session.RealtimeSession]:
        return [connection.session for connection in self.connections if connection.session is not None]

    async def session(self, number: int = 0, within_s: float = 30.0) -> realtime_session.RealtimeSession:
        """Wait for the first session, or a later one, up to `within_s` seconds. Raises TimeoutError."""
        await sockets.eventually(lambda: len(self.sessions) > number, within_s)
        return self.sessions[number]

    def _upgrade(self, request: WSUpgradeRequest) -> WSUpgradeResponseWithListener | sockets.Socket:
        fault = self._faults.pop(0) if self._faults else None
        if fault is not None and fault.kind == "refuse":
            return self._refuse(fault.value or HTTPStatus.SERVICE_UNAVAILABLE)
        if self._api_key is not None and request.headers.get("Authorization") != f"Bearer {self._api_key}":
            return self._refuse(HTTPStatus.UNAUTHORIZED)
        connection = Connection(request, fault)
        script = self._scripts[min(len(self.connections), len(self._scripts) - 1)]
        connection.session = realtime_session.RealtimeSession(
            connection.send,
            model=connection.query.get("model", ["gpt-realtime"])[0],
            script=script,
            pace=self._pace,
            numbers=lambda: next(self._numbers),
            plays_itself="call_id" in connection.query,
        )
        self.connections.append(connection)
        return connection.socket

    def _refuse(self, status: int) -> WSUpgradeResponseWithListener:
        self.refused += 1
        response = WSUpgradeResponse.create_error_response(status, b'{"error": {"message": "refused"}}')
        return WSUpgradeResponseWithListener(response, None)


async def _serve(arguments: argparse.Namespace) -> None:
    script = Script() if arguments.script is None else read_script(arguments.script)
    async with FakeRealtime(script, host=arguments.host, port=arguments.port) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A scripted Realtime server for tests and trials.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--script", type=Path, help="a JSON file of reactions")
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(arguments))


if __name__ == "__main__":
    main()
