"""The same corpus for every program beside the engine: bodies, URLs and headers, and frames on open wires."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp
from structlog.testing import capture_logs
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from adapters.models.scripted import ScriptedModel
from api.auth import LocalOnly
from channels.chat.settings import ChatSettings
from channels.gateway.config import GatewayFile, GatewaySettings
from channels.voice.manager import front as front_module
from channels.voice.manager.front import Route as AgentRoute
from channels.voice.manager.front import Routes
from channels.voice.testing.fake_realtime import FakeRealtime
from channels.voice.testing.fake_twilio import FakeTwilioCall
from channels.voice.testing.script import Reaction, Say, Script
from channels.voice.testing.sockets import eventually
from service.assistant import OwnDoor, assistant_routes
from service.chat import chat_service
from service.gateway import gateway_service
from service.serving import KeyDoor
from service.settings import Settings
from tests.adapters.test_http_door import behind_a_door
from tests.channels.chat.harness import FINE, WEATHER, running_chat
from tests.channels.voice.books import Book, bridged
from tests.channels.voice.manager.test_manager_front import fronted
from tests.channels.voice.served_agent import SECRET
from tests.channels.voice.server.front_desk import open_desk, secret
from tests.hostile import corpus
from tests.hostile.test_requests import DOOR_LIMITS, MOST_MEMORY, requests, resident_bytes, status_of
from tests.hostile.test_stalls import LONGEST_STALL_S, least_stall, watched, without_a_stall

pytestmark = pytest.mark.anyio

HELLO, NO_FRAME = b'{"type":"hello","user":"u"}', b'{"type":"nothing"}'
TALKATIVE = Script((Reaction((Say("Hello there", 400),), once=False),))


@asynccontextmanager
async def chat(directory: Path) -> AsyncGenerator[ASGIApp]:
    settings, model = Settings(data_dir=directory), ScriptedModel(FINE)
    async with chat_service(settings, ChatSettings(), LocalOnly(), model=model) as service:
        yield service.app


@asynccontextmanager
async def gateway(directory: Path) -> AsyncGenerator[ASGIApp]:
    """With the assistant of a workspace. Nobody listens where its model is."""
    (directory / "ws").mkdir()
    file = GatewayFile.model_validate(
        {
            "backends": [{"name": "b", "kind": "openai", "url": "http://127.0.0.1:9", "models": ["m"]}],
            "workspaces": [{"name": "ws", "path": str(directory / "ws")}],
            "assistant": {"model": "m"},
        }
    )
    door, settings = OwnDoor(KeyDoor(LocalOnly())), GatewaySettings()
    assistant = assistant_routes(file, settings, door, "http://127.0.0.1:9/v1")
    more = assistant.routes()
    async with gateway_service(Settings(data_dir=directory), settings, file, door, more_routes=more) as app:
        yield app
    assistant.close()


@asynccontextmanager
async def voice(directory: Path) -> AsyncGenerator[ASGIApp]:
    async with open_desk(openai_api_key=secret("sk-test"), openai_webhook_secret=secret(SECRET)) as desk:
        yield desk.app.asgi


PROGRAMS: Mapping[str, Callable[[Path], AbstractAsyncContextManager[ASGIApp]]] = {
    "chat": chat,
    "gateway": gateway,
    "voice": voice,
}


def writing_routes(app: ASGIApp) -> list[tuple[str, str]]:
    """Method and path of whatever takes a body."""
    assert isinstance(app, Starlette)
    routes = [route for route in app.routes if isinstance(route, Route)]
    return [
        (method, re.sub(r"{[^}]+}", "a", route.path))
        for route in routes
        for method in sorted(route.methods or ())
        if method in ("POST", "PUT", "PATCH", "DELETE")
    ]


@pytest.mark.parametrize("name", PROGRAMS)
async def test_every_route_of_a_program_swallows_every_body(name: str, tmp_path: Path) -> None:  # A4
    async with PROGRAMS[name](tmp_path) as app:
        transport, failed, slow = httpx.ASGITransport(app), [], {}
        routes, before = writing_routes(app), resident_bytes()
        assert routes
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            for what, made in corpus.BODIES.items():
                body = made()
                for method, path in routes:
                    reply, stall_s = await least_stall(partial(http.request, method, path, content=body))
                    if reply.status_code >= 500:
                        failed.append((what, method, path, reply.text[:200]))
                    if stall_s >= LONGEST_STALL_S:
                        slow[what, path] = stall_s
        assert failed == []
        assert slow == {}
        assert resident_bytes() - before < MOST_MEMORY


@pytest.mark.parametrize("name", PROGRAMS)
@without_a_stall
async def test_every_header_and_url_is_answered_or_refused_by_a_program(name: str, tmp_path: Path) -> None:
    """Contract 12, A4."""
    async with PROGRAMS[name](tmp_path) as app, behind_a_door(app, DOOR_LIMITS) as port:
        async with watched() as stall:
            replies = await asyncio.gather(*(status_of(port, made()) for _, made in requests()))
        found = dict(zip((what for what, _ in requests()), replies, strict=True))
        assert {what: status for what, status in found.items() if status is not None and status >= 500} == {}
        assert found["path: longer than is taken"] == 414
        stall.was_short()
        health = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        assert await status_of(port, health) == 200


def bugs(logs: list[Any]) -> list[Any]:
    return [line for line in logs if line["log_level"] in ("error", "critical")]


@without_a_stall
async def test_the_chats_wire_swallows_every_frame(tmp_path: Path) -> None:
    async with running_chat(Path(mkdtemp(dir=tmp_path))) as chat, AsyncExitStack() as stack:
        await chat.add(WEATHER)

        async def opened(*frames: bytes) -> ClientConnection:
            socket = await stack.enter_async_context(connect(chat.url, proxy=None))
            for frame in frames:
                await socket.send(frame, text=True)
                await socket.recv()
            return socket

        before = resident_bytes()
        with capture_logs() as logs:
            async with watched() as stall:
                greeted = await opened(HELLO)
                for made in (*corpus.FRAMES.values(), *corpus.CHAT_FRAMES.values()):
                    with suppress(ConnectionClosed):
                        await (await opened()).send(made(), text=True)
                    try:
                        await greeted.send(made(), text=True)
                        await greeted.send(NO_FRAME, text=True)
                        async with asyncio.timeout(30):
                            while b'"/type"' not in await greeted.recv(decode=False):
                                pass
                    except ConnectionClosed:
                        greeted = await opened(HELLO)
        assert bugs(logs) == []
        stall.was_short()
        assert resident_bytes() - before < MOST_MEMORY
        async with chat.client() as client:
            assert (await client.say("m-1", WEATHER["examples"][0]))["state"] == "done"


@without_a_stall
async def test_the_line_of_a_call_swallows_every_frame() -> None:
    frames = [made() for made in corpus.FRAMES.values()]
    before = resident_bytes()
    with capture_logs() as logs:
        async with FakeRealtime(TALKATIVE) as model, bridged(Book(), model.url) as bridge:
            async with watched() as stall:
                while frames:
                    async with FakeTwilioCall(bridge.url) as call:
                        await eventually(lambda: call.playout.heard != [])
                        for frame in [frames.pop() for _ in range(min(15, len(frames)))]:
                            call.send_raw(frame)
                        await asyncio.sleep(0.05)
            async with FakeTwilioCall(bridge.url) as call:
                await eventually(lambda: call.playout.heard != [])
    assert bugs(logs) == []
    stall.was_short()
    assert resident_bytes() - before < MOST_MEMORY


@without_a_stall
async def test_a_call_goes_on_through_every_frame_of_the_models_server() -> None:
    frames = [made() for made in corpus.FRAMES.values() if len(made()) < 100_000]
    book = Book()
    with capture_logs() as logs:
        async with (
            FakeRealtime(TALKATIVE) as model,
            bridged(book, model.url) as bridge,
            FakeTwilioCall(bridge.url) as call,
            watched() as stall,
        ):
            await eventually(lambda: call.playout.heard != [])
            for frame in frames:
                model.connections[-1].send_raw(frame)
            await call.say("Are you there", 500)
            await eventually(lambda: "Are you there" in book.turns)
            await call.hang_up()
    assert bugs(logs) == []
    stall.was_short()


@without_a_stall
async def test_the_managers_front_swallows_every_request_and_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_module, "HEAD_WITHIN_S", 2.0)  # some never end
    head = b"POST %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    bodies = {what: made() for what, made in corpus.BODIES.items()}
    posted = [
        (f"{path.decode()}: {what}", head % (path, len(body)) + body)
        for path in (b"/incoming-call", b"/a/incoming-call")
        for what, body in bodies.items()
    ]
    sent = [*((what, made()) for what, made in requests()), *posted]
    async with (
        open_desk() as desk,
        fronted(Routes({"a": AgentRoute(desk.port, None)}.get, lambda _: None)) as front,
    ):
        port, before = int(front.rpartition(":")[2]), resident_bytes()
        with capture_logs() as logs:
            async with watched() as stall:
                found = await asyncio.gather(*(status_of(port, request) for _, request in sent))
        statuses = dict(zip((what for what, _ in sent), found, strict=True))
        assert {
            what: status for what, status in statuses.items() if status is not None and status >= 500
        } == {}
        assert len([status for status in found if status is not None]) > len(posted)
        assert bugs(logs) == []
        stall.was_short()
        assert resident_bytes() - before < MOST_MEMORY


async def test_a_wire_that_raises_is_found_out() -> None:  # negative control
    class Broken(Book):
        async def started(self) -> str | None:
            raise RuntimeError("a bug")

    with capture_logs() as logs:
        async with (
            FakeRealtime(TALKATIVE) as model,
            bridged(Broken(), model.url) as bridge,
            FakeTwilioCall(bridge.url) as call,
        ):
            await call.closed(5.0)
    assert bugs(logs) != []


async def test_a_route_that_fails_on_one_body_is_found_out() -> None:  # negative control
    async def careless(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        status = 500 if b"\xff" in body else 422
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    transport = httpx.ASGITransport(careless)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        found = [(await http.post("/", content=made())).status_code for made in corpus.BODIES.values()]
    assert 500 in found
