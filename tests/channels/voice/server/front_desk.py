"""The voice agent's HTTP side on a real socket, with somebody who answers by echoing."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from picows import (
    WSCloseCode,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    ws_connect,  # pyright: ignore[reportUnknownVariableType] - untyped keywords
)
from pydantic import SecretStr

from adapters.http_door import listen
from adapters.outbound.fake import ScriptedOutbound
from channels.voice.carriers.carrier import Carrier, SpeakAndDial
from channels.voice.carriers.sip.calls import SipCall, SipCalls
from channels.voice.metrics import Counting
from channels.voice.server.app import VoiceApp, voice_app
from channels.voice.server.serving import server_of
from channels.voice.server.settings import VoiceSettings

TOKEN = "12345"


def voice_settings(**given: object) -> VoiceSettings:
    """Settings of a test alone, whatever the environment says."""
    unset = {name: field.default for name, field in VoiceSettings.model_fields.items()}
    return VoiceSettings.model_validate({**unset, **given})


class Echo(WSListener):
    def __init__(self, call_server: EchoCallServer) -> None:
        self._call_server = call_server

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._call_server.connected += 1
        self._call_server.transports.append(transport)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type is WSMsgType.TEXT:
            transport.send(WSMsgType.TEXT, frame.get_payload_as_bytes())
        elif frame.msg_type is WSMsgType.CLOSE:
            transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._call_server.disconnected += 1


@dataclass
class EchoCallServer:
    answered: int = 0
    apologies: dict[str, SpeakAndDial] = field(default_factory=dict[str, SpeakAndDial])
    transports: list[WSTransport] = field(default_factory=list[WSTransport])
    sip: list[SipCall] = field(default_factory=list[SipCall])
    sip_over: asyncio.Event = field(default_factory=asyncio.Event)
    connected: int = 0
    disconnected: int = 0
    closed: int = 0

    def answer(self) -> WSListener:
        self.answered += 1
        return Echo(self)

    def lost(self, call_id: str) -> SpeakAndDial | None:
        return self.apologies.get(call_id)

    async def answer_sip(self, call: SipCall) -> None:
        self.sip.append(call)
        await self.sip_over.wait()

    async def close(self) -> None:
        self.closed += 1
        for transport in self.transports:
            transport.disconnect()


@dataclass
class Desk:
    app: VoiceApp
    answering: EchoCallServer
    counting: Counting
    port: int
    http: httpx.AsyncClient
    outbound: ScriptedOutbound

    @property
    def line_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/media-stream"

    async def dial(self, headers: Mapping[str, str] | None = None) -> Caller:
        return await dial(self.line_url, headers)

    def count(self, name: str, **labels: str) -> float:
        return self.counting.registry.get_sample_value(f"flow_engine_voice_{name}", labels) or 0.0


class Caller(WSListener):
    """A line's end. `heard` are the texts that came, None once the socket is closed."""

    transport: WSTransport

    def __init__(self) -> None:
        self.heard: asyncio.Queue[str | None] = asyncio.Queue()
        self.close_code: int | None = None

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type is WSMsgType.TEXT:
            self.heard.put_nowait(frame.get_payload_as_utf8_text())
        elif frame.msg_type is WSMsgType.CLOSE:
            self.close_code = int(frame.get_close_code().value)
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.heard.put_nowait(None)

    async def say(self, text: str) -> str | None:
        self.transport.send(WSMsgType.TEXT, text)
        return await self.next()

    async def next(self) -> str | None:
        async with asyncio.timeout(30):
            return await self.heard.get()


async def dial(url: str, headers: Mapping[str, str] | None = None) -> Caller:
    caller = Caller()
    caller.transport, _ = await ws_connect(lambda: caller, url, extra_headers=dict(headers or {}))
    return caller


@asynccontextmanager
async def open_desk(
    outbound: ScriptedOutbound | None = None,
    answering: EchoCallServer | None = None,
    clock: Any = None,
    now: Any = None,
    carrier: Carrier | None = None,
    **given: object,
) -> AsyncGenerator[Desk]:
    settings = voice_settings(**given)
    scripted = outbound or ScriptedOutbound({})
    answering, counting = answering or EchoCallServer(), Counting()
    key = settings.openai_api_key
    calls = None if key is None else SipCalls(scripted, settings.realtime_url, key.get_secret_value())
    times = {name: value for name, value in (("clock", clock), ("now", now)) if value is not None}
    app = voice_app(settings, carrier or settings.open_carrier(scripted), answering, counting, calls, **times)
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    server = server_of(app)
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=5) as http:
        try:
            yield Desk(app, answering, counting, port, http, scripted)
        finally:
            if app.sip is not None:
                await app.sip.close()
            server.should_exit = True
            await serving


def handshake(path: str = "/media-stream", **headers: str) -> bytes:
    """The request of a WebSocket client, byte for byte."""
    told = {
        "Host": "localhost",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items() if value), "", ""]
    return "\r\n".join(lines).encode("latin-1")


async def exchange(port: int, sent: bytes, until: bytes = b"\r\n\r\n") -> bytes:
    """What comes back on a connection of its own until `until` or its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        async with asyncio.timeout(30):
            try:
                return await reader.readuntil(until)
            except asyncio.IncompleteReadError as cut:
                return cut.partial
    finally:
        writer.close()
        await writer.wait_closed()


def secret(text: str) -> SecretStr:
    return SecretStr(text)
