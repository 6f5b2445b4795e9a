"""Every route and wire swallows the corpus: no 5xx, no stall of others above 250 ms, memory bounded."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import tracemalloc
from functools import partial
from typing import Any

import psutil
import pytest

from adapters.http_door import DoorLimits
from channels.voice.carriers.twilio.media_streams import TwilioStreams
from channels.voice.wires import realtime_events
from tests.adapters.test_http_door import behind_a_door
from tests.api.harness import clinic, open_scene
from tests.hostile import corpus
from tests.hostile.test_stalls import LONGEST_STALL_S, least_stall, watched, without_a_stall

pytestmark = pytest.mark.anyio

MOST_MEMORY = 96 * 1024 * 1024
"""Bytes that a process may keep of a whole corpus; each body alone may have 1.2 MB."""

IDS = {
    "conversation_id": "conv-1",
    "flow_id": "a",
    "version_id": "version-1",
    "tag": "prod",
    "try_id": "try-1",
}
NOT_CONFIGURED = {"model_not_configured", "graphviz_missing"}


DOOR_LIMITS = DoorLimits(head_s=0.5, body_s=0.5, linger_s=0.2)


def resident_bytes() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


async def test_every_route_swallows_every_body() -> None:  # A4, A9
    async with open_scene(clinic()) as scene:
        await scene.started()
        routes = [
            (method.upper(), re.sub(r"{(\w+)}", lambda found: IDS[found[1]], path))
            for path, methods in scene.app.openapi()["paths"].items()
            for method, operation in methods.items()
            if "requestBody" in operation
        ]
        headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        before = resident_bytes()
        slow: dict[tuple[str, str], float] = {}
        for name, made in corpus.BODIES.items():
            body = made()
            for method, path in [*routes, ("POST", "/mcp")]:
                asked = partial(scene.http.request, method, path, content=body, headers=headers)
                reply, stall_s = await least_stall(asked)
                if reply.status_code >= 500:
                    assert reply.json()["code"] in NOT_CONFIGURED, (name, method, path, reply.text)
                if stall_s >= LONGEST_STALL_S:
                    slow[name, path] = stall_s
        assert slow == {}
        assert resident_bytes() - before < MOST_MEMORY
        assert (await scene.prompt())["revision"] >= 1


@pytest.mark.parametrize("path", ["/v1/handle-utterance", "/mcp"])
async def test_a_large_body_that_is_wrong_as_a_whole_is_not_read_for_each_of_its_faults(
    path: str,
) -> None:  # A4 F33 F35
    body = b'{"a":[' + b"[]," * 20_000 + b"[]]}"
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    async with open_scene() as scene:
        await scene.http.post(path, content=b"{}", headers=headers)  # which loads what is loaded late
        tracemalloc.start()
        try:
            json.loads(body)
            _, read_once = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            reply = await scene.http.post(path, content=body, headers=headers)
            _, needed = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert reply.is_client_error
        assert needed < 3 * read_once


async def status_of(port: int, request: bytes) -> int | None:
    """None where the connection was closed without a reply."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(10):
            line = await reader.readline()
    except ConnectionError:
        return None
    finally:
        writer.close()
    return int(line.split()[1]) if line else None


def requests() -> list[tuple[str, Any]]:
    ends = b"host: localhost\r\nconnection: close\r\n\r\n"
    paths = [
        (f"path: {name}", lambda m=made: b"GET " + m() + b" HTTP/1.1\r\n" + ends)
        for name, made in corpus.PATHS.items()
    ]
    headers = [
        (f"header: {name}", lambda m=made: b"POST /v1/change-task HTTP/1.1\r\n" + m() + ends)
        for name, made in corpus.HEADERS.items()
    ]
    odd = {
        "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,
        "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "an odd method": b"BREW /v1/flows HTTP/1.1\r\n" + ends,
        "an old version": b"GET /v1/flows HTTP/0.9\r\n\r\n",
        "a chunk that lies": b"POST /v1/change-task HTTP/1.1\r\nhost: localhost\r\n"
        b"transfer-encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\nx",
    }
    return [*paths, *headers, *((name, lambda t=text: t) for name, text in odd.items())]


@without_a_stall
async def test_every_header_and_url_is_answered_or_refused_while_others_are_served() -> (
    None
):  # contract 12, A4
    async with open_scene(clinic()) as scene, behind_a_door(scene.app, DOOR_LIMITS) as port:
        before = resident_bytes()
        health = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        async with watched() as stall:
            replies = await asyncio.gather(*(status_of(port, made()) for _, made in requests()))
        found = dict(zip((name for name, _ in requests()), replies, strict=True))
        assert {name: status for name, status in found.items() if status is not None and status >= 500} == {}
        assert found["path: longer than is taken"] == 414
        assert {found[f"header: {name}"] for name in ("a long value", "many", "one without an end")} == {431}
        stall.was_short()
        assert resident_bytes() - before < MOST_MEMORY
        assert await status_of(port, health) == 200


@without_a_stall
async def test_hundreds_of_clients_that_never_end_hold_up_nobody() -> None:  # contract 12, A4
    halves = [b"", b"GET / HT", b"POST /v1/flows HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{"]
    async with open_scene(clinic()) as scene, behind_a_door(scene.app, DOOR_LIMITS) as port:
        async with watched() as stall:
            waiting = [asyncio.ensure_future(status_of(port, halves[n % 3])) for n in range(300)]
            live = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
            assert await status_of(port, live) == 200
            assert set(await asyncio.gather(*waiting)) <= {408, 422, None}
        stall.was_short()


def test_every_wire_swallows_every_frame() -> None:
    decoder = TwilioStreams().decoder()
    for _, frame in corpus.frames():
        decoder(frame)
        realtime_events.decode(frame)
